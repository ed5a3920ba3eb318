"""Restore: a backup -> the home of a server, whole or not at all.

1. Everything is unpacked into a directory beside what will be (``staging.py``), and checked there.
2. The database is made true: sessions that ran are paused in what was saved of them.
3. It is noted that everything is there; then it is moved to its place.
"""

import os
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from pydantic import TypeAdapter

from torpor.backup.contents import About, NamedImage, SavedDisk, Summary, saved
from torpor.backup.disks import place_disk
from torpor.backup.errors import BackupError, wrong
from torpor.backup.reading import Taken, pieces_of, read_backup
from torpor.backup.staging import DATABASE, SECRET, Staging, check_empty
from torpor.images.names import Names
from torpor.sessions.events import Events
from torpor.sessions.model import SYSTEM
from torpor.store import bearer, hosts, tokens
from torpor.store import sessions as sessions_table
from torpor.store import snapshots as snapshots_table
from torpor.store.database import Database, Transaction
from torpor.store.offline import url_of
from torpor.store.records import Session, Snapshot, Status, Token
from torpor.vm import SnapshotError
from torpor.vm.base import count_and_digest
from torpor.vm.export import Report, silent
from torpor.vm.exported import File
from torpor.vm.home import locked
from torpor.vm.importing import import_snapshot
from torpor.vm.piece_writer import PieceWriter
from torpor.vm.stoppable import stoppable
from torpor.vm.store import Store

RESTORED = "restored"
"""The reason for which a session is paused that ran when the backup was made."""


@dataclass(frozen=True)
class Restored:
    """What was restored. ``earlier``: an earlier restore had brought all of it, and only its last
    step was done."""

    about: About
    summary: Summary
    earlier: bool = False


async def restore(
    source: BinaryIO, home: Path, database: str, *, report: Report = silent
) -> Restored:
    """Restore a backup into an empty home, and its database to the URL ``database``, where there is
    none yet, or an empty one.

    A token for an admin is left in the home, as the first start of a server does. Raises
    :exc:`BackupError`, :exc:`torpor.vm.VmError`, :exc:`torpor.store.errors.StoreError` and OSError;
    nothing of the backup is there then.
    """
    async with locked(home):
        staging = Staging(home, database)
        if staging.complete:
            told = TypeAdapter(tuple[About, Summary]).validate_json(staging.told())
            await staging.finish()
            return Restored(*told, earlier=True)
        await check_empty(home, database)
        staging.begin()
        try:
            unpack = _Unpacking(staging.directory, report)
            told = await stoppable(lambda check: unpack.run(source, check))
            await _make_true(staging.directory, *told)
            staging.seal(TypeAdapter(tuple[About, Summary]).dump_json(told))
        except SnapshotError as error:
            raise BackupError(
                f"The backup cannot be restored: {error.happened}",
                state="Nothing of it is left here.",
                todo="Use another backup.",
            ) from error
        finally:
            staging.abandon()
        await staging.finish()
        return Restored(*told)


class _Unpacking:
    """Takes what is in a backup into a directory."""

    def __init__(self, directory: Path, report: Report) -> None:
        self._directory = directory
        self._report = report
        self._check: Callable[[], None] = lambda: None
        self._store = Store(directory)
        self._names = Names(directory)

    def run(self, source: BinaryIO, check: Callable[[], None]) -> tuple[About, Summary]:
        """Read the whole backup. Blocks."""
        self._check = check
        file = os.open(
            self._directory / DATABASE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )
        with open(file, "wb") as database:
            taken = Taken(database.write, self._snapshot, self._disk, self._image)
            return read_backup(source, taken)

    def _snapshot(self, content: BinaryIO) -> str:
        made = import_snapshot(
            self._store, content, report=self._report, check=self._check, everywhere=False, own=True
        )
        return made.manifest.id

    def _disk(self, found: SavedDisk, content: BinaryIO) -> None:
        self._check()
        self._report(f"disk {found.id}", 0, sum(file.blocks for file in found.files))
        places = self._received(found.files, f"disk {found.id}", content)
        place_disk(self._store, found, places)

    def _image(self, found: NamedImage, content: BinaryIO) -> None:
        self._check()
        self._report(f"image {found.record.name}", 0, found.disk.blocks)
        disk, place = found.disk, self._store.root / found.disk.name
        if "/" not in disk.name or place.name != f"{disk.sha256}.raw":
            raise wrong(f"the disk of the image {found.record.name} has an odd name")
        received = self._received((disk,), f"the disk of the image {found.record.name}", content)
        place = received.get(0, place)
        with open(place, "rb", buffering=0) as opened:
            if count_and_digest(opened.fileno()) != (disk.blocks, disk.sha256):
                raise wrong(f"the disk of the image {found.record.name} is not what was saved")
        self._names.put(found.record, place, replace=False)
        if not disk.left_out:
            place.unlink()

    def _received(self, files: tuple[File, ...], what: str, content: BinaryIO) -> dict[int, Path]:
        """Write the pieces of files, and return where each is, by its number; those that were left
        out are nowhere."""
        places = {
            number: self._directory / f"arriving-{number}"
            for number, file in enumerate(files)
            if not file.left_out
        }
        with ExitStack() as stack:
            fds = {}
            for number, place in places.items():
                flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
                fds[number] = os.open(place, flags, 0o644)
                stack.callback(os.close, fds[number])
                os.ftruncate(fds[number], files[number].size)
            with PieceWriter(fds, files, self._directory) as writer:
                for number, (piece, packed) in enumerate(pieces_of(files, what, content), 1):
                    self._check()
                    writer.take(piece, packed, number, write=True)
        (self._directory / "progress").unlink(missing_ok=True)
        return places


async def _make_true(directory: Path, about: About, summary: Summary) -> None:
    """Bring the database to what has come of the rest, and leave a token for an admin."""
    async with AsyncExitStack() as stack:
        database = await Database.open(url_of(directory / DATABASE))
        stack.push_async_callback(database.close)
        async with database.read() as conn:
            live = await sessions_table.live(conn)
            rows = await snapshots_table.of_all(conn)
        events = Events(database)
        there = {row.id: row for row in rows if row.id in summary.snapshots}
        secret = bearer.new_token()
        async with database.write() as conn:
            await hosts.forget_all(conn)  # the first server that is started takes it all
            await _snapshots(conn, rows, there)
            for session in live:
                await _session(conn, events, session, there)
            token = Token(secret.id, RESTORED, "admin", secret.sha256, datetime.now(UTC))
            await tokens.insert(conn, token)
            await events.append(
                conn, "server.restored", None, SYSTEM, made_at=about.created_at.isoformat(),
                made_on=about.host, sessions=len(live), missing=len(summary.missing),
            )  # fmt: skip
    file = os.open(directory / SECRET, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with open(file, "w") as opened:
        opened.write(secret.text + "\n")


async def _snapshots(conn: Transaction, rows: list[Snapshot], there: dict[str, Snapshot]) -> None:
    """Have the database name those snapshots that came; those that were lost before stay told."""
    for row in rows:
        if row.id in there:
            if not row.durable:
                await snapshots_table.update(conn, row.id, durable=True)
        elif row.status == "READY":
            await snapshots_table.remove(conn, row.id)


async def _session(
    conn: Transaction, events: Events, session: Session, there: dict[str, Snapshot]
) -> None:
    """Have a session be what it can be here."""
    told = saved(session, there)
    if told.becomes == "paused":
        if session.status is not Status.PAUSED:
            await sessions_table.update(
                conn, session.id, status=Status.PAUSED, machine=None, pause_reason=RESTORED
            )
    elif told.becomes == "failed":
        if session.status is not Status.FAILED:
            why = f"It was restored from a backup: {told.why}."
            await sessions_table.update(
                conn, session.id, status=Status.FAILED, machine=None, snapshot=None, failure=why
            )
    else:
        return  # the first start begins it anew, or finishes it
    await events.append(
        conn, "session.restored", session.id, SYSTEM, was=session.status, becomes=told.becomes,
        snapshot_id=told.snapshot,
        saved_at=told.saved_at.isoformat() if told.saved_at is not None else None,
    )  # fmt: skip
