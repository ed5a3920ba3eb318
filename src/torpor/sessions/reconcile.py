"""Bringing together what was meant and what runs, after this program was gone.

What runs is read from the host, what was meant from the database. Both are looked through once, at
the start: an operation that was cut off is finished if the host had come so far, else undone;
machines and snapshots that nobody knows of are removed. What was done is told, session by session.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torpor.sessions.attachments import Attachments
from torpor.sessions.checkpoints import Checkpoints
from torpor.sessions.creation import Creation
from torpor.sessions.egress import Egress
from torpor.sessions.endings import Endings
from torpor.sessions.errors import SessionError
from torpor.sessions.events import Events
from torpor.sessions.hosts import (
    OPERATION,
    SESSION,
    End,
    Inventory,
    Kept,
    MachineHost,
    Running,
)
from torpor.sessions.lifecycle import Lifecycle
from torpor.sessions.model import SYSTEM
from torpor.sessions.room import Room
from torpor.sessions.snapshots import Snapshots
from torpor.sessions.standing import RUNS, Standing
from torpor.sessions.workspaces import Workspaces
from torpor.store import operations as operations_table
from torpor.store import sessions as sessions_table
from torpor.store import snapshots as snapshots_table
from torpor.store.database import Database, Transaction
from torpor.store.errors import NameTakenError
from torpor.store.records import Operation, Session, Status
from torpor.vm import VmError

MOVING = (*RUNS, Status.PROVISIONING, Status.DESTROYING)
"""The states of sessions whose records say what only their host knows: does it run, how far did it
come? Of the others nothing is looked at but what they stand on."""

LACKING = {
    Status.PAUSED: "in which it was paused",
    Status.PROVISIONING: "from which it was to start",
}
"""What the snapshot that a session stands on is to it, if it cannot go on without."""


@dataclass
class Report:
    """What was done, in words by session, and counted."""

    adopted: int = 0
    sessions: dict[str, list[str]] = field(default_factory=dict)
    machines: list[str] = field(default_factory=list)
    """Machines that no session had, and that were ended."""
    snapshots: list[str] = field(default_factory=list)
    """Snapshots that no session had, and that were removed."""
    workspaces: int = 0
    """Workspaces that were being made, and that were removed."""

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
            "workspaces_undone": self.workspaces,
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
        workspaces: Workspaces,
        attachments: Attachments,
        egress: Egress,
        me: str | None,
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
        self._workspaces = workspaces
        self._attachments = attachments
        self._egress = egress
        self._me = me
        self._report = Report()

    async def run(self) -> Report:
        """Reconcile, and tell it in an event."""
        async with self._database.read() as conn:
            unfinished = await operations_table.unfinished(conn, self._me)
            known = await snapshots_table.ids(conn)
        found = self._host.inventory()
        for operation in unfinished:
            session = await self._there(operation.session)
            if session is not None:
                if operation.kind == "exec":
                    continue  # its machine knows; it is asked when the command is asked for again
                await self._settle(operation, session, found.kept)
            await self._interrupted(operation)
        await self._check_snapshots(found.kept)
        async with self._database.read() as conn:
            moving = await sessions_table.with_status(conn, MOVING, self._me)
        new = [each for each in moving if await self._check(each, found.ended)]
        await self._egress.adopt([each for each in moving if self._standing.runs(each)])
        await self._end_strangers()
        await self._remove_strangers(known, found)
        await self._snapshots.tidy()
        self._report.workspaces = await self._workspaces.compare()
        await self._attachments.tidy()
        await self._events.add("server.reconciled", None, SYSTEM, **self._report.plain())
        if new:
            await self._creation.provision_anew(new, SYSTEM)
        return self._report

    async def _there(self, session: str | None) -> Session | None:
        """Return a session, None if it is gone for good or there never was one."""
        async with self._database.read() as conn:
            found = await sessions_table.get(conn, session or "")
        return None if found is None or found.status is Status.DESTROYED else found

    # Operations that were cut off

    async def _settle(
        self, operation: Operation, session: Session, kept: Mapping[str, Kept]
    ) -> None:
        """Finish an operation if the host had come to its end, else see that it is undone."""
        machine = self._machine_of(operation)
        snapshot = operation.plan.get("snapshot", "")
        match operation.kind:
            case "pause" if snapshot in kept and not self._standing.runs(session):
                await self._finish_pause(session, operation, kept[snapshot])
            case "checkpoint" if snapshot in kept and "snapshot_kind" in operation.plan:
                await self._finish_checkpoint(session, operation, snapshot)
            case "provision" | "resume" | "rollback" if machine is not None:
                with contextlib.suppress(NameTakenError):  # then nothing comes of it
                    await self._finish_start(session, operation, machine)
            case "destroy":
                await self._destroy(session)

    async def _destroy(self, session: Session) -> None:
        try:
            await self._lifecycle.destroy(session.id, SYSTEM)
        except SessionError as error:  # its workspace; that is tried again
            self._report.say(session.id, f"was being destroyed, and still is: {error}")
        else:
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
            changed = await sessions_table.update(
                conn,
                session.id,
                boot_id=machine.boot_id,
                pause_reason=None,
                failure=None,
                **changes,
            )
            await self._attachments.attached(conn, changed, machine, SYSTEM)
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

    async def _check_snapshots(self, kept: Mapping[str, Kept]) -> None:
        """Mark the snapshots that are gone, or were not durable when the host went down, as lost,
        and the sessions that cannot go on without them as failed."""
        async with self._database.read() as conn:
            ready = await snapshots_table.ready(conn, self._me)
        for snapshot in ready:
            error = await self._why_lost(snapshot, kept)
            if error is not None:
                await self._lost(snapshot, error)

    async def _why_lost(self, snapshot: str, kept: Mapping[str, Kept]) -> str | None:
        found = kept.get(snapshot) or self._host.found(snapshot)
        if found is None:
            return "its files are gone"
        if found.durable:
            return None
        try:
            await self._host.verify(snapshot)
        except (VmError, OSError) as error:
            return str(error)
        return None

    async def _lost(self, snapshot: str, error: str) -> None:
        async with self._database.write() as conn:
            row = await snapshots_table.update(conn, snapshot, status="LOST", error=error)
            owner = await sessions_table.get(conn, row.session)
            if owner is not None and owner.status is not Status.DESTROYED:
                await self._events.append(
                    conn, "snapshot.lost", row.session, SYSTEM, snapshot_id=row.id,
                    checkpoint_id=row.checkpoint, generation=row.generation, error=error,
                )  # fmt: skip
                self._report.say(row.session, f"snapshot {row.id} is lost: {error}")
            for session in await sessions_table.standing_on(conn, snapshot):
                if session.status in LACKING:
                    lacking = LACKING[session.status]
                    why = f"Snapshot {snapshot}, {lacking}, is lost."
                    await self._standing.note_failed(conn, session, why, SYSTEM)
                    self._report.say(session.id, f"failed: the snapshot {lacking} is lost")

    # Sessions

    async def _check(self, session: Session, ended: Mapping[str, End]) -> bool:
        """Make a session's record true; return whether it is to be started for the first time."""
        if session.status in RUNS:
            await self._check_running(session, ended)
        elif session.status is Status.PROVISIONING:
            self._report.say(session.id, "was being created: begun anew")
            return True
        elif session.status is Status.DESTROYING:
            await self._destroy(session)
        return False

    async def _check_running(self, session: Session, ended: Mapping[str, End]) -> None:
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

    async def _end_strangers(self) -> None:
        async with self._database.read() as conn:
            known = await sessions_table.machines(conn)
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

    async def _remove_strangers(self, known: set[str], found: Inventory) -> None:
        """Remove what is noted nowhere: ``known`` was when this program began, and what is not any
        more has been removed."""
        async with self._database.read() as conn:
            known = known | await snapshots_table.ids(conn)
            strangers = {
                name
                for name, kept in found.kept.items()
                if name not in known and await self._left_over(conn, kept)
            }
        # One that cannot be read keeps the host from removing the files that only it may need.
        for snapshot in strangers | (set(found.unreadable) - known):
            with contextlib.suppress(VmError, OSError):
                await self._host.remove(snapshot)
            self._report.snapshots.append(snapshot)
