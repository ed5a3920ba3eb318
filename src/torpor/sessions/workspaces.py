"""Workspaces: disks that outlive sessions, each of them with one session at a time.

A session holds one from the transaction in which it comes to be until the one in which it is gone,
and no other can have it in between. What the disk holds is the host's; here is who has it.
"""

import logging
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torpor.sessions.errors import FailedError, failed
from torpor.sessions.events import Events
from torpor.sessions.hosts import DiskState, MachineHost, Running
from torpor.sessions.lives import Lives
from torpor.sessions.model import SYSTEM, Actor, Key, NewSession, now
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
from torpor.store import operations as operations_table
from torpor.store import sessions as sessions_table
from torpor.store import workspaces as table
from torpor.store.database import Database, Transaction
from torpor.store.paging import Page
from torpor.store.records import Operation, Session, Status, Workspace
from torpor.store.workspaces import WorkspaceQuery
from torpor.vm import MachineDiedError, SnapshotError, VmError

logger = logging.getLogger("torpor.sessions")

FREE = ("AVAILABLE", "FAILED")
"""The states of workspaces that can be deleted."""
GONE = "Its disk is gone."


@dataclass(frozen=True)
class Left:
    """What became of a workspace that its session has given up: its disk as it was saved, or why
    there is none that could be used."""

    workspace: Workspace
    disk: DiskState | None
    error: str = ""


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
        lives: Lives,
        tasks: Tasks,
        limits: WorkspaceLimits,
    ) -> None:
        self._database = database
        self._host = host
        self._events = events
        self._operations = operations
        self._lives = lives
        self._tasks = tasks
        self._limits = limits

    # Finding

    async def get(self, wanted: str) -> Workspace:
        """Return a workspace. Raises :exc:`NotFoundError`, and :exc:`ConflictError` if more than
        one has the name."""
        async with self._database.read() as conn:
            return await _there(conn, wanted)

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
        made = _new(new.name, size_of(new.size_gib), by)
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
            found = await _there(conn, wanted)
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
            left = await table.in_state(conn, ["DELETING"])
        for found in left:
            try:
                await self._remove(found, SYSTEM)
            except (VmError, OSError) as error:
                logger.warning("workspace %s stays for now: %s", found.id, error)

    # A session takes one

    async def claim(
        self, conn: Transaction, new: NewSession, session: Session, by: Actor
    ) -> Session:
        """Have a session that was just inserted hold the workspace that is wanted for it, and
        return it as it is then. One that was named must be AVAILABLE, else it is
        :exc:`ConflictError`; one that is to be made is made when the session is started. Raises
        :exc:`NotFoundError`, and :exc:`ConflictError` if there may be no more."""
        if new.workspace is not None:
            found = await _there(conn, new.workspace)
            if found.state != "AVAILABLE":
                raise in_use(found)
            await table.update(
                conn, found.id, ["AVAILABLE"], state="ATTACHING", session=session.id,
                updated_at=now(), updated_by=by.id,
            )  # fmt: skip
        elif new.persistent_workspace:
            found = _new(session.name, size_of(self._limits.default), by, session.id)
            await self._insert(conn, found, by)
        else:
            return session
        unchanged = session.updated_at
        return await sessions_table.update(
            conn, session.id, workspace=found.id, updated_at=unchanged
        )

    async def prepare(self, session: Session) -> None:
        """See that the disk of the workspace of a session is there before it is started: one that
        is to be made for it is made now. Raises :exc:`torpor.vm.VmError` and OSError."""
        if session.workspace is None:
            return
        async with self._database.read() as conn:
            found = await table.get(conn, session.workspace)
        if found is None or found.state != "PENDING":
            return
        # A start that was cut off may have made it.
        disk = self._host.disks().get(found.id)
        if disk is None:
            disk = await self._host.make_disk(found.id, found.size_bytes)
        async with self._database.write() as conn:
            await table.update(
                conn, found.id, ["PENDING"], state="ATTACHING", stored_bytes=disk.stored_bytes
            )

    async def attached(
        self, conn: Transaction, session: Session, running: Running, by: Actor
    ) -> None:
        """Note that a machine of a session runs with the disk of its workspace, and if that could
        not be mounted."""
        await self.look_at(conn, session, running)
        if session.workspace is None:
            return
        found = await table.of_session(conn, session.id)
        if found is None:
            return
        if found.state == "ATTACHING":
            await table.update(conn, found.id, state="ATTACHED")
            await self._events.append(
                conn, "workspace.attached", session.id, by, workspace_id=found.id, name=found.name
            )
        await note_saved(conn, self._host, found.id)

    async def look_at(self, conn: Transaction, session: Session, running: Running) -> None:
        """Tell it if the disk of a machine could not be mounted."""
        if running.not_mounted is not None:
            await self._events.append(
                conn, "workspace.not_mounted", session.id, SYSTEM,
                workspace_id=session.workspace, error=running.not_mounted,
            )  # fmt: skip

    # A session gives one up

    async def leave(self, conn: Transaction, session: Session, by: Actor) -> Workspace | None:
        """Note that a session is about to give up its workspace, which is to be saved then
        (:meth:`save`), and return it. One that was never made is deleted instead; None then, and if
        there is none."""
        found = await table.of_session(conn, session.id)
        if found is None:
            return None
        if found.state == "PENDING":
            await table.update(conn, found.id, state="DELETING", session=None)
            await sessions_table.update(conn, session.id, workspace=None)
            return None
        if found.state == "RELEASING":
            return found
        return await table.update(
            conn, found.id, state="RELEASING", updated_at=now(), updated_by=by.id
        )

    async def save(self, found: Workspace, machine: str) -> Left:
        """Save what a machine has written to a workspace, "" if there is none, and take it from it.
        Raises :exc:`FailedError` if that cannot be done now."""
        if found.id not in self._host.disks():
            return Left(found, None, GONE)
        try:
            try:
                return Left(found, await self._host.release_disk(machine, found.id))
            except MachineDiedError:  # just now: what was kept of it is what there is
                return Left(found, await self._host.release_disk("", found.id))
        except SnapshotError as error:
            return Left(found, None, str(error))
        except (VmError, OSError) as error:
            raise failed(
                error,
                f"Workspace {called(found)} could not be saved",
                state="It is still the session's, whose machine was not ended; that is tried again"
                " every minute.",
            ) from error

    async def left(self, conn: Transaction, left: Left, by: Actor) -> None:
        """Note that a session has given up its workspace: it is free for another one."""
        found, data = left.workspace, {"workspace_id": left.workspace.id}
        if left.disk is None:
            await table.update(conn, found.id, state="FAILED", session=None, error=left.error)
            await self._events.append(
                conn, "workspace.failed", found.session, by, **data, error=left.error
            )
            return
        await table.update(conn, found.id, state="AVAILABLE", session=None, **_saved(left.disk))
        await self._events.append(
            conn, "workspace.released", found.session, by, **data,
            stored_bytes=left.disk.stored_bytes,
        )  # fmt: skip

    async def let_go(self, session: str) -> None:
        """Free the workspace that a session is about to give up which has no machine and is not
        being destroyed. If that cannot be done now, it is tried again by :meth:`tidy`."""
        async with self._database.read() as conn:
            found = await table.of_session(conn, session)
        if found is not None and found.state == "RELEASING":
            with suppress(FailedError):
                left = await self.save(found, "")
                async with self._database.write() as conn:
                    await self.left(conn, left, SYSTEM)
                    await sessions_table.update(conn, session, workspace=None)
                self._events.tell(session)
        await self.remove_left()

    # What was cut off

    async def compare(self) -> int:
        """Bring records and disks together, when a program begins: remove what the one before had
        begun to make, and note what is gone. Return how many were removed. (Those that are to be
        made for sessions are made when these are started.)"""
        async with self._database.read() as conn:
            found = await table.in_state(conn, ["PENDING", "AVAILABLE"])
        if not found:
            return 0
        there = self._host.disks()
        undone = [each for each in found if each.state == "PENDING" and each.session is None]
        gone = [each for each in found if each.state == "AVAILABLE" and each.id not in there]
        async with self._database.write() as conn:
            for each in undone:
                await table.update(conn, each.id, state="DELETING")
            for each in gone:
                await self.left(conn, Left(each, None, GONE), SYSTEM)
        await self.remove_left()
        return len(undone)

    async def tidy(self) -> list[str]:
        """Try again what could not be done. Return the sessions that are being destroyed and wait
        for their workspaces to be saved."""
        await self.remove_left()
        async with self._database.read() as conn:
            releasing = await table.in_state(conn, ["RELEASING"])
        waiting = []
        for found in releasing:
            session = found.session or ""
            async with self._database.read() as conn:
                holder = await sessions_table.get(conn, session)
            if holder is None or self._lives.of(session).busy:
                continue
            if holder.status is Status.DESTROYING:
                waiting.append(session)
                continue
            async with self._lives.of(session).turn("release"):
                await self.let_go(session)
        return waiting


async def note_saved(conn: Transaction, host: MachineHost, workspace: str) -> None:
    """Note what a host says of the content of a workspace that was just saved."""
    disk = host.disks().get(workspace)
    if disk is not None:
        with suppress(KeyError):  # a database that was restored may not know of it
            await table.update(conn, workspace, **_saved(disk))


def _saved(disk: DiskState) -> dict[str, Any]:
    return {"stored_bytes": disk.stored_bytes, "saved_at": disk.saved_at}


def _new(name: str | None, size: int, by: Actor, session: str | None = None) -> Workspace:
    moment = now()
    return Workspace(
        str(uuid.uuid4()), name, moment, moment, by.id, by.id, "PENDING", size, session=session
    )


async def _there(conn: Transaction, wanted: str) -> Workspace:
    found = await table.get(conn, wanted.lower())
    if found is not None:
        return found
    named = await table.named(conn, wanted)
    if len(named) > 1:
        raise many_workspaces(wanted)
    if not named:
        raise no_workspace(wanted)
    return named[0]
