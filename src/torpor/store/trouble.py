"""What SQLite and the system say when they refuse, told as this package's errors."""

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from torpor.store.errors import (
    UNCHANGED,
    BusyError,
    DamagedError,
    DiskError,
    DiskFullError,
    StoreError,
)

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_ALMOST_NOTHING = 64 << 10  # bytes; SQLite's index of its log grows by 32 KiB


@contextmanager
def told(file: Path, state: str = UNCHANGED) -> Iterator[None]:
    """Raise this package's errors for those that SQLite has with ``file``.

    ``state`` says what things are in then.
    """
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        said = error.orig if isinstance(error, DBAPIError) else error
        known = _known(file, said, state) if isinstance(said, sqlite3.Error) else None
        if known is None:
            raise
        raise known from error


@contextmanager
def told_of_system(file: Path, state: str = UNCHANGED) -> Iterator[None]:
    """Raise this package's errors for those that the system has with ``file``."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise _full(file, state) from error
        raise _refused(file, _words(error), state) from error


def _words(error: OSError) -> str:
    words = error.strerror or str(error)
    return f"{words}: {error.filename}" if error.filename else words


def _known(file: Path, said: sqlite3.Error, state: str) -> StoreError | None:
    code = getattr(said, "sqlite_errorcode", 0) & 0xFF  # the rest of it is the finer reason
    if code == sqlite3.SQLITE_FULL:
        return _full(file, state)
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        # Of some of its files SQLite does not tell why they could not grow.
        full = _free_bytes(file) < _ALMOST_NOTHING
        return _full(file, state) if full else _refused(file, str(said), state)
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return _refused(file, str(said), state)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return BusyError(
            f"Another program has been writing to the database {file} for too long.",
            state=state,
            todo="Look which one has it open, for instance with fuser, and try again.",
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return DamagedError(
            f"The database {file} is damaged, or no database: {said}.",
            state="It was left as it is.",
            todo="Restore it from a backup.",
        )
    return None


def _full(file: Path, state: str) -> DiskFullError:
    return DiskFullError(
        f"The disk is full: {file} could not be written, {_free_bytes(file) >> 10} KiB are free.",
        state=state,
        todo="Make space, and try again.",
    )


def _refused(file: Path, why: str, state: str) -> DiskError:
    return DiskError(
        f"{file} could not be read or written: {why}.",
        state=state,
        todo="Look at the file's rights, at quotas and limits, and at the kernel's log.",
    )


def _free_bytes(file: Path) -> int:
    try:
        status = os.statvfs(file.parent)
    except OSError:
        return 1 << 62  # not what is wrong
    return status.f_bavail * status.f_frsize
