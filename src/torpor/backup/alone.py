"""A backup of what a server has left, while none runs."""

import contextlib
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import torpor
from torpor.backup.contents import About, Missing, Summary, Wanted
from torpor.backup.errors import BackupError
from torpor.backup.writing import Source, write_backup
from torpor.images.names import Names
from torpor.store import sessions, snapshots
from torpor.store.database import Database
from torpor.store.offline import save, url_of, words_of
from torpor.vm import VmError
from torpor.vm.export import Report, silent
from torpor.vm.home import host_id, machine_records
from torpor.vm.settling import settle_all
from torpor.vm.stoppable import stoppable
from torpor.vm.store import Store

DIRECTORY = ".backup-"
"""What the directory in a home begins with in which a copy of the database lies for a moment."""


async def back_up_alone(
    store: Store,
    database: str,
    settings: Mapping[str, Any],
    out: BinaryIO,
    *,
    report: Report = silent,
) -> Summary:
    """Write a backup of a home that no server has open to ``out``; ``store`` is its store, locked,
    ``database`` the URL of its database.

    Machines that run on are in it by their newest snapshot. Raises :exc:`BackupError`,
    :exc:`torpor.store.errors.StoreError` and OSError.
    """
    remove_left_copies(store.root)
    with tempfile.TemporaryDirectory(prefix=DIRECTORY, dir=store.root) as directory:
        copy = Path(directory, "torpor.db")
        if not await save(database, copy):
            raise BackupError(
                f"There is no database {words_of(database)}, and so nothing to back up.",
                state="Nothing was written.",
                todo="Set TORPOR_HOME to the server's home, or `database` as its settings have it.",
            )
        wanted = await wanted_in(copy, host_id(store.root))
        with open(copy, "rb", buffering=0) as file:

            def write(check: Callable[[], None]) -> Summary:
                missing = tuple(_made_durable(store, wanted, check))
                source = Source(about(settings), file, wanted, store, Names(store.root), missing)
                return write_backup(source, out, report=report, check=check)

            return await stoppable(write)


def _made_durable(store: Store, wanted: Wanted, check: Callable[[], None]) -> Iterator[Missing]:
    """Make durable what is not; yield what cannot be. Disks that outlive machines are in the backup
    as they were last saved, if what they hold now cannot be made durable."""
    with contextlib.suppress(VmError):  # of a machine whose record cannot be read nothing is known
        settle_all(store, machine_records(store.root))
    for row in wanted.snapshots:
        check()
        try:
            store.make_durable(row.id)
        except (VmError, OSError) as error:
            yield Missing("snapshot", row.id, str(error), row.session)


async def wanted_in(copy: Path, host: str | None) -> Wanted:
    """Return what a copy of a database says is to be in a backup: all sessions, and the snapshots
    of those on a host."""
    database = await Database.open(url_of(copy))
    try:
        async with database.read() as conn:
            needed = await snapshots.needed(conn, host)
            chosen = tuple(row for row in needed if row.status == "READY")
            return Wanted(tuple(await sessions.live(conn)), chosen)
    finally:
        await database.close()


def about(settings: Mapping[str, Any]) -> About:
    """Return what a backup that is made now says of itself."""
    return About(datetime.now(UTC), torpor.__version__, platform.node(), dict(settings))


def remove_left_copies(home: Path) -> None:
    """Remove copies of a database that a program which was killed has left."""
    for left in home.glob(f"{DIRECTORY}*"):
        shutil.rmtree(left, ignore_errors=True)
