"""The snapshot tree of sessions: forks, ways back, and the tree itself.

A fork and a rollback bring back what was in the machine. What the session did beyond it stays done,
and is listed.
"""

import logging
import secrets
from collections.abc import Iterable
from dataclasses import replace

from torpor.sessions.checkpoints import Checkpoints, check_ready
from torpor.sessions.creation import Creation
from torpor.sessions.endings import Endings
from torpor.sessions.errors import (
    ConflictError,
    FailedError,
    InvalidError,
    NoRoomError,
    SessionError,
    error_of,
)
from torpor.sessions.events import Events
from torpor.sessions.lifecycle import Lifecycle
from torpor.sessions.lives import Lives
from torpor.sessions.model import (
    MOST_CHILDREN,
    Actor,
    Forked,
    Key,
    RolledBack,
    Tree,
    new_session_id,
    now,
)
from torpor.sessions.operations import Operations
from torpor.sessions.room import Room
from torpor.sessions.snapshots import Snapshots
from torpor.sessions.standing import RUNS, Standing, check_there, insert_named
from torpor.store import events as events_table
from torpor.store import operations as operations_table
from torpor.store import sessions
from torpor.store import snapshots as snapshots_table
from torpor.store.database import Database, Transaction
from torpor.store.errors import StoreError
from torpor.store.records import Operation, Session, Snapshot, Status
from torpor.vm import VmError

logger = logging.getLogger("torpor.sessions")

EXTERNAL = frozenset(("port.opened",))
"""Types of events with which a session reaches beyond its machine."""
MOST_LISTED = 1000


class Lineage:
    """Forks and rollbacks."""

    def __init__(
        self,
        database: Database,
        events: Events,
        operations: Operations,
        snapshots: Snapshots,
        room: Room,
        lives: Lives,
        standing: Standing,
        endings: Endings,
        creation: Creation,
        lifecycle: Lifecycle,
        checkpoints: Checkpoints,
    ) -> None:
        self._database = database
        self._events = events
        self._operations = operations
        self._snapshots = snapshots
        self._room = room
        self._lives = lives
        self._standing = standing
        self._endings = endings
        self._creation = creation
        self._lifecycle = lifecycle
        self._checkpoints = checkpoints

    # Fork

    async def fork(
        self, session: str, by: Actor, *, count: int, checkpoint: str | None, key: Key | None
    ) -> Forked:
        """Make new sessions out of one that is there, which goes on as it was.

        Each child has a result of its own: a session that is being started, or why there is none.
        Raises :exc:`InvalidError`, :exc:`ConflictError`, :exc:`FailedError`.
        """
        if not 1 <= count <= MOST_CHILDREN:
            raise InvalidError(
                f"count: a session cannot be forked into {count}.",
                state="Nothing was changed.",
                todo=f"Ask for 1 to {MOST_CHILDREN} children at a time.",
            )
        return await self._operations.once(
            f"forking {session}",
            by,
            key,
            lambda: self._fork(session, by, count, checkpoint, key),
            self._forked,
        )

    async def _fork(
        self, session_id: str, by: Actor, count: int, checkpoint: str | None, key: Key | None
    ) -> Forked:
        async with self._lives.of(session_id).turn("fork"):
            parent = await self._standing.own(session_id)
            check_there(parent)
            async with self._database.read() as conn:
                await self._creation.check_room_for(conn, count)
            children: list[Session | SessionError] = []
            forked, starts = Forked(children, []), list[Operation]()

            async def note(conn: Transaction, source: Snapshot) -> None:
                nonlocal forked, starts
                self._give_back(children)  # of a transaction that came to nothing
                children[:] = (self._child(parent, source, each + 1) for each in range(count))
                forked, starts = await self._note_children(conn, parent, source, children, by, key)

            try:
                if checkpoint is None:
                    # In the transaction that notes the checkpoint: each one waits for the disk.
                    await self._checkpoints.cut(
                        parent, by, "fork", "", None, children=count, also=note
                    )
                else:
                    source = check_ready(await self._checkpoints.get(session_id, checkpoint))
                    async with self._database.write() as conn:
                        await note(conn, source)
                    self._events.tell(parent.id)
            except BaseException:
                self._give_back(children)
                raise
        for start in starts:
            self._creation.provision(start, by, "fork")
            self._events.tell(start.session)
        return forked

    def _child(self, parent: Session, source: Snapshot, number: int) -> Session | SessionError:
        """Return the record of a child, with room taken for it, or why there is none."""
        child = replace(
            parent,
            id=new_session_id(),
            name=f"{parent.name[:40]}-{secrets.token_hex(3)}",
            status=Status.PROVISIONING,
            created_at=now(),
            updated_at=now(),
            used_at=now(),
            generation=0,
            parent=parent.id,
            fork_id=f"fork-{number}",
            forked_from=source.checkpoint,
            machine=None,
            boot_id=None,
            snapshot=source.id,
            pause_reason=None,
            failure=None,
            last_event_at=None,
            workspace=None,
        )
        try:
            self._room.take(child.id, source.id)
        except (NoRoomError, VmError) as error:
            return error if isinstance(error, NoRoomError) else FailedError(str(error))
        return child

    async def _note_children(
        self,
        conn: Transaction,
        parent: Session,
        source: Snapshot,
        children: list[Session | SessionError],
        by: Actor,
        key: Key | None,
    ) -> tuple[Forked, list[Operation]]:
        """Note the children of a fork, and that they are to be started."""
        new = [child for child in children if isinstance(child, Session)]
        starts = []
        await self._creation.check_room_for(conn, len(new))
        not_undone = await self._not_undone(conn, parent, source)
        forked = Forked(children, not_undone, _warnings(source))
        # One of which nothing came can be asked for again with its key.
        operation = self._operations.done_at_once(
            self._operations.new("fork", by, parent.id, key if new else None),
            children=[
                child.id if isinstance(child, Session) else child.plain() for child in children
            ],
            not_undone=forked.not_undone,
            warnings=forked.warnings,
        )
        await operations_table.insert(conn, operation)
        for child in new:
            await insert_named(conn, replace(child, created_by=by.id))
            await self._events.append(
                conn, "session.created", child.id, by, name=child.name,
                parent_session_id=parent.id, checkpoint_id=source.checkpoint,
            )  # fmt: skip
            starts.append(await self._creation.note_start(conn, child.id, by))
        await self._events.append(
            conn, "session.forked", parent.id, by, checkpoint_id=source.checkpoint,
            children=[child.id for child in new], errors=len(children) - len(new),
        )  # fmt: skip
        return forked, starts

    def _give_back(self, children: Iterable[Session | SessionError]) -> None:
        """Take back the room that was taken for children which do not come."""
        for child in children:
            if isinstance(child, Session):
                self._room.give_back(child.id)

    async def _forked(self, operation: Operation) -> Forked:
        """Return what an earlier fork said."""
        children: list[Session | SessionError] = [
            await self._standing.get(each) if isinstance(each, str) else error_of(each)
            for each in operation.result["children"]
        ]
        result = operation.result
        return Forked(children, result["not_undone"], result.get("warnings", []))

    # Rollback

    async def rollback(
        self, session: str, by: Actor, checkpoint: str, *, key: Key | None
    ) -> RolledBack:
        """Go back to a checkpoint, as the same session. The machine that runs goes only when the
        new one does; one that has a workspace is frozen first, and goes on if the new one does not
        come to run. Raises :exc:`NoRoomError`, :exc:`ConflictError`, and :exc:`FailedError`, the
        session as before."""
        return await self._operations.once(
            f"rolling back {session}",
            by,
            key,
            lambda: self._rollback(session, by, checkpoint, key),
            lambda operation: self._rolled_back(session, operation),
        )

    async def _rolled_back(self, session: str, operation: Operation) -> RolledBack:
        return RolledBack(await self._standing.get(session), operation.plan["not_undone"])

    async def _rollback(
        self, session_id: str, by: Actor, checkpoint: str, key: Key | None
    ) -> RolledBack:
        async with self._lives.of(session_id).turn("rollback"):
            session = await self._standing.own(session_id)
            check_there(session)
            if session.status is Status.PROVISIONING:
                raise ConflictError(f"Session {session.name} is still being created.")
            await self._standing.check_name_free(session)
            source = check_ready(await self._checkpoints.get(session_id, checkpoint))
            not_undone = await self.not_undone(session, source)
            back = await self._parted(session, by)
            if back is not None:
                session = back
            old = session.machine if session.status in RUNS else None
            generation = session.generation + 1
            try:
                self._room.take(session.id, source.id)
                async with self._operations.noted(
                    "rollback", by, session.id, key,
                    snapshot=source.id, checkpoint=checkpoint, generation=generation, old=old,
                    not_undone=not_undone,
                ) as noted:  # fmt: skip
                    running = await self._lifecycle.start(session, source.id, noted, "rollback")
                    rolled = await self._standing.started(
                        session, running, noted, by, "session.rolled_back",
                        snapshot=source.id, generation=generation,
                    )  # fmt: skip
            except BaseException:
                if back is not None:
                    await self._go_on(back, by)
                raise
            finally:
                self._room.give_back(session.id)
                if await self._lives_on(session_id):
                    self._room.adopt(session.id)
            if old is not None:
                await self._endings.end(old, session_id)
        await self._snapshots.release(*filter(None, [session.snapshot]))
        return RolledBack(rolled, not_undone)

    async def _parted(self, session: Session, by: Actor) -> Session | None:
        """Pause a session that runs with a workspace, and return it as it is then: no two machines
        can have that, so the old one cannot run until the new one does. None if it need not be."""
        if session.workspace is None or session.status not in RUNS:
            return None
        return await self._lifecycle.freeze_and_stop(session, by, "rollback", None)

    async def _go_on(self, session: Session, by: Actor) -> None:
        """Resume a session that was paused for a rollback which has come to nothing. If that cannot
        be, it stays paused, and whoever uses it wakes it."""
        assert session.snapshot is not None
        self._room.give_back(session.id)
        try:
            await self._lifecycle.thaw(session, session.snapshot, by, None)
        except (SessionError, StoreError) as error:
            logger.warning("session %s stays paused: %s", session.name, error)

    async def _lives_on(self, session: str) -> bool:
        return (await self._standing.get(session)).status in RUNS

    async def not_undone(self, session: Session, source: Snapshot) -> list[str]:
        """Return the ids of the events since a snapshot with which the session reached beyond its
        machine: no way back undoes these."""
        async with self._database.read() as conn:
            return await self._not_undone(conn, session, source)

    async def _not_undone(self, conn: Transaction, session: Session, source: Snapshot) -> list[str]:
        found = await events_table.after(conn, source.event, session.id, MOST_LISTED, EXTERNAL)
        return [event.id for event in found]

    # The tree

    async def tree(self, session_id: str) -> Tree:
        """Return a session's snapshots and the sessions that were forked from it."""
        session = await self._standing.get(session_id)
        async with self._database.read() as conn:
            rows = await snapshots_table.of_session(conn, session_id)
            children = await sessions.children(conn, session_id)
        return Tree(session, rows, children)


def _warnings(source: Snapshot) -> list[str]:
    """Return what should be known of a child that starts from a snapshot."""
    if source.workspace is None:
        return []
    when = source.created_at.isoformat(timespec="seconds")
    copied = (
        f"/workspace is a copy of workspace {source.workspace} as of {when}: it goes with this"
        " session, and the workspace stays with the one that was forked."
    )
    return [copied]
