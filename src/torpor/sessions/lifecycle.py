"""The life of a session: paused, resumed, ended by itself, destroyed.

Each operation: it waits for its turn, is noted, done on the host, and then written down in one
transaction with its event. A crash in between leaves a note, from which :mod:`reconcile
<torpor.sessions.reconcile>` goes on.
"""

import asyncio

from torpor.sessions.attachments import Attachments
from torpor.sessions.egress_log import EgressLog
from torpor.sessions.egress_policy import wall_of
from torpor.sessions.endings import Endings
from torpor.sessions.errors import ConflictError, NotFoundError, failed
from torpor.sessions.events import Events
from torpor.sessions.hosts import SESSION, End, MachineHost, Running, StartEvent
from torpor.sessions.lives import Lives
from torpor.sessions.model import SYSTEM, Actor, Key
from torpor.sessions.operations import Noted, Operations
from torpor.sessions.room import Room
from torpor.sessions.snapshots import Snapshots
from torpor.sessions.standing import RUNS, Standing, check_runs, check_there
from torpor.sessions.tasks import Tasks
from torpor.store import operations as operations_table
from torpor.store import secrets as secrets_table
from torpor.store import sessions
from torpor.store.database import Database, Transaction
from torpor.store.records import Session, Snapshot, Status
from torpor.vm import VmError
from torpor.vm.new_snapshot import new_id

IDLE = "idle"
"""The reason of a pause that nobody asked for: it is not done if somebody uses the session now."""
STOP = "server_stop"
"""The reason of the pauses with which a server ends that is to freeze what runs."""


class Lifecycle:
    """Changes the states of sessions. ``starting`` bounds how many machines are started at the same
    time."""

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
        standing: Standing,
        endings: Endings,
        attachments: Attachments,
        egress_log: EgressLog,
        starting: asyncio.Semaphore,
    ) -> None:
        self._database = database
        self._host = host
        self._events = events
        self._operations = operations
        self._snapshots = snapshots
        self._room = room
        self._lives = lives
        self._tasks = tasks
        self._standing = standing
        self._endings = endings
        self._attachments = attachments
        self._egress_log = egress_log
        self._starting = starting

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
            lambda _: self._standing.get(session),
        )
        if durable and paused.snapshot is not None:  # asked for again, it is seen to again
            await self._snapshots.durable(paused.snapshot)
        return paused

    async def _pause(self, session_id: str, by: Actor, reason: str, key: Key | None) -> Session:
        async with self._lives.of(session_id).turn("pause"):
            session = await self._standing.own(session_id)
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
                return await self.freeze_and_stop(session, by, reason, key)
            await self._operations.note_nothing("pause", by, session_id, key)
        return session

    async def freeze_and_stop(
        self, session: Session, by: Actor, reason: str, key: Key | None
    ) -> Session:
        """Pause a session that runs, in its turn. Raises :exc:`FailedError`."""
        assert session.machine is not None
        snapshot = new_id()
        with self._egress_log.cutting(session.id):
            paused = await self._freeze(session, snapshot, by, reason, key)
        self._room.give_back(session.id)
        self._events.tell(session.id)
        self._snapshots.settle(snapshot, session.snapshot)
        return paused

    async def _freeze(
        self, session: Session, snapshot: str, by: Actor, reason: str, key: Key | None
    ) -> Session:
        assert session.machine is not None
        async with self._operations.noted(
            "pause", by, session.id, key, snapshot=snapshot, reason=reason
        ) as noted:
            try:
                kept = await self._host.freeze(session.machine, snapshot, noted.labels, stop=True)
            except (VmError, OSError) as error:
                raise failed(
                    error,
                    f"Session {session.name} could not be paused",
                    state=self._standing.after_freeze(session, error),
                ) from error

            async def write(conn: Transaction) -> Session:
                row = await self._snapshots.note(conn, session, kept, "pause")
                await noted.done(conn, snapshot=snapshot)
                return await self._standing.note_paused(
                    conn, session, row, by, reason, names=kept.names
                )

            return await self._operations.written(write, noted)

    # Resume

    async def resume(
        self, session: str, by: Actor, *, snapshot: str | None, key: Key | None
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
            lambda: self._resume(session, by, snapshot, key),
            lambda _: self._standing.get(session),
        )

    async def _resume(
        self, session_id: str, by: Actor, wanted: str | None, key: Key | None
    ) -> Session:
        async with self._lives.of(session_id).turn("resume"):
            session = await self._standing.own(session_id)
            if session.status in RUNS and wanted is None:
                await self._operations.note_nothing("resume", by, session_id, key)
                return session
            _check_resumable(session, wanted)
            if wanted is None:
                assert session.snapshot is not None
                resumed = await self.thaw(session, session.snapshot, by, key)
            else:
                # Nothing may need it until the session stands on it.
                async with self._snapshots.held_one(wanted) as row:
                    _check_own(session, wanted, row)
                    resumed = await self.thaw(session, wanted, by, key)
        if session.snapshot is not None and session.snapshot != resumed.snapshot:
            await self._snapshots.release(session.snapshot)
        return resumed

    async def thaw(self, session: Session, snapshot: str, by: Actor, key: Key | None) -> Session:
        """Resume a session from a snapshot, in its turn. Raises :exc:`NoRoomError` and
        :exc:`FailedError`, the session as before."""
        await self._standing.check_name_free(session)
        older = snapshot != session.snapshot or session.status is Status.FAILED
        generation = session.generation + (1 if older else 0)
        self._room.take(session.id, snapshot)
        try:
            async with self._operations.noted(
                "resume", by, session.id, key, snapshot=snapshot, generation=generation
            ) as noted:
                running = await self.start(session, snapshot, noted, "resume")
                return await self._standing.started(
                    session, running, noted, by, "session.resumed",
                    snapshot=snapshot, generation=generation,
                )  # fmt: skip
        except BaseException:
            self._room.give_back(session.id)
            raise

    async def start(
        self, session: Session, snapshot: str, noted: Noted, event: StartEvent
    ) -> Running:
        """Start a machine for a session that has had one. Raises :exc:`FailedError`."""
        try:
            async with self._starting:
                return await self._host.start(
                    snapshot, noted.labels, event, None, session.workspace, wall_of(session)
                )
        except (VmError, OSError) as error:
            raise failed(
                error,
                f"Session {session.name} could not be started from snapshot {snapshot}",
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
            session = await self._standing.get(found.id)
            if session.machine == end.machine and session.status in RUNS:
                await self._operations.until_taken(
                    f"the end of machine {end.machine}", lambda: self._standing.lost(session, end)
                )

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
            await self._attachments.look_at(conn, session, running)
        self._events.tell(session.id)

    # Destroy

    async def destroy(self, session: str, by: Actor) -> None:
        """End a session for good. Needs neither a machine nor snapshots that are whole; one that
        is gone already is left.

        What is on its workspace is saved first. Raises :exc:`FailedError` if that cannot be done
        now: then it is still being destroyed, and its machine runs."""
        await self._tasks.whole(self._destroy(session, by), f"destroying {session}")

    async def _destroy(self, session_id: str, by: Actor) -> None:
        session = await self._standing.own(session_id)
        if session.status is Status.DESTROYED:
            return
        live = self._lives.of(session_id)
        if session.status is Status.PROVISIONING and live.provisioning is not None:
            live.provisioning.cancel()  # it may be making an image
        async with live.turn("destroy"):
            session = await self._standing.get(session_id)
            if session.status is Status.DESTROYED:
                return
            record = self._operations.new("destroy", by, session_id, None)
            async with self._database.write() as conn:
                await operations_table.insert(conn, record)
                await sessions.update(conn, session_id, status=Status.DESTROYING)
                workspace = await self._attachments.leave(conn, session, by)
                if session.status is not Status.DESTROYING:
                    await self._events.append(conn, "session.destroying", session_id, by)
            self._events.tell(session_id)
            async with self._operations.under_way(record, by) as noted:
                left = None
                if workspace is not None:
                    left = await self._attachments.save(workspace, self._machine_with_disk(session))
                for machine in self._machines_of(session):
                    await self._endings.end(machine, session_id)
                self._room.give_back(session_id)
                await self._egress_log.flush()  # before the event that ends all streams
                async with self._database.write() as conn:
                    if left is not None:
                        await self._attachments.left(conn, left, by)
                    await sessions.update(
                        conn,
                        session_id,
                        status=Status.DESTROYED,
                        machine=None,
                        snapshot=None,
                        workspace=None,
                    )
                    if await secrets_table.granted(conn, session_id):
                        await secrets_table.forget_session(conn, session_id)
                    await self._events.append(conn, "session.destroyed", session_id, by)
                    # Its first start may have been cut off before it was begun.
                    await operations_table.interrupt(conn, session_id, but=record.id)
                    await noted.done(conn)
            self._events.tell(session_id)
            await self._snapshots.release_all_of(session_id)
            if session.snapshot is not None:  # a fork stands on a snapshot of another
                await self._snapshots.release(session.snapshot)
            if session.workspace is not None:
                await self._attachments.let_go(session_id)  # it may not have come to be
        self._lives.forget(session_id)

    def _machine_with_disk(self, session: Session) -> str:
        """Return the machine that writes to the workspace of a session, "" if none does. One that
        is left of an earlier state of it has written nothing that is to be kept."""
        if session.machine is None and session.snapshot is None:  # cut off in its first start
            return next(iter(self._machines_of(session)), "")
        return session.machine if session.machine in self._host.running() else ""

    def _machines_of(self, session: Session) -> list[str]:
        return [
            running.id
            for running in self._host.running().values()
            if running.id == session.machine or running.labels.get(SESSION) == session.id
        ]


def _check_resumable(session: Session, wanted: str | None) -> None:
    """Raise an error if a session cannot be resumed, or not without naming a snapshot."""
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


def _check_own(session: Session, wanted: str, row: Snapshot | None) -> None:
    """Raise :exc:`NotFoundError` if a snapshot is none that a session can be resumed from."""
    own = row is not None and (row.session == session.id or row.id == session.snapshot)
    if row is None or not own or row.status != "READY":
        raise NotFoundError(f"Session {session.name} has no snapshot {wanted}.")
