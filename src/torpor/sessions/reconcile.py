"""Bringing together what was meant and what runs, after this program was gone.

What runs is read from the host, what was meant from the database. Each session is looked at once,
at the start: an operation that was cut off is finished if the host had come so far, else undone;
machines and snapshots that nobody knows of are removed. What was done is told, session by session.
"""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torpor.sessions.checkpoints import Checkpoints
from torpor.sessions.creation import Creation
from torpor.sessions.endings import Endings
from torpor.sessions.events import Events
from torpor.sessions.hosts import (
    OPERATION,
    SESSION,
    End,
    Kept,
    MachineHost,
    Running,
    StartEvent,
)
from torpor.sessions.lifecycle import Lifecycle
from torpor.sessions.model import SYSTEM
from torpor.sessions.room import Room
from torpor.sessions.snapshots import Snapshots
from torpor.sessions.standing import RUNS, Standing
from torpor.store import operations as operations_table
from torpor.store import sessions as sessions_table
from torpor.store import snapshots as snapshots_table
from torpor.store.database import Database, Transaction
from torpor.store.errors import NameTakenError
from torpor.store.records import Operation, Session, Snapshot, Status
from torpor.vm import VmError


@dataclass
class Report:
    """What was done, in words by session, and counted."""

    adopted: int = 0
    sessions: dict[str, list[str]] = field(default_factory=dict)
    machines: list[str] = field(default_factory=list)
    """Machines that no session had, and that were ended."""
    snapshots: list[str] = field(default_factory=list)
    """Snapshots that no session had, and that were removed."""

    def say(self, session: str, what: str) -> None:
        """Note something that was done about a session."""
        self.sessions.setdefault(session, []).append(what)

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "adopted": self.adopted,
            "sessions": self.sessions,
            "machines_ended": self.machines,
            "snapshots_removed": self.snapshots,
        }


class Reconciler:
    """Goes through all sessions once."""

    def __init__(
        self,
        database: Database,
        host: MachineHost,
        events: Events,
        snapshots: Snapshots,
        room: Room,
        standing: Standing,
        endings: Endings,
        creation: Creation,
        lifecycle: Lifecycle,
        checkpoints: Checkpoints,
    ) -> None:
        self._database = database
        self._host = host
        self._events = events
        self._snapshots = snapshots
        self._room = room
        self._standing = standing
        self._endings = endings
        self._creation = creation
        self._lifecycle = lifecycle
        self._checkpoints = checkpoints
        self._report = Report()

    async def run(self) -> Report:
        """Reconcile, and tell it in an event."""
        async with self._database.read() as conn:
            unfinished = await operations_table.unfinished(conn)
            there = {session.id: session for session in await sessions_table.live(conn)}
            rows = await snapshots_table.of_all(conn)
        kept, ended = self._host.kept(), self._host.ended()
        for operation in unfinished:
            if operation.session in there:
                await self._settle(operation, kept)
            await self._interrupted(operation)
        async with self._database.read() as conn:
            there = {session.id: session for session in await sessions_table.live(conn)}
            rows = await snapshots_table.of_all(conn)
        lost = await self._check_snapshots(there, rows, kept)
        new = [each for each in there.values() if await self._check(each, ended, lost)]
        await self._end_strangers(there)
        await self._remove_strangers(rows, kept)
        await self._snapshots.tidy()
        await self._events.add("server.reconciled", None, SYSTEM, **self._report.plain())
        for session in new:
            self._room.adopt(session.id)
            event: StartEvent = "create" if session.parent is None else "fork"
            self._creation.provision(session.id, SYSTEM, event)
        return self._report

    # Operations that were cut off

    async def _settle(self, operation: Operation, kept: dict[str, Kept]) -> None:
        """Finish an operation if the host had come to its end, else see that it is undone."""
        assert operation.session is not None
        session = await self._standing.get(operation.session)
        machine = self._machine_of(operation)
        snapshot = operation.plan.get("snapshot")
        match operation.kind:
            case "pause" if snapshot in kept and not self._standing.runs(session):
                await self._finish_pause(session, operation, kept[snapshot])
            case "checkpoint" if snapshot in kept and "snapshot_kind" in operation.plan:
                await self._finish_checkpoint(session, operation, snapshot)
            case "provision" | "resume" | "rollback" if machine is not None:
                with contextlib.suppress(NameTakenError):  # then nothing comes of it
                    await self._finish_start(session, operation, machine)
            case "destroy":
                await self._lifecycle.destroy(session.id, SYSTEM)
                self._report.say(session.id, "was being destroyed: finished")

    def _machine_of(self, operation: Operation) -> Running | None:
        for running in self._host.running().values():
            if running.labels.get(OPERATION) == operation.id:
                return running
        return None

    async def _finish_pause(self, session: Session, operation: Operation, made: Kept) -> None:
        async with self._database.write() as conn:
            if await snapshots_table.get(conn, made.id) is not None:
                return
            row = await self._snapshots.note(conn, session, made, "pause")
            await self._standing.note_paused(
                conn, session, row, SYSTEM, operation.plan.get("reason", "manual")
            )
            await operations_table.finish(conn, operation.id, "done", {"snapshot": made.id})
        self._report.say(session.id, "was being paused: its snapshot is whole, it is paused")

    async def _finish_checkpoint(
        self, session: Session, operation: Operation, snapshot: str
    ) -> None:
        async with self._database.write() as conn:
            if await snapshots_table.get(conn, snapshot) is not None:
                return
            row = await self._checkpoints.note(conn, session, snapshot, SYSTEM, operation.plan)
            result = {"checkpoint": row.checkpoint, "snapshot": snapshot}
            await operations_table.finish(conn, operation.id, "done", result)
        self._report.say(session.id, f"checkpoint {row.checkpoint} was being made: it is whole")

    async def _finish_start(self, session: Session, operation: Operation, machine: Running) -> None:
        """A machine that runs for an operation is what the session was to have."""
        old = session.machine if session.machine != machine.id else None
        changes: dict[str, Any] = {"status": Status.READY, "machine": machine.id}
        if operation.kind != "provision":
            changes |= {
                "snapshot": operation.plan["snapshot"],
                "generation": operation.plan["generation"],
            }
        async with self._database.write() as conn:
            await sessions_table.update(
                conn,
                session.id,
                boot_id=machine.boot_id,
                pause_reason=None,
                failure=None,
                **changes,
            )
            name = {"provision": "ready", "resume": "resumed"}.get(operation.kind, "rolled_back")
            await self._events.append(
                conn, f"session.{name}", session.id, SYSTEM, boot_id=machine.boot_id
            )
            await operations_table.finish(conn, operation.id, "done", {"machine": machine.id})
        if old is not None:
            await self._endings.end(old, session.id)
        self._report.say(session.id, f"{operation.kind} was under way: its machine runs")

    async def _interrupted(self, operation: Operation) -> None:
        """Note that an operation came to nothing, unless it was finished."""
        async with self._database.write() as conn:
            found = await operations_table.get(conn, operation.id)
            if found is None or found.state != "started":
                return
            error = "The server ended while it was under way; nothing of it is left."
            await operations_table.finish(conn, operation.id, "interrupted", error=error)
            await self._events.append(
                conn, "operation.interrupted", operation.session, SYSTEM,
                operation=operation.id, kind=operation.kind,
            )  # fmt: skip
        if operation.session is not None:
            self._report.say(operation.session, f"{operation.kind} was cut off: undone")

    # Snapshots

    async def _check_snapshots(
        self, there: dict[str, Session], rows: Iterable[Snapshot], kept: dict[str, Kept]
    ) -> set[str]:
        """Mark the snapshots that are gone, or were not durable when the host went down, as lost;
        return their ids."""
        lost = set()
        for row in rows:
            error = await self._why_lost(row, kept)
            if error is None:
                continue
            lost.add(row.id)
            async with self._database.write() as conn:
                await snapshots_table.update(conn, row.id, status="LOST", error=error)
                if row.session in there:
                    await self._events.append(
                        conn, "snapshot.lost", row.session, SYSTEM, snapshot_id=row.id,
                        checkpoint_id=row.checkpoint, generation=row.generation, error=error,
                    )  # fmt: skip
            if row.session in there:
                self._report.say(row.session, f"snapshot {row.id} is lost: {error}")
        return lost

    async def _why_lost(self, row: Snapshot, kept: dict[str, Kept]) -> str | None:
        if row.status != "READY":
            return None
        found = kept.get(row.id) or self._host.found(row.id)
        if found is None:
            return "its files are gone"
        if found.durable:
            return None
        try:
            await self._host.verify(row.id)
        except (VmError, OSError) as error:
            return str(error)
        return None

    # Sessions

    async def _check(self, session: Session, ended: dict[str, End], lost: set[str]) -> bool:
        """Make a session's record true; return whether it is to be started for the first time."""
        if session.status in RUNS:
            await self._check_running(session, ended)
        elif session.status is Status.PAUSED and session.snapshot in lost:
            why = f"Snapshot {session.snapshot}, in which it was paused, is lost."
            await self._standing.fail(session.id, why, SYSTEM)
            self._report.say(session.id, "failed: the snapshot in which it was paused is lost")
        elif session.status is Status.PROVISIONING:
            if session.snapshot in lost:
                why = f"Snapshot {session.snapshot}, from which it was to start, is lost."
                await self._standing.fail(session.id, why, SYSTEM)
                return False
            self._report.say(session.id, "was being created: begun anew")
            return True
        elif session.status is Status.DESTROYING:
            await self._lifecycle.destroy(session.id, SYSTEM)
            self._report.say(session.id, "was being destroyed: finished")
        return False

    async def _check_running(self, session: Session, ended: dict[str, End]) -> None:
        running = self._host.running().get(session.machine or "")
        if running is not None:
            self._report.adopted += 1
            self._room.adopt(session.id)
            if running.boot_id != session.boot_id:
                async with self._database.write() as conn:
                    await sessions_table.update(conn, session.id, boot_id=running.boot_id)
                    await self._events.append(
                        conn, "session.rebooted", session.id, SYSTEM, boot_id=running.boot_id
                    )
            return
        end = ended.get(session.machine or "") or End(
            session.machine or "", "", "Its machine is gone: the host was restarted.", None
        )
        await self._standing.lost(session, end)
        self._report.say(session.id, f"its machine is gone: {end.why}")

    # What nobody knows of

    async def _end_strangers(self, there: dict[str, Session]) -> None:
        async with self._database.read() as conn:
            known = {session.machine for session in await sessions_table.live(conn)}
        for running in list(self._host.running().values()):
            if SESSION in running.labels and running.id not in known:
                await self._endings.end(running.id, await self._known(running.labels[SESSION]))
                self._report.machines.append(running.id)

    async def _known(self, session: str) -> str | None:
        """Return a session that the database knows, None for any other."""
        async with self._database.read() as conn:
            return session if await sessions_table.get(conn, session) is not None else None

    async def _left_over(self, conn: Transaction, found: Kept) -> bool:
        """Return whether a snapshot that is noted nowhere is what a crash has left: of an operation
        that came to nothing, or of a session that is gone. Any other was brought here by somebody,
        or is from before this database was: it is not ours to remove."""
        operation = await operations_table.get(conn, found.labels.get(OPERATION, ""))
        if operation is not None and operation.state != "done":
            return True
        session = await sessions_table.get(conn, found.labels[SESSION])
        return session is not None and session.status is Status.DESTROYED

    async def _remove_strangers(self, rows: Iterable[Snapshot], kept: dict[str, Kept]) -> None:
        async with self._database.read() as conn:
            known = {row.id for row in await snapshots_table.of_all(conn)}
            strangers = {
                name
                for name, found in kept.items()
                if name not in known and await self._left_over(conn, found)
            }
        # One that cannot be read keeps the host from removing the files that only it may need.
        for snapshot in strangers | (set(self._host.unreadable()) - known):
            with contextlib.suppress(VmError, OSError):
                await self._host.remove(snapshot)
            self._report.snapshots.append(snapshot)
