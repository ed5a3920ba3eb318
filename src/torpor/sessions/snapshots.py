"""The snapshots of sessions: noted, made durable, and removed when nothing needs them.

A snapshot is needed while a session stands on it, while users may go back to it (a checkpoint of a
session that is there), and while a failed session may be recovered from it
(:mod:`torpor.store.snapshots`).
"""

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from typing import Any

from torpor.sessions.attachments import note_saved
from torpor.sessions.errors import FailedError, failed
from torpor.sessions.events import Events
from torpor.sessions.hosts import Kept, MachineHost
from torpor.sessions.model import SYSTEM, now
from torpor.sessions.tasks import Tasks
from torpor.store import events as events_table
from torpor.store import snapshots as table
from torpor.store.database import Database, Transaction
from torpor.store.records import Session, Snapshot, SnapshotKind
from torpor.vm import SnapshotError, VmError

logger = logging.getLogger("torpor.sessions")


def checkpoint_id() -> str:
    """Return a new id for a checkpoint."""
    return f"cp_{secrets.token_hex(8)}"


class Snapshots:
    """The snapshots of all sessions on one host."""

    def __init__(self, database: Database, host: MachineHost, events: Events, tasks: Tasks) -> None:
        self._database = database
        self._host = host
        self._events = events
        self._tasks = tasks
        self._releasing = asyncio.Lock()
        self._held: Counter[str] = Counter()

    async def note(
        self,
        conn: Transaction,
        session: Session,
        kept: Kept,
        kind: SnapshotKind,
        *,
        label: str = "",
        checkpoint: str | None = None,
    ) -> Snapshot:
        """Note a snapshot that a session has just got: the next generation of it."""
        snapshot = Snapshot(
            id=kept.id,
            session=session.id,
            kind=kind,
            generation=session.generation + 1,
            created_at=now(),
            checkpoint=checkpoint,
            label=label,
            parent=session.snapshot,
            event=await events_table.last_of(conn, session.id),
            stored_bytes=kept.stored_bytes,
            durable=kept.durable,
            workspace=kept.disk,
        )
        await table.insert(conn, snapshot)
        if kept.disk is not None and kept.disk == session.workspace:
            await note_saved(conn, self._host, kept.disk)
        return snapshot

    def settle(self, snapshot: str, *superseded: str | None) -> None:
        """Have a snapshot become durable in the background; then remove those that it supersedes,
        if nothing else needs them."""
        self._tasks.background(self._settle(snapshot, superseded), f"settling snapshot {snapshot}")

    async def _settle(self, snapshot: str, superseded: Iterable[str | None]) -> None:
        with contextlib.suppress(FailedError):  # it has been told, and is tried again
            await self.durable(snapshot, hurry=False)
            await self.release(*filter(None, superseded))

    async def durable(self, snapshot: str, *, hurry: bool = True) -> None:
        """Return when a snapshot survives a power cut. Raises :exc:`FailedError`."""
        try:
            await self._host.durable(snapshot, hurry=hurry)
        except (VmError, OSError) as error:
            row = await self._row(snapshot)
            if row is None:  # it was removed in the meantime
                return
            await self._events.add(
                "snapshot.not_durable", row.session, SYSTEM, snapshot_id=snapshot, error=str(error)
            )
            raise failed(
                error,
                f"Snapshot {snapshot} could not be made durable",
                state="It can be resumed as long as this host stays up; it is tried again every"
                " minute.",
            ) from error
        async with self._database.write() as conn:
            row = await table.get(conn, snapshot)
            if row is not None and not row.durable:
                await table.update(conn, snapshot, durable=True)

    async def _row(self, snapshot: str) -> Snapshot | None:
        async with self._database.read() as conn:
            return await table.get(conn, snapshot)

    async def release(self, *candidates: str) -> list[str]:
        """Remove those of the snapshots that nothing needs; return their ids."""
        released = []
        for snapshot in candidates:
            async with self._releasing:
                if self._held[snapshot]:
                    continue
                async with self._database.read() as conn:
                    if not await table.unneeded(conn, (snapshot,)):
                        continue
                # Its row goes last: after a crash in between, the next start finds it.
                await self._remove(snapshot)
                async with self._database.write() as conn:
                    await table.remove(conn, snapshot)
                released.append(snapshot)
        return released

    async def release_all(self) -> None:
        """Remove all snapshots that nothing needs."""
        async with self._database.read() as conn:
            found = await table.unneeded(conn)
        await self.release(*found)

    async def _remove(self, snapshot: str) -> None:
        try:
            await self._host.remove(snapshot)
        except SnapshotError as error:
            logger.warning("snapshot %s stays for now: %s", snapshot, error)

    @asynccontextmanager
    async def held(self, note: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """Keep all snapshots that there are when ``note`` is awaited until the block ends, whether
        or not anything needs them then."""
        async with self._releasing:
            await note()
            async with self._database.read() as conn:
                held = await table.ids(conn)
            self._held.update(held)
        try:
            yield
        finally:
            self._let_go(held)

    @asynccontextmanager
    async def held_one(self, snapshot: str) -> AsyncIterator[Snapshot | None]:
        """Keep one snapshot until the block ends, whether or not anything needs it; None if it is
        gone. One that is just being removed is waited for, and gone then."""
        async with self._releasing:
            row = await self._row(snapshot)
            self._held[snapshot] += 1
        try:
            yield row
        finally:
            self._let_go((snapshot,))

    def _let_go(self, held: Collection[str]) -> None:
        self._held.subtract(held)
        self._held = +self._held
        self._tasks.background(self.release_all(), "removing what was held and is not needed")

    async def release_all_of(self, session: str) -> None:
        """Remove those of a session's snapshots that nothing needs."""
        async with self._database.read() as conn:
            rows = await table.of_session(conn, session)
        await self.release(*(row.id for row in rows))

    async def tidy(self) -> None:
        """Try again what could not be done: make durable what is not, remove what nothing needs."""
        async with self._database.read() as conn:
            ready = await table.ready(conn)
        for snapshot, durable in ready.items():
            if not durable:
                with contextlib.suppress(FailedError):
                    await self.durable(snapshot)
        await self.release_all()


def described(row: Snapshot) -> dict[str, Any]:
    """Return in plain data what a session can be recovered from."""
    return {
        "snapshot_id": row.id,
        "checkpoint_id": row.checkpoint,
        "kind": row.kind,
        "generation": row.generation,
        "created_at": row.created_at.isoformat(),
        "durable": row.durable,
        "status": row.status,
    }
