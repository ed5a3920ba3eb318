"""Checkpoints: snapshots of sessions that users can go back to."""

from collections.abc import Awaitable, Callable

from torpor.sessions.egress_log import EgressLog
from torpor.sessions.errors import ConflictError, InvalidError, NotFoundError, failed
from torpor.sessions.events import Events
from torpor.sessions.hosts import MachineHost
from torpor.sessions.lives import Lives
from torpor.sessions.model import Actor, Key
from torpor.sessions.operations import Operations
from torpor.sessions.snapshots import Snapshots, checkpoint_id
from torpor.sessions.standing import Standing, check_runs
from torpor.store import sessions
from torpor.store import snapshots as snapshots_table
from torpor.store.database import Database, Transaction
from torpor.store.errors import KeyUsedError
from torpor.store.records import Session, Snapshot, SnapshotKind, Status
from torpor.vm import VmError
from torpor.vm.new_snapshot import new_id

Also = Callable[[Transaction, Snapshot], Awaitable[None]]
"""What else is written down in the transaction that notes a checkpoint. It may be asked again, in
another one; if it raises :exc:`ConflictError` or :exc:`KeyUsedError`, the checkpoint stands all the
same."""


class Checkpoints:
    """Makes, finds and deletes checkpoints."""

    def __init__(
        self,
        database: Database,
        host: MachineHost,
        events: Events,
        operations: Operations,
        snapshots: Snapshots,
        lives: Lives,
        standing: Standing,
        egress_log: EgressLog,
    ) -> None:
        self._database = database
        self._host = host
        self._events = events
        self._operations = operations
        self._snapshots = snapshots
        self._lives = lives
        self._standing = standing
        self._egress_log = egress_log

    async def make(
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
            lambda: self._make(session, by, label, key),
            lambda operation: self.get(session, operation.result["checkpoint"]),
        )
        if durable:
            await self._snapshots.durable(made.id)
            made = await self.get(session, made.checkpoint or "")
        return made

    async def _make(self, session_id: str, by: Actor, label: str, key: Key | None) -> Snapshot:
        async with self._lives.of(session_id).turn("checkpoint"):
            session = await self._standing.own(session_id)
            return await self.cut(session, by, "checkpoint", label, key)

    async def cut(
        self,
        session: Session,
        by: Actor,
        kind: SnapshotKind,
        label: str,
        key: Key | None,
        children: int = 1,
        also: Also | None = None,
    ) -> Snapshot:
        """Make a snapshot of a session that users can go back to."""
        checkpoint = checkpoint_id()
        if session.status is Status.PAUSED:
            return await self._mark(session, by, kind, label, key, checkpoint, also)
        check_runs(session, "frozen")
        snapshot = new_id()
        with self._egress_log.cutting(session.id):
            row = await self._freeze(
                session, snapshot, checkpoint, by, kind, label, key, children, also
            )
        self._events.tell(session.id)
        self._snapshots.settle(snapshot, session.snapshot)
        return row

    async def _freeze(
        self,
        session: Session,
        snapshot: str,
        checkpoint: str,
        by: Actor,
        kind: SnapshotKind,
        label: str,
        key: Key | None,
        children: int,
        also: Also | None,
    ) -> Snapshot:
        assert session.machine is not None
        async with self._operations.noted(
            "checkpoint", by, session.id, key,
            snapshot=snapshot, checkpoint=checkpoint, label=label, snapshot_kind=kind,
        ) as noted:  # fmt: skip
            try:
                kept = await self._host.freeze(
                    session.machine, snapshot, noted.labels, stop=False, children=children
                )
            except (VmError, OSError) as error:
                raise failed(
                    error,
                    f"Session {session.name} could not be frozen",
                    state=self._standing.after_freeze(session, error),
                ) from error

            async def write(conn: Transaction) -> Snapshot:
                await noted.done(conn, checkpoint=checkpoint, snapshot=snapshot)
                row = await self.note(conn, session, kept.id, by, noted.record.plan)
                if also is not None:
                    await also(conn, row)
                return row

            try:
                return await self._operations.written(write, noted)
            except (ConflictError, KeyUsedError):
                also = None
                await self._operations.written(write, noted)
                raise

    async def note(
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
        also: Also | None,
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
            if also is not None:
                await also(conn, row)
            await noted.done(conn, checkpoint=row.checkpoint, snapshot=row.id)
        self._events.tell(session.id)
        return row

    async def _told(self, conn: Transaction, session: Session, row: Snapshot, by: Actor) -> None:
        await self._events.append(
            conn, "checkpoint.created", session.id, by, checkpoint_id=row.checkpoint,
            snapshot_id=row.id, label=row.label, generation=row.generation,
            stored_bytes=row.stored_bytes,
        )  # fmt: skip

    async def get(self, session: str, checkpoint: str) -> Snapshot:
        """Return a checkpoint. Raises :exc:`NotFoundError`."""
        async with self._database.read() as conn:
            found = await snapshots_table.by_checkpoint(conn, session, checkpoint)
        if found is None:
            raise NotFoundError(f"There is no checkpoint {checkpoint!r} of this session.")
        return found

    async def page(
        self, session: str, limit: int, after: str | None
    ) -> tuple[list[Snapshot], str | None]:
        """Return a page of a session's checkpoints, newest first, and the cursor of the next."""
        async with self._database.read() as conn:
            page = await snapshots_table.page(conn, session, limit, after)
        return list(page.items), page.next_cursor

    async def delete(self, session_id: str, checkpoint: str, by: Actor) -> None:
        """Delete a checkpoint; one that is gone already is left. What stands on its snapshot keeps
        that."""
        async with self._lives.of(session_id).turn("delete"):
            await self._standing.own(session_id)
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


def check_ready(source: Snapshot) -> Snapshot:
    """Return a checkpoint if it can be gone back to. Raises :exc:`ConflictError`."""
    if source.status != "READY":
        raise ConflictError(
            f"Checkpoint {source.checkpoint} is {source.status.lower()}"
            + (f": {source.error}" if source.error else "."),
            state="Nothing was changed.",
        )
    return source
