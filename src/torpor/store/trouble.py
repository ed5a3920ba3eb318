"""What SQLite and the system say when they refuse, told as this package's errors."""

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from torpor.store.errors import (
    BusyError,
    DamagedError,
    DiskError,
    DiskFullError,
    StoreError,
)

_UNCHANGED = "Nothing was changed: the database is as it was before."
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_ALMOST_NOTHING = 64 << 10  # bytes; SQLite's index of its log grows by 32 KiB


@contextmanager
def told(file: Path) -> Iterator[None]:
    """Raise this package's errors for those of the database ``file`` and its disk."""
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        said = error.orig if isinstance(error, DBAPIError) else error
        known = _known(file, said) if isinstance(said, sqlite3.Error) else None
        if known is None:
            raise
        raise known from error
    except OSError as error:
        raise _of_system(file, error) from error


def _known(file: Path, said: sqlite3.Error) -> StoreError | None:
    code = getattr(said, "sqlite_errorcode", 0) & 0xFF  # the rest of it is the finer reason
    if code == sqlite3.SQLITE_FULL:
        return _full(file)
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        # Of some of its files SQLite does not tell why they could not grow.
        return _full(file) if _free_bytes(file) < _ALMOST_NOTHING else _refused(file, str(said))
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return _refused(file, str(said))
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return BusyError(
            f"Another program has been writing to the database {file} for too long.",
            state=_UNCHANGED,
            todo="Look which one has it open, for instance with fuser, and try again.",
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return DamagedError(
            f"The database {file} is damaged, or no database: {said}.",
            state="It was left as it is.",
            todo="Restore it from a backup.",
        )
    return None


def _of_system(file: Path, error: OSError) -> Exception:
    if error.errno in _NO_SPACE:
        return _full(file)
    if error.errno is None:
        return error
    return _refused(file, f"{error.strerror}: {error.filename}" if error.filename else str(error))


def _full(file: Path) -> DiskFullError:
    return DiskFullError(
        f"The disk is full: {file} could not be written, {_free_bytes(file) >> 10} KiB are free.",
        state=_UNCHANGED,
        todo="Make space, and try again.",
    )


def _refused(file: Path, why: str) -> DiskError:
    return DiskError(
        f"The database {file} could not be read or written: {why}.",
        state=_UNCHANGED,
        todo="Look at the file's rights, at quotas and limits, and at the kernel's log.",
    )


def _free_bytes(file: Path) -> int:
    try:
        status = os.statvfs(file.parent)
    except OSError:
        return 1 << 62  # not what is wrong
    return status.f_bavail * status.f_frsize
