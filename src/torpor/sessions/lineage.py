"""The snapshot tree of sessions: checkpoints, forks, and ways back.

A fork and a rollback bring back what was in the machine. What the session did beyond it stays done,
and is listed.
"""

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import replace

from torpor.sessions.errors import (
    ConflictError,
    FailedError,
    InvalidError,
    NoRoomError,
    NotFoundError,
    SessionError,
)
from torpor.sessions.events import Events
from torpor.sessions.hosts import MachineHost
from torpor.sessions.lifecycle import (
    RUNS,
    Lifecycle,
    check_runs,
    check_there,
    insert_named,
)
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
from torpor.sessions.snapshots import Snapshots, checkpoint_id
from torpor.store import events as events_table
from torpor.store import operations as operations_table
from torpor.store import sessions
from torpor.store import snapshots as snapshots_table
from torpor.store.database import Database, Transaction
from torpor.store.records import Operation, Session, Snapshot, SnapshotKind, Status
from torpor.vm import VmError
from torpor.vm.new_snapshot import new_id

EXTERNAL = frozenset(("port.opened",))
"""Types of events with which a session reaches beyond its machine."""
MOST_LISTED = 1000


class Lineage:
    """Checkpoints, forks and rollbacks."""

    def __init__(
        self,
        database: Database,
        host: MachineHost,
        events: Events,
        operations: Operations,
        snapshots: Snapshots,
        room: Room,
        lives: Lives,
        lifecycle: Lifecycle,
    ) -> None:
        self._database = database
        self._host = host
        self._events = events
        self._operations = operations
        self._snapshots = snapshots
        self._room = room
        self._lives = lives
        self._lifecycle = lifecycle

    # Checkpoints

    async def checkpoint(
        self, session: str, by: Actor, *, label: str, durable: bool, key: Key | None
    ) -> Snapshot:
        """Make a checkpoint of a session, which runs on, or of one that is paused.

        Raises :exc:`ConflictError`, and :exc:`FailedError`, the session as before.
        """
        if len(label) > 255:
            raise InvalidError("label: at most 255 characters.")
        made = await self._operations.once(
            f"a checkpoint of {session}",
            by,
            key,
            lambda: self._checkpoint(session, by, label, key),
            lambda operation: self.get_checkpoint(session, operation.result["checkpoint"]),
        )
        if durable:
            await self._snapshots.durable(made.id)
            made = await self.get_checkpoint(session, made.checkpoint or "")
        return made

    async def _checkpoint(
        self, session_id: str, by: Actor, label: str, key: Key | None
    ) -> Snapshot:
        async with self._lives.of(session_id).turn("checkpoint"):
            session = await self._lifecycle.get(session_id)
            return await self._cut(session, by, "checkpoint", label, key)

    async def _cut(
        self,
        session: Session,
        by: Actor,
        kind: SnapshotKind,
        label: str,
        key: Key | None,
        children: int = 1,
    ) -> Snapshot:
        """Make a snapshot of a session that users can go back to."""
        checkpoint = checkpoint_id()
        if session.status is Status.PAUSED:
            return await self._mark(session, by, kind, label, key, checkpoint)
        check_runs(session, "frozen")
        assert session.machine is not None
        snapshot = new_id()
        async with self._operations.noted(
            "checkpoint", by, session.id, key,
            snapshot=snapshot, checkpoint=checkpoint, label=label, snapshot_kind=kind,
        ) as noted:  # fmt: skip
            try:
                kept = await self._host.freeze(
                    session.machine, snapshot, noted.labels, stop=False, children=children
                )
            except (VmError, OSError) as error:
                raise FailedError(
                    f"Session {session.name} could not be frozen: {error}",
                    state="It runs on."
                    if self._lifecycle.runs(session)
                    else "Its machine has ended.",
                ) from error

            async def write(conn: Transaction) -> Snapshot:
                await noted.done(conn, checkpoint=checkpoint, snapshot=snapshot)
                return await self.note_checkpoint(conn, session, kept.id, by, noted.record.plan)

            row = await self._operations.written(write, noted)
        self._events.tell(session.id)
        self._snapshots.settle(snapshot, session.snapshot)
        return row

    async def note_checkpoint(
        self, conn: Transaction, session: Session, snapshot: str, by: Actor, plan: dict[str, str]
    ) -> Snapshot:
        """Write down a checkpoint that was made as planned: the session stands on it."""
        kept = self._host.found(snapshot)
        assert kept is not None
        kind: SnapshotKind = "fork" if plan["snapshot_kind"] == "fork" else "checkpoint"
        row = await self._snapshots.note(
            conn, session, kept, kind, label=plan["label"], checkpoint=plan["checkpoint"]
        )
        await sessions.update(conn, session.id, generation=row.generation, snapshot=row.id)
        await self._told(conn, session, row, by)
        return row

    async def _mark(
        self,
        session: Session,
        by: Actor,
        kind: SnapshotKind,
        label: str,
        key: Key | None,
        checkpoint: str,
    ) -> Snapshot:
        """Make a checkpoint of the snapshot in which a session is paused."""
        assert session.snapshot is not None
        async with (
            self._operations.noted(
                "checkpoint", by, session.id, key, snapshot=session.snapshot, checkpoint=checkpoint
            ) as noted,
            self._database.write() as conn,
        ):
            row = await snapshots_table.get(conn, session.snapshot)
            assert row is not None
            if row.checkpoint is None:
                row = await snapshots_table.update(
                    conn, row.id, checkpoint=checkpoint, kind=kind, label=label
                )
                await self._told(conn, session, row, by)
            elif label and label != row.label:
                row = await snapshots_table.update(conn, row.id, label=label, kind=kind)
            await noted.done(conn, checkpoint=row.checkpoint, snapshot=row.id)
        self._events.tell(session.id)
        return row

    async def _told(self, conn: Transaction, session: Session, row: Snapshot, by: Actor) -> None:
        await self._events.append(
            conn, "checkpoint.created", session.id, by, checkpoint_id=row.checkpoint,
            snapshot_id=row.id, label=row.label, generation=row.generation,
            stored_bytes=row.stored_bytes,
        )  # fmt: skip

    async def get_checkpoint(self, session: str, checkpoint: str) -> Snapshot:
        """Return a checkpoint. Raises :exc:`NotFoundError`."""
        async with self._database.read() as conn:
            found = await snapshots_table.by_checkpoint(conn, session, checkpoint)
        if found is None:
            raise NotFoundError(f"There is no checkpoint {checkpoint!r} of this session.")
        return found

    async def checkpoints(
        self, session: str, limit: int, after: str | None
    ) -> tuple[list[Snapshot], str | None]:
        """Return a page of a session's checkpoints, newest first, and the cursor of the next."""
        async with self._database.read() as conn:
            page = await snapshots_table.page(conn, session, limit, after)
        return list(page.items), page.next_cursor

    async def delete_checkpoint(self, session_id: str, checkpoint: str, by: Actor) -> None:
        """Delete a checkpoint; one that is gone already is left. What stands on its snapshot keeps
        that."""
        async with self._lives.of(session_id).turn("delete"):
            async with self._database.write() as conn:
                found = await snapshots_table.by_checkpoint(conn, session_id, checkpoint)
                if found is None:
                    return
                await snapshots_table.update(
                    conn, found.id, checkpoint=None, kind="pause", label=""
                )
                await self._events.append(
                    conn, "checkpoint.deleted", session_id, by, checkpoint_id=checkpoint
                )
            self._events.tell(session_id)
        await self._snapshots.release(found.id)

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
            parent = await self._lifecycle.get(session_id)
            check_there(parent)
            async with self._database.read() as conn:
                await self._lifecycle.check_room_for(conn, count)
            if checkpoint is None:
                source = await self._cut(parent, by, "fork", "", None, children=count)
                parent = await self._lifecycle.get(session_id)
            else:
                source = self._ready(await self.get_checkpoint(session_id, checkpoint))
            children: list[Session | SessionError] = [
                self._child(parent, source, number) for number in range(1, count + 1)
            ]
            noted = await self._insert_children(parent, source, children, by, key)
        for child in noted:
            self._lifecycle.provision(child.id, by, "fork")
        return Forked(children, await self.not_undone(parent, source))

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
        )
        try:
            self._room.take(child.id, source.id)
        except (NoRoomError, VmError) as error:
            return error if isinstance(error, NoRoomError) else FailedError(str(error))
        return child

    async def _insert_children(
        self,
        parent: Session,
        source: Snapshot,
        children: Sequence[Session | SessionError],
        by: Actor,
        key: Key | None,
    ) -> list[Session]:
        """Note the children of a fork, all in one transaction."""
        new = [child for child in children if isinstance(child, Session)]
        # One of which nothing came can be asked for again with its key.
        operation = self._operations.new("fork", by, parent.id, key if new else None)
        result = {
            "children": [
                child.id if isinstance(child, Session) else {"error": str(child)}
                for child in children
            ],
            "snapshot": source.id,
        }
        try:
            async with self._database.write() as conn:
                await self._lifecycle.check_room_for(conn, len(new))
                await operations_table.begin(conn, operation)
                for child in new:
                    await insert_named(conn, replace(child, created_by=by.id))
                    await self._events.append(
                        conn, "session.created", child.id, by, name=child.name,
                        parent_session_id=parent.id, checkpoint_id=source.checkpoint,
                    )  # fmt: skip
                await self._events.append(
                    conn, "session.forked", parent.id, by, checkpoint_id=source.checkpoint,
                    children=[child.id for child in new], errors=len(children) - len(new),
                )  # fmt: skip
                await operations_table.finish(conn, operation.id, "done", result)
        except BaseException:
            for child in new:
                self._room.give_back(child.id)
            raise
        for session in (parent, *new):
            self._events.tell(session.id)
        return new

    async def _forked(self, operation: Operation) -> Forked:
        """Return what an earlier fork made."""
        parent = await self._lifecycle.get(operation.session or "")
        children: list[Session | SessionError] = [
            await self._lifecycle.get(each) if isinstance(each, str) else FailedError(each["error"])
            for each in operation.result["children"]
        ]
        async with self._database.read() as conn:
            source = await snapshots_table.get(conn, operation.result["snapshot"])
        return Forked(children, await self.not_undone(parent, source) if source else [])

    # Rollback

    async def rollback(
        self, session: str, by: Actor, checkpoint: str, *, key: Key | None
    ) -> RolledBack:
        """Go back to a checkpoint, as the same session. The machine that runs goes only when the
        new one does. Raises :exc:`NoRoomError`, :exc:`ConflictError`, and :exc:`FailedError`, the
        session as before."""
        return await self._operations.once(
            f"rolling back {session}",
            by,
            key,
            lambda: self._rollback(session, by, checkpoint, key),
            lambda operation: self._rolled_back(session, operation),
        )

    async def _rolled_back(self, session: str, operation: Operation) -> RolledBack:
        return RolledBack(
            await self._lifecycle.get(session), list(operation.result.get("not_undone", ()))
        )

    async def _rollback(
        self, session_id: str, by: Actor, checkpoint: str, key: Key | None
    ) -> RolledBack:
        async with self._lives.of(session_id).turn("rollback"):
            session = await self._lifecycle.get(session_id)
            check_there(session)
            if session.status is Status.PROVISIONING:
                raise ConflictError(f"Session {session.name} is still being created.")
            await self._lifecycle.check_name_free(session)
            source = self._ready(await self.get_checkpoint(session_id, checkpoint))
            not_undone = await self.not_undone(session, source)
            old = session.machine if session.status in RUNS else None
            generation = session.generation + 1
            self._room.take(session.id, source.id)
            try:
                async with self._operations.noted(
                    "rollback", by, session.id, key,
                    snapshot=source.id, checkpoint=checkpoint, generation=generation, old=old,
                ) as noted:  # fmt: skip
                    running = await self._lifecycle.start(session, source.id, noted, "rollback")
                    rolled = await self._lifecycle.started(
                        session, running, noted, by, "session.rolled_back",
                        snapshot=source.id, generation=generation,
                        result={"not_undone": not_undone},
                    )  # fmt: skip
            finally:
                self._room.give_back(session.id)
                if await self._lives_on(session_id):
                    self._room.adopt(session.id)
            if old is not None:
                # The session has its machine; one that stays is ended by the next start.
                with contextlib.suppress(VmError, OSError):
                    await self._host.end(old)
        await self._snapshots.release(*filter(None, [session.snapshot]))
        return RolledBack(rolled, not_undone)

    async def _lives_on(self, session: str) -> bool:
        return (await self._lifecycle.get(session)).status in RUNS

    def _ready(self, source: Snapshot) -> Snapshot:
        if source.status != "READY":
            raise ConflictError(
                f"Checkpoint {source.checkpoint} is {source.status.lower()}"
                + (f": {source.error}" if source.error else "."),
                state="Nothing was changed.",
            )
        return source

    async def not_undone(self, session: Session, source: Snapshot) -> list[str]:
        """Return the ids of the events since a snapshot with which the session reached beyond its
        machine: no way back undoes these."""
        async with self._database.read() as conn:
            found = await events_table.after(conn, source.event, session.id, MOST_LISTED)
        return [event.id for event in found if event.type in EXTERNAL]

    # The tree

    async def tree(self, session_id: str) -> Tree:
        """Return a session's snapshots and the sessions that were forked from it."""
        session = await self._lifecycle.get(session_id)
        async with self._database.read() as conn:
            rows = await snapshots_table.of_session(conn, session_id)
            children = await sessions.children(conn, session_id)
        return Tree(session, rows, children)
