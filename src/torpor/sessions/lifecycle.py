"""The life of a session: created, paused, resumed, ended by itself, destroyed.

Each operation: it waits for its turn, is noted, done on the host, and then written down in one
transaction with its event. A crash in between leaves a note, from which :mod:`reconcile
<torpor.sessions.reconcile>` goes on.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from torpor.images import ImageError
from torpor.sessions.errors import (
    ConflictError,
    DestroyedError,
    FailedError,
    InvalidError,
    NotFoundError,
    SessionError,
)
from torpor.sessions.events import Events
from torpor.sessions.hosts import SESSION, End, MachineHost, Running, StartEvent
from torpor.sessions.lives import Lives
from torpor.sessions.model import SYSTEM, Actor, Key, NewSession, check_new, new_session_id, now
from torpor.sessions.operations import Noted, Operations
from torpor.sessions.room import Room
from torpor.sessions.snapshots import Snapshots, checkpoint_id
from torpor.sessions.tasks import Tasks
from torpor.store import operations as operations_table
from torpor.store import sessions
from torpor.store import snapshots as snapshots_table
from torpor.store.database import Database, Transaction
from torpor.store.errors import NameTakenError, StoreError
from torpor.store.records import Operation, Session, Snapshot, Status
from torpor.vm import VmError
from torpor.vm.new_snapshot import new_id

RUNS = (Status.READY, Status.DETACHED)
IDLE = "idle"
"""The reason of a pause that nobody asked for: it is not done if somebody uses the session now."""
STOP = "server_stop"
"""The reason of the pauses with which a server ends that is to freeze what runs."""
GONE = (Status.DESTROYED, Status.DESTROYING)
AT_ONCE = 4
"""Machines that are started at the same time; more would only wait for each other."""


@dataclass(frozen=True)
class Defaults:
    """What a session is when nothing else is asked for. ``idle_timeout`` is in seconds, 0 for
    never. ``most_sessions`` may be there at the same time, paused ones too."""

    image: str = "default"
    size: str = "mars-2vcpu-1gb"
    idle_timeout: int = 900
    most_sessions: int = 10_000


class Lifecycle:
    """Changes the states of sessions."""

    def __init__(
        self,
        database: Database,
        host: MachineHost,
        events: Events,
        operations: Operations,
        snapshots: Snapshots,
        room: Room,
        lives: Lives,
        tasks: Tasks,
        defaults: Defaults,
    ) -> None:
        self._database = database
        self._host = host
        self._events = events
        self._operations = operations
        self._snapshots = snapshots
        self._room = room
        self._lives = lives
        self._tasks = tasks
        self.defaults = defaults
        self._starting = asyncio.Semaphore(AT_ONCE)
        self._provisioning: set[asyncio.Task[None]] = set()

    async def get(self, session: str) -> Session:
        """Return a session by its id. Raises :exc:`NotFoundError`."""
        async with self._database.read() as conn:
            found = await sessions.get(conn, session)
        if found is None:
            raise no_session(session)
        return found

    # Create

    async def create(self, new: NewSession, by: Actor, key: Key | None) -> Session:
        """Note a new session, and begin to start it. Raises :exc:`InvalidError`,
        :exc:`ConflictError` if its name is taken, :exc:`NoRoomError`."""
        check_new(new)
        self._check_image(new.image or self.defaults.image)
        return await self._operations.once(
            "create", by, key, lambda: self._create(new, by, key), self._created
        )

    async def _created(self, operation: Operation) -> Session:
        return await self.get(operation.session or "")

    def _check_image(self, image: str) -> None:
        try:
            self._host.check_image(image)
        except ImageError as error:
            raise InvalidError(str(error)) from error

    async def _create(self, new: NewSession, by: Actor, key: Key | None) -> Session:
        moment = now()
        session = Session(
            id=new_session_id(),
            name=new.name or invented_name(moment),
            status=Status.PROVISIONING,
            image=new.image or self.defaults.image,
            size=new.size or self.defaults.size,
            created_at=moment,
            updated_at=moment,
            used_at=moment,
            created_by=by.id,
            env=dict(new.env),
            labels=dict(new.labels),
            metadata=dict(new.metadata),
            idle_timeout=new.idle_timeout,
            keep_warm=new.keep_warm,
        )
        self._room.take(session.id, None)
        try:
            operation = self._operations.new("create", by, session.id, key)
            async with self._database.write() as conn:
                await self.check_room_for(conn, 1)
                await insert_named(conn, session)
                await operations_table.begin(conn, operation)
                await self._events.append(
                    conn, "session.created", session.id, by, name=session.name,
                    image=session.image, size=session.size,
                )  # fmt: skip
                # The session is noted: that is what was asked for. Its start is the server's own.
                await operations_table.finish(conn, operation.id, "done", {"session": session.id})
        except BaseException:
            self._room.give_back(session.id)
            raise
        self._events.tell(session.id)
        self.provision(session.id, by)
        return session

    async def check_room_for(self, conn: Transaction, count: int) -> None:
        """Raise :exc:`ConflictError` if there may not be so many more sessions."""
        counts = await sessions.counts(conn)
        there = sum(number for status, number in counts.items() if status not in GONE)
        if there + count > self.defaults.most_sessions:
            raise ConflictError(
                f"There are {there} sessions, and at most {self.defaults.most_sessions} may be.",
                state="Nothing was created.",
                todo="Remove some, or raise max_sessions in the settings.",
            )

    def provision(self, session: str, by: Actor, event: StartEvent = "create") -> None:
        """Begin to start a session for the first time, with room taken for it already."""
        task = self._tasks.background(
            self._provision(session, by, event), f"provisioning {session}"
        )
        self._lives.of(session).provisioning = task
        self._provisioning.add(task)
        task.add_done_callback(self._provisioning.discard)

    async def stop_provisioning(self) -> None:
        """Cut off all starts of new sessions: an image may take minutes to be made. The next
        program begins them anew."""
        for task in self._provisioning:
            task.cancel()
        await asyncio.gather(*self._provisioning, return_exceptions=True)

    async def _provision(self, session_id: str, by: Actor, event: StartEvent) -> None:
        async with self._lives.of(session_id).turn("create"):
            session = await self.get(session_id)
            if session.status is not Status.PROVISIONING:
                return  # destroyed before its turn came
            try:
                async with self._operations.noted("provision", by, session_id) as noted:
                    await self._start_first(session, noted, by, event)
            except (SessionError, VmError, ImageError, OSError) as error:
                await self.fail(session_id, f"It could not be started: {error}", by)

    async def _start_first(
        self, session: Session, noted: Noted, by: Actor, event: StartEvent
    ) -> None:
        snapshot, defaults = session.snapshot, session.defaults
        if snapshot is None:

            async def report(step: str) -> None:
                await self._events.add("session.progress", session.id, SYSTEM, step=step)

            found = await self._host.image_start(session.image, session.size, report)
            snapshot, defaults = found.snapshot, found.defaults
        async with self._starting:
            running = await self._host.start(snapshot, noted.labels, event, session.name)
        await self.started(session, running, noted, by, "session.ready", defaults=defaults)

    async def started(
        self,
        session: Session,
        running: Running,
        noted: Noted,
        by: Actor,
        event: str,
        *,
        result: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> Session:
        """Write down that a session's machine runs, what else has changed, and the operation's
        ``result``; if that cannot be, the machine is ended."""
        try:
            async with self._database.write() as conn:
                changed = await sessions.update(
                    conn,
                    session.id,
                    status=Status.READY,
                    machine=running.id,
                    boot_id=running.boot_id,
                    pause_reason=None,
                    failure=None,
                    **changes,
                )
                await self._events.append(
                    conn, event, session.id, by, boot_id=running.boot_id,
                    generation=changed.generation, snapshot_id=changed.snapshot,
                )  # fmt: skip
                await noted.done(conn, machine=running.id, **(result or {}))
        except NameTakenError as error:
            await self._end_unless_noted(session, running)
            raise name_taken(session.name) from error
        except (Exception, asyncio.CancelledError):
            await self._end_unless_noted(session, running)
            raise
        self._lives.of(session.id).touch()
        self._events.tell(session.id)
        return changed

    async def _end_unless_noted(self, session: Session, running: Running) -> None:
        # Who was cancelled does not know whether the commit came to its end.
        with contextlib.suppress(StoreError, VmError, OSError):
            if (await self.get(session.id)).machine != running.id:
                await self._host.end(running.id)

    # Pause

    async def pause(
        self, session: str, by: Actor, *, durable: bool, reason: str, key: Key | None
    ) -> Session:
        """Freeze a session and stop its machine; one that is paused is left as it is.

        Raises :exc:`ConflictError`, and :exc:`FailedError`, the session running on.
        """
        paused = await self._operations.once(
            f"pausing {session}",
            by,
            key,
            lambda: self._pause(session, by, reason, key),
            lambda _: self.get(session),
        )
        if durable and paused.snapshot is not None:  # asked for again, it is seen to again
            await self._snapshots.durable(paused.snapshot)
        return paused

    async def _pause(self, session_id: str, by: Actor, reason: str, key: Key | None) -> Session:
        async with self._lives.of(session_id).turn("pause"):
            session = await self.get(session_id)
            if reason == IDLE and self._lives.of(session_id).uses:
                return session
            if session.status is not Status.PAUSED:
                check_runs(session, "paused")
                if session.keep_warm and reason != STOP:
                    raise ConflictError(
                        f"Session {session.name} is kept warm.",
                        state="It runs on.",
                        todo="Set keep_warm to false first.",
                    )
                session = await self._freeze_and_stop(session, by, reason, key)
        return session

    async def _freeze_and_stop(
        self, session: Session, by: Actor, reason: str, key: Key | None
    ) -> Session:
        assert session.machine is not None
        snapshot = new_id()
        async with self._operations.noted(
            "pause", by, session.id, key, snapshot=snapshot, reason=reason
        ) as noted:
            try:
                kept = await self._host.freeze(session.machine, snapshot, noted.labels, stop=True)
            except (VmError, OSError) as error:
                raise FailedError(
                    f"Session {session.name} could not be paused: {error}",
                    state="Nothing of it was changed." if self.runs(session) else "It has ended.",
                ) from error

            async def write(conn: Transaction) -> Session:
                row = await self._snapshots.note(conn, session, kept, "pause")
                await noted.done(conn, snapshot=snapshot)
                return await self.note_paused(conn, session, row, by, reason)

            paused = await self._operations.written(write, noted)
        self._room.give_back(session.id)
        self._events.tell(session.id)
        self._snapshots.settle(snapshot, session.snapshot)
        return paused

    async def note_paused(
        self, conn: Transaction, session: Session, row: Snapshot, by: Actor, reason: str
    ) -> Session:
        """Write down that a session is paused in a snapshot."""
        await self._events.append(
            conn, "session.paused", session.id, by, reason=reason, snapshot_id=row.id,
            generation=row.generation, stored_bytes=row.stored_bytes,
        )  # fmt: skip
        return await sessions.update(
            conn,
            session.id,
            status=Status.PAUSED,
            machine=None,
            snapshot=row.id,
            generation=row.generation,
            pause_reason=reason,
            failure=None,
        )

    def runs(self, session: Session) -> bool:
        """Return whether the machine of a session is there."""
        return session.machine in self._host.running()

    # Resume

    async def resume(
        self, session: str, by: Actor, *, snapshot: str | None, key: Key | None, why: str = "asked"
    ) -> Session:
        """Thaw a session where it stands; one that runs is left as it is.

        ``snapshot`` names an older one explicitly: the session goes on from there. Raises
        :exc:`ConflictError`, :exc:`NoRoomError`, and :exc:`FailedError`, the session paused as
        before.
        """
        return await self._operations.once(
            f"resuming {session}",
            by,
            key,
            lambda: self._resume(session, by, snapshot, key, why),
            lambda _: self.get(session),
        )

    async def _resume(
        self, session_id: str, by: Actor, wanted: str | None, key: Key | None, why: str
    ) -> Session:
        async with self._lives.of(session_id).turn("resume"):
            session = await self.get(session_id)
            if session.status in RUNS and wanted is None:
                return session
            snapshot = await self._to_resume(session, wanted)
            await self.check_name_free(session)
            older = snapshot != session.snapshot or session.status is Status.FAILED
            generation = session.generation + (1 if older else 0)
            self._room.take(session.id, snapshot)
            try:
                async with self._operations.noted(
                    "resume", by, session.id, key, snapshot=snapshot, generation=generation
                ) as noted:
                    running = await self.start(session, snapshot, noted, "resume")
                    resumed = await self.started(
                        session, running, noted, by, "session.resumed",
                        snapshot=snapshot, generation=generation,
                    )  # fmt: skip
            except BaseException:
                self._room.give_back(session.id)
                raise
        if session.snapshot is not None and session.snapshot != snapshot:
            await self._snapshots.release(session.snapshot)
        return resumed

    async def _to_resume(self, session: Session, wanted: str | None) -> str:
        """Return the snapshot that a session goes on from; an older one only if it was named."""
        check_there(session)
        if session.status in RUNS:
            raise ConflictError(
                f"Session {session.name} runs.",
                state="Nothing was changed.",
                todo="Roll it back to a checkpoint, or pause it first.",
            )
        if session.status is Status.PROVISIONING:
            raise ConflictError(f"Session {session.name} is still being created.")
        if wanted is None and session.status is Status.FAILED:
            raise ConflictError(
                f"Session {session.name} has failed: {session.failure}",
                state="It is not resumed from an older snapshot without being asked.",
                todo="Name one of those that it can be recovered from.",
            )
        if wanted is None:
            assert session.snapshot is not None
            return session.snapshot
        async with self._database.read() as conn:
            row = await snapshots_table.get(conn, wanted)
        own = row is not None and (row.session == session.id or row.id == session.snapshot)
        if row is None or not own or row.status != "READY":
            raise NotFoundError(f"Session {session.name} has no snapshot {wanted}.")
        return wanted

    async def check_name_free(self, session: Session) -> None:
        """Raise :exc:`ConflictError` if a session that had failed, and so had given its name up,
        cannot have it back."""
        async with self._database.read() as conn:
            holder = await sessions.find(conn, session.name)
        if holder is not None and holder.id != session.id:
            raise name_taken(session.name)

    async def start(
        self, session: Session, snapshot: str, noted: Noted, event: StartEvent
    ) -> Running:
        """Start a machine for a session that has had one. Raises :exc:`FailedError`."""
        try:
            async with self._starting:
                return await self._host.start(snapshot, noted.labels, event)
        except (VmError, OSError) as error:
            raise FailedError(
                f"Session {session.name} could not be started from snapshot {snapshot}: {error}",
                state=f"It is {session.status.lower()} as before.",
            ) from error

    # The end of a machine

    def ended(self, end: End) -> None:
        """Take note of a machine that ended by itself."""
        self._tasks.background(self._ended(end), f"the end of machine {end.machine}")

    async def _ended(self, end: End) -> None:
        async with self._database.read() as conn:
            found = await sessions.of_machine(conn, end.machine)
        if found is None:
            return
        async with self._lives.of(found.id).turn("end"):
            session = await self.get(found.id)
            if session.machine == end.machine and session.status in RUNS:
                await self._operations.until_taken(
                    f"the end of machine {end.machine}", lambda: self.lost(session, end)
                )

    async def lost(self, session: Session, end: End) -> None:
        """Write down that a session's machine is gone. One that was switched off from inside is
        paused, with its files; any other has failed, and can be recovered."""
        self._room.give_back(session.id)
        kept = self._host.found(end.files) if end.files is not None else None
        async with self._database.write() as conn:
            if kept is not None:
                off = end.cause == "power-off"
                row = await self._snapshots.note(
                    conn, session, kept, "files", label=end.cause,
                    # Its newest files, which nothing may remove but whoever it belongs to.
                    checkpoint=None if off else checkpoint_id(),
                )  # fmt: skip
                if off:
                    await self.note_paused(conn, session, row, SYSTEM, end.cause)
                    self._events.tell(session.id)
                    return
                await sessions.update(conn, session.id, generation=row.generation)
            await self._failed(conn, session, end.why, SYSTEM)
        self._events.tell(session.id)

    async def fail(self, session: str, why: str, by: Actor) -> None:
        """Write down that a session has failed, and that it has no machine."""
        self._room.give_back(session)
        async with self._database.write() as conn:
            found = await sessions.get(conn, session)
            assert found is not None
            await self._failed(conn, found, why, by)
        self._events.tell(session)

    async def _failed(self, conn: Transaction, session: Session, why: str, by: Actor) -> None:
        await sessions.update(
            conn, session.id, status=Status.FAILED, machine=None, failure=why, pause_reason=None
        )
        await self._events.append(conn, "session.failed", session.id, by, error=why)

    def rebooted(self, running: Running) -> None:
        """Take note of a machine that was rebooted from inside."""
        self._tasks.background(self._rebooted(running), f"the reboot of machine {running.id}")

    async def _rebooted(self, running: Running) -> None:
        async with self._database.write() as conn:
            session = await sessions.of_machine(conn, running.id)
            if session is None:
                return
            await sessions.update(conn, session.id, boot_id=running.boot_id)
            await self._events.append(
                conn, "session.rebooted", session.id, SYSTEM, boot_id=running.boot_id
            )
        self._events.tell(session.id)

    # Destroy

    async def destroy(self, session: str, by: Actor) -> None:
        """End a session for good. Needs neither a machine nor snapshots that are whole; one that
        is gone already is left."""
        await self._tasks.whole(self._destroy(session, by), f"destroying {session}")

    async def _destroy(self, session_id: str, by: Actor) -> None:
        session = await self.get(session_id)
        if session.status is Status.DESTROYED:
            return
        live = self._lives.of(session_id)
        if session.status is Status.PROVISIONING and live.provisioning is not None:
            live.provisioning.cancel()  # it may be making an image
        async with live.turn("destroy"):
            session = await self.get(session_id)
            if session.status is Status.DESTROYED:
                return
            async with self._operations.noted("destroy", by, session_id) as noted:
                async with self._database.write() as conn:
                    await sessions.update(conn, session_id, status=Status.DESTROYING)
                    await self._events.append(conn, "session.destroying", session_id, by)
                self._events.tell(session_id)
                for machine in self._machines_of(session):
                    with contextlib.suppress(VmError, OSError):
                        await self._host.end(machine)
                self._room.give_back(session_id)
                async with self._database.write() as conn:
                    await sessions.update(
                        conn, session_id, status=Status.DESTROYED, machine=None, snapshot=None
                    )
                    await self._events.append(conn, "session.destroyed", session_id, by)
                    await noted.done(conn)
            self._events.tell(session_id)
            await self._snapshots.release_all_of(session_id)
            if session.snapshot is not None:  # a fork stands on a snapshot of another
                await self._snapshots.release(session.snapshot)
        self._lives.forget(session_id)

    def _machines_of(self, session: Session) -> list[str]:
        return [
            running.id
            for running in self._host.running().values()
            if running.id == session.machine or running.labels.get(SESSION) == session.id
        ]


async def insert_named(conn: Transaction, session: Session) -> None:
    """Insert a session whose name must be free. Raises :exc:`ConflictError`."""
    try:
        await sessions.insert(conn, session)
    except NameTakenError as error:
        raise name_taken(session.name) from error


def name_taken(name: str) -> ConflictError:
    """Return the error of a name that another session has."""
    return ConflictError(
        f"There is a session {name} already.",
        state="Nothing was changed.",
        todo="Remove it first, or use another name.",
        code="already_exists",
    )


def no_session(session: str) -> NotFoundError:
    """Return the error of a session that is not known."""
    return NotFoundError(f"There is no session {session!r}.", todo="`torpor list` shows them.")


def check_there(session: Session) -> None:
    """Raise :exc:`DestroyedError` if a session is gone for good."""
    if session.status in GONE:
        raise DestroyedError(f"Session {session.name} has been destroyed.")


def check_runs(session: Session, what: str) -> None:
    """Raise an error if a session does not run and so cannot be ``what``."""
    check_there(session)
    if session.status not in RUNS:
        failed = f": {session.failure}" if session.failure else "."
        raise ConflictError(
            f"Session {session.name} is {session.status.lower()} and cannot be {what}{failed}",
            state="Nothing was changed.",
        )


def invented_name(moment: datetime) -> str:
    """Return a name for a session that was given none."""
    return f"session-{moment:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
