"""Workspaces: disks that outlive sessions, made, found and deleted.

Which session has which is another matter (:mod:`torpor.sessions.attachments`); what a disk holds is
the host's.
"""

import logging
import uuid

from torpor.sessions.errors import elsewhere, failed
from torpor.sessions.events import Events
from torpor.sessions.hosts import MachineHost
from torpor.sessions.model import SYSTEM, Actor, Key, now
from torpor.sessions.operations import Operations
from torpor.sessions.tasks import Tasks
from torpor.sessions.workspace_model import (
    MadeWorkspace,
    NewWorkspace,
    WorkspaceLimits,
    called,
    check_workspace,
    in_use,
    many_workspaces,
    no_workspace,
    size_of,
    too_many,
)
from torpor.store import hosts as hosts_table
from torpor.store import operations as operations_table
from torpor.store import workspaces as table
from torpor.store.database import Database, Transaction
from torpor.store.paging import Page
from torpor.store.records import Operation, Session, Workspace
from torpor.store.workspaces import WorkspaceQuery
from torpor.vm import VmError

logger = logging.getLogger("torpor.sessions")

FREE = ("AVAILABLE", "FAILED")
"""The states of workspaces that can be deleted."""
GONE = "Its disk is gone."


class Workspaces:
    """Makes and deletes workspaces, and keeps account of which session has which.

    ``wanted`` is everywhere the id of a workspace, or its name, if no other one has that.
    """

    def __init__(
        self,
        database: Database,
        host: MachineHost,
        events: Events,
        operations: Operations,
        tasks: Tasks,
        limits: WorkspaceLimits,
        me: str | None,
    ) -> None:
        self._database = database
        self._host = host
        self._events = events
        self._operations = operations
        self._tasks = tasks
        self._limits = limits
        self.me = me
        """The id of the host that this server holds; None if nobody holds any."""

    # Finding

    async def get(self, wanted: str) -> Workspace:
        """Return a workspace. Raises :exc:`NotFoundError`, and :exc:`ConflictError` if more than
        one has the name."""
        async with self._database.read() as conn:
            return await find(conn, wanted)

    async def page(self, query: WorkspaceQuery) -> Page[Workspace]:
        """Return a page of workspaces, newest first. Raises :exc:`CursorError` of the store."""
        async with self._database.read() as conn:
            return await table.page(conn, query)

    # Making and deleting

    async def create(
        self, new: NewWorkspace, by: Actor, *, key: Key | None = None
    ) -> MadeWorkspace:
        """Make a workspace, which is empty. Asked for again with the same key it is made anew if it
        was deleted since.

        Raises :exc:`InvalidError`, :exc:`ConflictError` if there may be no more, and
        :exc:`FailedError`, nothing being left.
        """
        check_workspace(new, self._limits)

        async def create() -> MadeWorkspace:
            return MadeWorkspace(await self._create(new, by, key), before=False)

        async def again(operation: Operation) -> MadeWorkspace:
            async with self._database.write() as conn:
                found = await table.get(conn, operation.result["workspace"])
                if found is None:
                    await operations_table.free_key(conn, operation.id)
                elif found.state == "DELETING":
                    raise in_use(found)
            return MadeWorkspace(found, before=True) if found is not None else await create()

        return await self._operations.once("creating a workspace", by, key, create, again)

    async def _create(self, new: NewWorkspace, by: Actor, key: Key | None) -> Workspace:
        made = self._new(new.name, size_of(new.size_gib), by)
        record = self._operations.new("workspace", by, None, key, workspace=made.id)
        async with self._database.write() as conn:
            await self._insert(conn, made, by)
            await operations_table.insert(conn, record)
        self._events.tell(None)
        async with self._operations.under_way(record, by) as noted:
            try:
                disk = await self._host.make_disk(made.id, made.size_bytes)
            except (VmError, OSError) as error:
                await self._undo(made)
                raise failed(
                    error, "The workspace could not be made", state="Nothing was created."
                ) from error

            async def write(conn: Transaction) -> Workspace:
                await noted.done(conn, workspace=made.id)
                stored = disk.stored_bytes
                return await table.update(conn, made.id, state="AVAILABLE", stored_bytes=stored)

            return await self._operations.written(write, noted)

    async def _insert(self, conn: Transaction, made: Workspace, by: Actor) -> None:
        there = await table.count(conn)
        if there >= self._limits.most:
            raise too_many(there, self._limits.most)
        await table.insert(conn, made)
        await self._events.append(
            conn, "workspace.created", made.session, by, workspace_id=made.id, name=made.name,
            size_bytes=made.size_bytes,
        )  # fmt: skip

    async def insert_for(self, conn: Transaction, session: Session, by: Actor) -> Workspace:
        """Note that a workspace is to be made for a session. Raises :exc:`ConflictError` if there
        may be no more."""
        made = self._new(session.name, size_of(self._limits.default), by, session.id)
        await self._insert(conn, made, by)
        return made

    async def fail(self, conn: Transaction, found: Workspace, error: str, by: Actor) -> None:
        """Note that there is nothing of a workspace that could be used, and that nobody has it."""
        await table.update(conn, found.id, state="FAILED", session=None, error=error)
        await self._events.append(
            conn, "workspace.failed", found.session, by, workspace_id=found.id, error=error
        )

    async def _undo(self, made: Workspace) -> None:
        """Remove a workspace that did not come to be."""
        async with self._database.write() as conn:
            await table.update(conn, made.id, state="DELETING")
        await self.remove_left()

    async def delete(self, wanted: str, by: Actor) -> None:
        """Delete a workspace and what it holds. Raises :exc:`NotFoundError`, :exc:`ConflictError`
        while a session has it, and :exc:`FailedError`: then it is tried again by itself."""
        await self._tasks.whole(self._delete(wanted, by), f"deleting workspace {wanted}")

    async def _delete(self, wanted: str, by: Actor) -> None:
        async with self._database.write() as conn:
            found = await self.own(conn, wanted)
            if found.state not in FREE:
                raise in_use(found)
            await table.update(conn, found.id, state="DELETING", updated_at=now(), updated_by=by.id)
        try:
            await self._remove(found, by)
        except (VmError, OSError) as error:
            raise failed(
                error,
                f"Workspace {called(found)} could not be removed",
                state="It is being deleted, and that is tried again every minute.",
            ) from error

    async def _remove(self, found: Workspace, by: Actor) -> None:
        await self._host.remove_disk(found.id)
        async with self._database.write() as conn:
            if await table.get(conn, found.id) is None:
                return
            # Its row goes last: after a crash in between, the next start finds it.
            await table.remove(conn, found.id)
            await self._events.append(
                conn, "workspace.deleted", None, by, workspace_id=found.id, name=found.name
            )
        self._events.tell(None)

    async def remove_left(self) -> None:
        """Remove what is being deleted, as far as that can be done now."""
        async with self._database.read() as conn:
            left = await table.in_state(conn, ["DELETING"], self.me)
        for found in left:
            try:
                await self._remove(found, SYSTEM)
            except (VmError, OSError) as error:
                logger.warning("workspace %s stays for now: %s", found.id, error)

    # What was cut off

    async def compare(self) -> int:
        """Bring records and disks together, when a program begins: remove what the one before had
        begun to make, and note what is gone. Return how many were removed. (Those that are to be
        made for sessions are made when these are started.)"""
        async with self._database.read() as conn:
            found = await table.in_state(conn, ["PENDING", "AVAILABLE"], self.me)
        if not found:
            return 0
        undone = [each for each in found if each.state == "PENDING" and each.session is None]
        available = [each for each in found if each.state == "AVAILABLE"]
        gone = [each for each in available if self._host.disk(each.id) is None]
        async with self._database.write() as conn:
            for each in undone:
                await table.update(conn, each.id, state="DELETING")
            for each in gone:
                await self.fail(conn, each, GONE, SYSTEM)
        await self.remove_left()
        return len(undone)

    async def own(self, conn: Transaction, wanted: str) -> Workspace:
        """Return a workspace that is to be changed or used, and so has to be on the host of this
        server. Raises :exc:`NotFoundError`, and :exc:`ConflictError`."""
        found = await find(conn, wanted)
        if self.me is not None and found.host not in (None, self.me):
            host = await hosts_table.get(conn, found.host or "")
            raise elsewhere(f"Workspace {called(found)}", found.host, host)
        return found

    def _new(self, name: str | None, size: int, by: Actor, session: str | None = None) -> Workspace:
        moment = now()
        return Workspace(
            str(uuid.uuid4()), name, moment, moment, by.id, by.id, "PENDING", size,
            session=session, host=self.me,
        )  # fmt: skip


async def find(conn: Transaction, wanted: str) -> Workspace:
    """Return a workspace by its id, or its name. Raises :exc:`NotFoundError`, and
    :exc:`ConflictError` if more than one has the name."""
    found = await table.get(conn, wanted.lower())
    if found is not None:
        return found
    named = await table.named(conn, wanted)
    if len(named) > 1:
        raise many_workspaces(wanted)
    if not named:
        raise no_workspace(wanted)
    return named[0]
