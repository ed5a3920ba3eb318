"""Where sessions stand: their records, and each change of their state with its event, in one
transaction.
"""

import asyncio
import contextlib
from typing import Any

from torpor.sessions.attachments import Attachments
from torpor.sessions.egress_policy import wall_of
from torpor.sessions.endings import Endings
from torpor.sessions.errors import ConflictError, DestroyedError, NotFoundError, elsewhere
from torpor.sessions.events import Events
from torpor.sessions.hosts import End, MachineHost, Running
from torpor.sessions.lives import Lives
from torpor.sessions.model import SYSTEM, Actor
from torpor.sessions.operations import Noted
from torpor.sessions.room import Room
from torpor.sessions.snapshots import Snapshots, checkpoint_id
from torpor.store import hosts, secrets, sessions
from torpor.store.database import Database, Transaction
from torpor.store.errors import NameTakenError
from torpor.store.records import Session, Snapshot, Status
from torpor.vm import FreezeError, MachineDiedError

RUNS = (Status.READY, Status.DETACHED)
GONE = (Status.DESTROYED, Status.DESTROYING)


class Standing:
    """Reads and writes down where sessions stand."""

    def __init__(
        self,
        database: Database,
        host: MachineHost,
        endings: Endings,
        events: Events,
        snapshots: Snapshots,
        room: Room,
        lives: Lives,
        attachments: Attachments,
        me: str | None,
    ) -> None:
        self._database = database
        self._host = host
        self._endings = endings
        self._events = events
        self._snapshots = snapshots
        self._room = room
        self._lives = lives
        self._attachments = attachments
        self._me = me

    async def own(self, session: str) -> Session:
        """Return a session by its id that is to be changed or used, and so has to be on the host of
        this server. Raises :exc:`NotFoundError`, and :exc:`ConflictError` if it is on another."""
        found = await self.get(session)
        if self._me is not None and found.host not in (None, self._me):
            async with self._database.read() as conn:
                host = await hosts.get(conn, found.host or "")
            raise elsewhere(f"Session {found.name}", found.host, host)
        return found

    async def get(self, session: str) -> Session:
        """Return a session by its id. Raises :exc:`NotFoundError`."""
        async with self._database.read() as conn:
            found = await sessions.get(conn, session)
        if found is None:
            raise no_session(session)
        return found

    def runs(self, session: Session) -> bool:
        """Return whether the machine of a session is there."""
        return session.machine in self._host.running()

    def after_freeze(self, session: Session, error: Exception) -> str:
        """Say in what state a freeze that failed has left a session's machine, if the error does
        not."""
        if not self.runs(session):
            return "Its machine has ended."
        return "" if isinstance(error, FreezeError) else "It runs on."

    async def started(
        self,
        session: Session,
        running: Running,
        noted: Noted,
        by: Actor,
        event: str,
        **changes: Any,
    ) -> Session:
        """Write down that a session's machine runs, and what else has changed; if that cannot be,
        the machine is ended."""
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
                await self._attachments.attached(conn, changed, running, by)
                await self._events.append(
                    conn, event, session.id, by, boot_id=running.boot_id,
                    generation=changed.generation, snapshot_id=changed.snapshot,
                )  # fmt: skip
                if running.no_network is not None:
                    await self._events.append(
                        conn, "egress.no_network", session.id, SYSTEM, reason=running.no_network
                    )
                await noted.done(conn, machine=running.id)
        except NameTakenError as error:
            await self._end_unless_noted(session, running)
            raise name_taken(session.name) from error
        except (Exception, asyncio.CancelledError):
            await self._end_unless_noted(session, running)
            raise
        if changed.egress != session.egress:  # it was changed while the machine was started
            with contextlib.suppress(MachineDiedError):  # and that is told elsewhere
                await self._host.set_wall(running.id, wall_of(changed))
        self._lives.of(session.id).touch()
        self._events.tell(session.id)
        return changed

    async def _end_unless_noted(self, session: Session, running: Running) -> None:
        # Who was cancelled does not know whether the commit came to its end.
        async def noted() -> bool:
            return (await self.get(session.id)).machine == running.id

        await self._endings.end(running.id, session.id, unless=noted)

    async def check_name_free(self, session: Session) -> None:
        """Raise :exc:`ConflictError` if a session that had failed, and so had given its name up,
        cannot have it back."""
        async with self._database.read() as conn:
            holder = await sessions.find(conn, session.name)
        if holder is not None and holder.id != session.id:
            raise name_taken(session.name)

    async def note_paused(
        self,
        conn: Transaction,
        session: Session,
        row: Snapshot,
        by: Actor,
        reason: str,
        *,
        names: str | None = None,
    ) -> Session:
        """Write down that a session is paused in a snapshot; ``names`` are what the wall has
        written down by then, None if that is as before."""
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
            names=session.names if names is None else names,
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
            await self.note_failed(conn, session, end.why, SYSTEM)
        self._events.tell(session.id)

    async def fail(self, session: str, why: str, by: Actor) -> None:
        """Write down that a session has failed, and that it has no machine."""
        self._room.give_back(session)
        async with self._database.write() as conn:
            found = await sessions.get(conn, session)
            assert found is not None
            await self.note_failed(conn, found, why, by)
        self._events.tell(session)

    async def note_failed(self, conn: Transaction, session: Session, why: str, by: Actor) -> None:
        """Write down that a session has failed."""
        await sessions.update(
            conn, session.id, status=Status.FAILED, machine=None, failure=why, pause_reason=None
        )
        await self._events.append(conn, "session.failed", session.id, by, error=why)


async def insert_named(conn: Transaction, session: Session) -> None:
    """Insert a session whose name must be free. Raises :exc:`ConflictError`."""
    try:
        await sessions.insert(conn, session)
        if session.parent is not None:
            # What its processes go on with, they go on with there too.
            await secrets.inherit(conn, session.parent, session.id)
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
