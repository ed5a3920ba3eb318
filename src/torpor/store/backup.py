"""A copy of a database that is in use, as it was at one moment."""

import os
import secrets
import sqlite3
from contextlib import closing
from pathlib import Path

from torpor.store.errors import DamagedError
from torpor.store.trouble import told, told_of_system

NONE_MADE = "No backup was made, and one of that name that was there before is as it was."


def copy(source: Path, target: Path) -> None:
    """Write a checked copy of ``source`` to ``target``, replacing it when the copy is on the disk.

    It is read in one go, which in WAL mode keeps nobody from writing. Raises
    :exc:`DiskFullError`, :exc:`DiskError` and :exc:`DamagedError`; ``target`` is then as it was.
    """
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    with told_of_system(target, NONE_MADE):
        file = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _fill(partial, source, target)
            os.fsync(file)
            partial.rename(target)
            _sync_directory(target.parent)
        finally:
            os.close(file)
            partial.unlink(missing_ok=True)


def _fill(partial: Path, source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as origin, closing(sqlite3.connect(partial)) as new:
        with told(source, NONE_MADE):
            origin.execute("PRAGMA schema_version").fetchone()
        with told(target, NONE_MADE):
            origin.backup(new)
            # One file, with no log beside it, is easier to carry away.
            new.execute("PRAGMA journal_mode=DELETE")
        found = new.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise DamagedError(
                f"A copy of the database {source} is not sound: {found}.",
                state=NONE_MADE,
                todo="Restore the database from an earlier backup.",
            )


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
