"""The service: all that can be done with sessions, opened on a database and a host."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from pathlib import Path

from torpor.sessions.attachments import Attachments
from torpor.sessions.checkpoints import Checkpoints
from torpor.sessions.configs import Configs
from torpor.sessions.creation import AT_ONCE, Creation, Defaults
from torpor.sessions.egress import Egress
from torpor.sessions.egress_log import EgressLog
from torpor.sessions.endings import Endings
from torpor.sessions.errors import ConflictError, SessionError
from torpor.sessions.events import NEWS, Events
from torpor.sessions.execs import Execs
from torpor.sessions.hosts import Facts, MachineHost
from torpor.sessions.lifecycle import STOP, Lifecycle
from torpor.sessions.lineage import Lineage
from torpor.sessions.lives import Lives
from torpor.sessions.model import (
    SYSTEM,
    Actor,
    Changes,
    Forked,
    Key,
    NewSession,
    RolledBack,
    Tree,
    check_changes,
)
from torpor.sessions.operations import Operations
from torpor.sessions.ports import Ports
from torpor.sessions.previews import Previews
from torpor.sessions.reconcile import Reconciler, Report
from torpor.sessions.room import Room, RoomLimits
from torpor.sessions.secrets import Secrets
from torpor.sessions.snapshots import Snapshots
from torpor.sessions.standing import GONE, RUNS, Standing, name_taken, no_session
from torpor.sessions.tasks import Tasks
from torpor.sessions.templates import Templates
from torpor.sessions.transfers import TransferLimits, Transfers
from torpor.sessions.use import InUse, Uses
from torpor.sessions.watch import Keeping, Watch
from torpor.sessions.workspace_model import WorkspaceLimits
from torpor.sessions.workspaces import Workspaces
from torpor.store import hosts as hosts_table
from torpor.store import samples as samples_table
from torpor.store import sessions as table
from torpor.store import snapshots as snapshots_table
from torpor.store.database import Database
from torpor.store.errors import NameTakenError, StoreError
from torpor.store.paging import Page
from torpor.store.records import Event, Sample, Session, Snapshot, Status
from torpor.store.sessions import SessionQuery
from torpor.vm import Statistics

logger = logging.getLogger("torpor.sessions")

FEWEST_CHARACTERS = 4
"""Characters of an id by which a session can be called, if no other one's begins so."""


class Sessions:
    """The sessions of one server. Make it with :meth:`open`."""

    def __init__(
        self,
        database: Database,
        host: MachineHost,
        defaults: Defaults,
        limits: RoomLimits,
        keeping: Keeping,
        transfers: TransferLimits,
        workspaces: WorkspaceLimits,
        me: str | None = None,
        sealing_key: Path | None = None,
    ) -> None:
        self._database = database
        self._host = host
        self.me = me
        """The id of the host that this server holds; None if nobody holds any."""
        self._tasks = Tasks()
        self._lives = Lives()
        database.on_news(NEWS, self._lives.changed)  # what becomes of it may be told by another
        self._room = Room(host, limits)
        self.events = Events(database)
        self.egress_log = EgressLog(database, host, self.events, self._tasks)
        operations = Operations(database, self.events, self._tasks, me)
        self._operations = operations
        self._snapshots = Snapshots(database, host, self.events, self._tasks, me)
        starting = asyncio.Semaphore(AT_ONCE)
        self._endings = Endings(host, self.events, self._tasks, operations.closing)
        self.workspaces = Workspaces(
            database, host, self.events, operations, self._tasks, workspaces, me
        )
        self._attachments = Attachments(database, host, self.events, self._lives, self.workspaces)
        self._standing = Standing(
            database, host, self._endings, self.events, self._snapshots, self._room, self._lives,
            self._attachments, me,
        )  # fmt: skip
        self.egress = Egress(database, host, self.events, self._standing)
        self.configs = Configs(database, self.events, operations)
        self.templates = Templates(
            database, host, self.events, operations, self._tasks, defaults.size, me
        )
        self._creation = Creation(
            database, host, self.events, operations, self.configs, self._room, self._lives,
            self._tasks, self._standing, self.templates, self._attachments, defaults, starting, me,
        )  # fmt: skip
        self._lifecycle = Lifecycle(
            database, host, self.events, operations, self._snapshots, self._room, self._lives,
            self._tasks, self._standing, self._endings, self._attachments, self.egress_log,
            starting,
        )  # fmt: skip
        self._checkpoints = Checkpoints(
            database, host, self.events, operations, self._snapshots, self._lives, self._standing,
            self.egress_log,
        )  # fmt: skip
        self._lineage = Lineage(
            database, host, self.events, operations, self._snapshots, self._room, self._lives,
            self._standing, self._endings, self._creation, self._lifecycle, self._checkpoints,
            self.egress_log,
        )  # fmt: skip
        self._uses = Uses(
            database, host, self.events, self._lives, self._standing, self._lifecycle, self._tasks
        )
        self.execs = Execs(self._uses, self.events, operations, self._tasks)
        self.transfers = Transfers(
            database, self.events, operations, self._uses, self._tasks, transfers, me
        )
        self.ports = Ports(self._uses, self.events)
        self.previews = Previews(database, self.events, operations, self._standing)
        self.secrets = Secrets(database, self.events, self._standing, sealing_key)
        self.secrets.is_open = self.egress.is_open
        self.egress.check_may_open = self.secrets.check_may_open
        self._watch = Watch(
            database, host, self.events, self._snapshots, self._room, self._lives,
            self._lifecycle, self.transfers, self._attachments, self.egress_log, self._tasks,
            keeping, defaults.idle_timeout, me,
        )  # fmt: skip
        self._watching: asyncio.Task[None] | None = None
        self.report = Report()
        """What the start has found and done."""

    @classmethod
    async def open(
        cls,
        database: Database,
        host: MachineHost,
        *,
        transfers: TransferLimits,
        defaults: Defaults | None = None,
        limits: RoomLimits | None = None,
        keeping: Keeping | None = None,
        workspaces: WorkspaceLimits | None = None,
        me: str | None = None,
        sealing_key: Path | None = None,
    ) -> "Sessions":
        """Bring database and host together, and look after the sessions from now on: those on the
        host of id ``me``, which this server holds, or all if there is no such thing. The file
        ``sealing_key`` has the key that secrets are sealed with; without it none can be set."""
        if me is not None:
            async with database.write() as conn:
                await hosts_table.adopt(conn, me)
        opened = cls(
            database, host, defaults or Defaults(), limits or RoomLimits(), keeping or Keeping(),
            transfers, workspaces or WorkspaceLimits(), me, sealing_key,
        )  # fmt: skip
        await opened._begin()
        return opened

    async def _begin(self) -> None:
        self._host.on_end(self._lifecycle.ended)
        self._host.on_reboot(self._lifecycle.rebooted)
        reconciler = Reconciler(
            self._database, self._host, self.events, self._snapshots, self._room,
            self._standing, self._endings, self._creation, self._lifecycle, self._checkpoints,
            self.workspaces, self._attachments, self.egress, self.me,
        )  # fmt: skip
        self.report = await reconciler.run()
        await self.transfers.begin()
        self._watching = asyncio.create_task(self._watch.run(), name="watch over the sessions")
        self.templates.begin()

    async def close(
        self, *, freeze: bool = False, enough: Callable[[], bool] = lambda: False
    ) -> None:
        """Let go of all sessions: leave their machines running, or ``freeze`` them first, durably,
        those that are kept warm too.

        One that cannot be frozen runs on, and so do those whose turn has not come when ``enough``
        returns True. What is under way is waited for.
        """
        self._operations.closing.set()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self.templates.close()
        await self.transfers.close()
        await self._creation.stop_provisioning()
        if freeze:
            await self._freeze_all(enough)
        await self._tasks.close()
        try:
            await self.egress_log.flush()
        except StoreError as error:
            logger.warning("the last of what the wall decided is lost: %s", error)

    async def _freeze_all(self, enough: Callable[[], bool]) -> None:
        async with self._database.read() as conn:
            running = await table.with_status(conn, RUNS, self.me)
        at_once = asyncio.Semaphore(4)

        async def freeze(session: Session) -> None:
            async with at_once:
                if enough():
                    return
                try:
                    await self._lifecycle.pause(
                        session.id, SYSTEM, durable=True, reason=STOP, key=None
                    )
                except (SessionError, StoreError) as error:
                    logger.warning("session %s runs on: %s", session.name, error)

        async with asyncio.TaskGroup() as group:
            for session in running:
                group.create_task(freeze(session), name=f"freezing {session.id}")

    # Finding

    async def find(self, called: str) -> Session:
        """Return a session by its id, its name, or the beginning of its id if that is no other's.

        Raises :exc:`NotFoundError`, and :exc:`ConflictError` if more than one begins so.
        """
        async with self._database.read() as conn:
            found = await table.get(conn, called) or await table.find(conn, called)
            if found is not None:
                return found
            begins = []
            if len(called) >= FEWEST_CHARACTERS:
                begins = await table.beginning_with(conn, called.lower())
        if not begins:
            raise no_session(called)
        if len(begins) > 1:
            raise ConflictError(
                f"More than one session begins with {called!r}.",
                todo="Give more of its id, or its name.",
                code="ambiguous",
            )
        return begins[0]

    async def get(self, session: str) -> Session:
        """Return a session by its id. Raises :exc:`NotFoundError`."""
        return await self._standing.get(session)

    async def page(self, query: SessionQuery) -> Page[Session]:
        """Return a page of sessions, newest first. Raises :exc:`CursorError` of the store."""
        async with self._database.read() as conn:
            return await table.page(conn, query)

    async def counts(self) -> dict[Status, int]:
        """Return how many sessions there are in each state."""
        async with self._database.read() as conn:
            return await table.counts(conn)

    async def ready(self, session: str, limit: float) -> Session:
        """Return a session once it is no longer being created, at most ``limit`` seconds from now.

        Raises TimeoutError.
        """
        live = self._lives.of(session)
        async with asyncio.timeout(limit):
            while True:
                news = live.news
                found = await self._standing.get(session)
                if found.status is not Status.PROVISIONING:
                    return found
                await news.wait()

    def doing(self, session: str) -> str | None:
        """Return the operation that is under way on a session, or None."""
        return self._lives.doing(session)

    # Changing

    async def create(self, new: NewSession, by: Actor, *, key: Key | None = None) -> Session:
        """Begin a new session; see :meth:`ready`."""
        return await self._creation.create(new, by, key)

    async def update(self, session: str, by: Actor, changes: Changes) -> Session:
        """Change what is said of a session; a policy holds at once. Raises :exc:`InvalidError`,
        :exc:`ConflictError`, and :exc:`FailedError` if the policy is kept, and its machine could
        not be told."""
        check_changes(changes)
        wanted = {
            name: dict(value) if name in ("labels", "metadata") else value
            for name, value in vars(changes).items()
            if value is not None and name != "egress"
        }
        found = await self._standing.own(session)
        if found.status in GONE:
            raise ConflictError(
                f"Session {found.name} has been destroyed.", state="Nothing was changed."
            )
        async with self.egress.changing(session, changes.egress) as policy:
            try:
                async with self._database.write() as conn:
                    changed = await table.update(conn, session, **wanted, **policy)
                    told = {**wanted, **policy}
                    await self.events.append(conn, "session.updated", session, by, changes=told)
            except NameTakenError as error:
                raise name_taken(changes.name or "") from error
            self.events.tell(session)
            if policy:
                await self.egress.enforce(changed)
        return changed

    async def pause(
        self,
        session: str,
        by: Actor,
        *,
        durable: bool = False,
        reason: str = "manual",
        key: Key | None = None,
    ) -> Session:
        """See :meth:`Lifecycle.pause`."""
        return await self._lifecycle.pause(session, by, durable=durable, reason=reason, key=key)

    async def resume(
        self, session: str, by: Actor, *, snapshot: str | None = None, key: Key | None = None
    ) -> Session:
        """See :meth:`Lifecycle.resume`."""
        return await self._lifecycle.resume(session, by, snapshot=snapshot, key=key)

    async def destroy(self, session: str, by: Actor) -> None:
        """See :meth:`Lifecycle.destroy`; what is on its way to it or from it is removed too."""
        await self._lifecycle.destroy(session, by)
        await self.transfers.end_of(session)

    # The snapshot tree

    async def checkpoint(
        self,
        session: str,
        by: Actor,
        *,
        label: str = "",
        durable: bool = False,
        key: Key | None = None,
    ) -> Snapshot:
        """See :meth:`Checkpoints.make`."""
        return await self._checkpoints.make(session, by, label=label, durable=durable, key=key)

    async def checkpoints(
        self, session: str, limit: int = 50, after: str | None = None
    ) -> tuple[Sequence[Snapshot], str | None]:
        """See :meth:`Checkpoints.page`."""
        return await self._checkpoints.page(session, limit, after)

    async def get_checkpoint(self, session: str, checkpoint: str) -> Snapshot:
        """See :meth:`Checkpoints.get`."""
        return await self._checkpoints.get(session, checkpoint)

    async def delete_checkpoint(self, session: str, checkpoint: str, by: Actor) -> None:
        """See :meth:`Checkpoints.delete`."""
        work = self._checkpoints.delete(session, checkpoint, by)
        await self._tasks.whole(work, f"deleting checkpoint {checkpoint}")

    async def fork(
        self,
        session: str,
        by: Actor,
        *,
        count: int = 1,
        checkpoint: str | None = None,
        key: Key | None = None,
    ) -> Forked:
        """See :meth:`Lineage.fork`."""
        return await self._lineage.fork(session, by, count=count, checkpoint=checkpoint, key=key)

    async def rollback(
        self, session: str, by: Actor, checkpoint: str, *, key: Key | None = None
    ) -> RolledBack:
        """See :meth:`Lineage.rollback`."""
        return await self._lineage.rollback(session, by, checkpoint, key=key)

    async def tree(self, session: str) -> Tree:
        """See :meth:`Lineage.tree`."""
        return await self._lineage.tree(session)

    async def recoverable(self, session: str) -> list[Snapshot]:
        """Return what a session could be resumed from, newest first."""
        found = await self._standing.get(session)
        async with self._database.read() as conn:
            rows = await snapshots_table.of_session(conn, session)
            if found.snapshot is not None and found.snapshot not in {row.id for row in rows}:
                source = await snapshots_table.get(conn, found.snapshot)  # what it was forked from
                rows = [source, *rows] if source is not None else rows
        return [row for row in reversed(rows) if row.status == "READY"]

    def snapshots_held(
        self, note: Callable[[], Awaitable[None]]
    ) -> AbstractAsyncContextManager[None]:
        """See :meth:`Snapshots.held`."""
        return self._snapshots.held(note)

    async def durable(self, snapshot: str) -> None:
        """See :meth:`Snapshots.durable`."""
        await self._snapshots.durable(snapshot)

    # Using

    def use(
        self, session: str, by: Actor, *, patient: bool = False
    ) -> AbstractAsyncContextManager[InUse]:
        """See :meth:`Uses.use`."""
        return self._uses.use(session, by, patient=patient)

    async def attached(self, session: str) -> InUse:
        """See :meth:`Uses.attached`."""
        return await self._uses.attached(session)

    async def statistics(self, session: str) -> Statistics:
        """Return what a session that runs uses. Raises :exc:`ConflictError`."""
        found = await self._standing.own(session)
        if found.status not in RUNS or found.machine is None:
            raise ConflictError(f"Session {found.name} does not run.")
        return await self._host.statistics(found.machine)

    async def samples(
        self, session: str, since: datetime | None = None, until: datetime | None = None
    ) -> list[Sample]:
        """Return what a session used, moment by moment."""
        async with self._database.read() as conn:
            return await samples_table.of_session(conn, session, since, until)

    def follow(self, session: str | None, cursor: str | None) -> AsyncIterator[Event]:
        """See :meth:`Events.follow`."""
        return self.events.follow(session, cursor)

    async def host(self) -> Facts:
        """Return what the host is and has."""
        return await self._host.facts()

    def measure(
        self,
        operation: Callable[[str, str, float], None],
        samples: Callable[[list[Sample]], None],
    ) -> None:
        """Have ``operation`` told of each operation that ends (kind, `done` or `failed`, seconds),
        and ``samples`` of what is sampled."""
        self._operations.on_end = operation
        self._watch.on_samples = samples

    def free_memory(self) -> int:
        """Return the bytes of memory that can be promised to machines now."""
        return self._room.free()
