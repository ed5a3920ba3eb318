"""Where a restore is put together: a directory in the home that becomes its content at the end.

    restoring/            until the restore is complete, nothing else is in the home
    restoring/complete    everything is there, checked and on the disk; only names are to change

Whoever finds the directory without that file removes it; whoever finds it with it goes on moving.
So a restore that is cut off at any moment leaves nothing, or is finished by the same command.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from torpor.backup.errors import BackupError
from torpor.store.offline import copy, file_of, is_copy, is_empty, url_of, words_of
from torpor.vm.base import copy_base
from torpor.vm.syncing import fsync

DIRECTORY = "restoring"
COMPLETE = "complete"
DATABASE = "database.db"
SECRET = "admin-token"  # noqa: S105 - a file's name
PARTS = ("bases", "layers", "snapshots", "workspaces", "images")
_ALLOWED = frozenset(("host.lock", DIRECTORY))


def check_no_restore(home: Path) -> None:
    """Raise :exc:`BackupError` if a restore into a home was begun and not finished."""
    directory = home / DIRECTORY
    if directory.exists():
        raise BackupError(
            f"A restore into {home} is under way, or was cut off.",
            state="Nothing was started.",
            todo=f"Run the same `torpor restore` again; or, to give it up, remove {directory}.",
        )


async def check_empty(home: Path, database: str) -> None:
    """Raise :exc:`BackupError` if there is anything in a home but what is being restored, or in the
    database of this URL."""
    found: Path | str | None = next(_files(home), None)
    if found is None and not await is_empty(database):
        found = f"the database {words_of(database)}"
    if found is not None:
        raise BackupError(
            f"{home} is not empty: there is {found}.",
            state="Nothing was changed.",
            todo="Restore into an empty directory (TORPOR_HOME), or move this one away first.",
        )


def _files(home: Path) -> Iterator[Path]:
    for entry in sorted(home.iterdir()) if home.is_dir() else ():
        if entry.name in _ALLOWED:
            continue
        if not entry.is_dir() or entry.is_symlink():
            yield entry
        for directory, _, names in os.walk(entry):
            for name in names:
                yield Path(directory, name)


class Staging:
    """The directory of one restore. The home is locked as long as there is one."""

    def __init__(self, home: Path, database: str) -> None:
        self.home = home
        self.database = database
        self.directory = home / DIRECTORY

    @property
    def complete(self) -> bool:
        """Whether an earlier restore had come so far that only names are to change."""
        return (self.directory / COMPLETE).exists()

    def begin(self) -> None:
        """Make the directory anew."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(mode=0o700)

    def abandon(self) -> None:
        """Remove it, unless it is complete."""
        if not self.complete:
            shutil.rmtree(self.directory, ignore_errors=True)

    def seal(self, told: bytes) -> None:
        """Note that everything is there. ``told`` is what a later program shall tell of it."""
        _sync_all(self.directory)
        new = self.directory / f".{COMPLETE}"
        new.write_bytes(told)
        fsync(new)
        new.rename(self.directory / COMPLETE)
        fsync(self.directory)

    def told(self) -> bytes:
        """Return what was told :meth:`seal`."""
        return (self.directory / COMPLETE).read_bytes()

    async def finish(self) -> None:
        """Move everything to where it belongs; may be done again, and goes on then."""
        for part in PARTS:
            if (self.directory / part).exists():
                with contextlib.suppress(FileNotFoundError):
                    _remove_empty(self.home / part)
                (self.directory / part).rename(self.home / part)
        if (self.directory / SECRET).exists():
            (self.directory / SECRET).rename(self.home / SECRET)
        fsync(self.home)
        # Last: a server that finds a database finds all that it names.
        if (self.directory / DATABASE).exists():
            await self._place_database(self.directory / DATABASE)
        shutil.rmtree(self.directory)
        self.home.chmod(0o700)
        fsync(self.home)

    async def _place_database(self, staged: Path) -> None:
        file = file_of(self.database)
        if file is not None:
            _place_file(staged, file)
        elif not await is_copy(url_of(staged), self.database):
            await copy(url_of(staged), self.database)


def _place_file(staged: Path, file: Path) -> None:
    parent = file.parent
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        staged.rename(file)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        new = file.with_name(f".{file.name}.restoring")
        new.unlink(missing_ok=True)
        copy_base(staged, new)
        new.chmod(0o600)
        fsync(new)
        new.rename(file)
    fsync(parent)


def _remove_empty(directory: Path) -> None:
    for path, _, _ in os.walk(directory, topdown=False):
        Path(path).rmdir()


def _sync_all(directory: Path) -> None:
    for path, _, names in os.walk(directory):
        for name in names:
            fsync(Path(path, name))
        fsync(Path(path))
