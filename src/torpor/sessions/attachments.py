"""Which session has which workspace.

A session holds one from the transaction in which it comes to be until the one in which it is gone,
and no other can have it in between.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torpor.sessions.errors import FailedError, failed
from torpor.sessions.events import Events
from torpor.sessions.hosts import DiskState, MachineHost, Running
from torpor.sessions.lives import Lives
from torpor.sessions.model import SYSTEM, Actor, NewSession, now
from torpor.sessions.workspace_model import called, in_use
from torpor.sessions.workspaces import GONE, Workspaces
from torpor.store import sessions as sessions_table
from torpor.store import workspaces as table
from torpor.store.database import Database, Transaction
from torpor.store.records import Session, Status, Workspace
from torpor.vm import MachineDiedError, SnapshotError, VmError


@dataclass(frozen=True)
class Left:
    """What became of a workspace that its session has given up: its disk as it was saved, or why
    there is none that could be used."""

    workspace: Workspace
    disk: DiskState | None
    error: str = ""


class Attachments:
    """Gives workspaces to sessions, and takes them back."""

    def __init__(
        self,
        database: Database,
        host: MachineHost,
        events: Events,
        lives: Lives,
        workspaces: Workspaces,
    ) -> None:
        self._database = database
        self._host = host
        self._events = events
        self._lives = lives
        self._workspaces = workspaces

    # A session takes one

    async def claim(
        self, conn: Transaction, new: NewSession, session: Session, by: Actor
    ) -> Session:
        """Have a session that was just inserted hold the workspace that is wanted for it, and
        return it as it is then. One that was named must be AVAILABLE, else it is
        :exc:`ConflictError`; one that is to be made is made when the session is started. Raises
        :exc:`NotFoundError`, and :exc:`ConflictError` if there may be no more."""
        if new.workspace is not None:
            found = await self._workspaces.own(conn, new.workspace)
            if found.state != "AVAILABLE":
                raise in_use(found)
            await table.update(
                conn, found.id, ["AVAILABLE"], state="ATTACHING", session=session.id,
                updated_at=now(), updated_by=by.id,
            )  # fmt: skip
        elif new.persistent_workspace:
            found = await self._workspaces.insert_for(conn, session, by)
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
        # A start that was cut off may have made it: it is the same then.
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
        if self._host.disk(found.id) is None:
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
        found = left.workspace
        if left.disk is None:
            await self._workspaces.fail(conn, found, left.error, by)
            return
        await table.update(conn, found.id, state="AVAILABLE", session=None, **_saved(left.disk))
        await self._events.append(
            conn, "workspace.released", found.session, by, workspace_id=found.id,
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
        await self._workspaces.remove_left()

    async def tidy(self) -> list[str]:
        """Try again what could not be done. Return the sessions that are being destroyed and wait
        for their workspaces to be saved."""
        await self._workspaces.remove_left()
        async with self._database.read() as conn:
            releasing = await table.in_state(conn, ["RELEASING"], self._workspaces.me)
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
    disk = host.disk(workspace)
    if disk is not None:
        with suppress(KeyError):  # a database that was restored may not know of it
            await table.update(conn, workspace, **_saved(disk))


def _saved(disk: DiskState) -> dict[str, Any]:
    return {"stored_bytes": disk.stored_bytes, "saved_at": disk.saved_at}
