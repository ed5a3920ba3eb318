"""A program that makes workspaces, gives them to sessions, and deletes them, without end, and says
what it does, until it is killed.

Run as ``python -m tests.sessions.workspace_victim ROOT SEED``. Each line is JSON: ``begin`` before
something is done with a workspace, ``done`` with the lines that it holds from then on.
"""

import json
import random
from typing import Any

from tests.sessions.conftest import ANN, Service
from tests.sessions.killing import work_until_killed
from torpor.sessions import Key, NewSession, NewWorkspace
from torpor.store.records import Session, Status, Workspace
from torpor.store.workspaces import WorkspaceQuery

WORKERS = 6


def say(what: str, workspace: str, op: str, **facts: Any) -> None:
    """Say something at once."""
    print(json.dumps({"what": what, "workspace": workspace, "op": op, **facts}), flush=True)


def content(service: Service, session: Session | None, workspace: str) -> list[str]:
    """Return the lines that a workspace holds: those of the machine that has it, if one does."""
    if session is not None and session.machine is not None:
        return service.host.read_disk(session.machine) or []
    return service.host.saved_on(workspace)


class Worker:
    """Does one thing after the other with a workspace that is its own."""

    def __init__(self, service: Service, number: int, seed: int) -> None:
        self.service = service
        self.name = f"w{number}"
        self.seed = seed
        self.turn = 0
        self.random = random.Random(f"{seed} {number}")

    async def work(self) -> None:
        """Work until killed."""
        while True:
            self.turn += 1
            workspace = await self.workspace()
            session = None
            if workspace.session is not None:
                session = await self.service.sessions.ready(workspace.session, 10)
            do = self.random.choice(self.choices(session))
            say("begin", workspace.id, do.__name__)
            await do(workspace, session)
            if do == self.delete:
                say("done", workspace.id, "delete")
                continue
            now = await self.service.sessions.workspaces.get(workspace.id)
            holder = None if now.session is None else await self.service.sessions.get(now.session)
            lines = content(self.service, holder, workspace.id)
            say("done", workspace.id, do.__name__, state=now.state, lines=lines)

    def choices(self, session: Session | None) -> list[Any]:
        """Return what can be done."""
        if session is None:
            return [self.attach] * 5 + [self.keep, self.delete]
        if session.status is Status.PAUSED:
            return [self.resume] * 3 + [self.destroy]
        return [self.write] * 4 + [self.pause, self.checkpoint, self.rollback] + [self.destroy] * 2

    async def workspace(self) -> Workspace:
        """Return this worker's workspace; make it if there is none."""
        page = await self.service.sessions.workspaces.page(WorkspaceQuery(200))
        for each in page.items:
            if each.name == self.name:
                return each
        key = Key(f"{self.name} {self.seed} {self.turn}", "d")
        new = NewWorkspace(1, self.name)
        made = await self.service.sessions.workspaces.create(new, ANN, key=key)
        say("done", made.workspace.id, "create", state="AVAILABLE", lines=[])
        return made.workspace

    async def attach(self, workspace: Workspace, _: None) -> None:
        new = NewSession(workspace=workspace.id)
        session = await self.service.sessions.create(new, ANN)
        await self.service.sessions.ready(session.id, 10)

    async def keep(self, workspace: Workspace, _: None) -> None:
        """Have one made for a session, and delete it when that is gone."""
        session = await self.service.sessions.create(NewSession(persistent_workspace=True), ANN)
        session = await self.service.sessions.ready(session.id, 10)
        await self.service.sessions.destroy(session.id, ANN)
        await self.service.sessions.workspaces.delete(session.workspace or "", ANN)

    async def delete(self, workspace: Workspace, _: None) -> None:
        await self.service.sessions.workspaces.delete(workspace.id, ANN)

    async def write(self, _: Workspace, session: Session) -> None:
        self.service.host.write_disk(session.machine or "", f"{self.seed}.{self.turn}")

    async def pause(self, _: Workspace, session: Session) -> None:
        await self.service.sessions.pause(session.id, ANN, durable=self.random.random() < 0.5)

    async def resume(self, _: Workspace, session: Session) -> None:
        await self.service.sessions.resume(session.id, ANN)

    async def checkpoint(self, _: Workspace, session: Session) -> None:
        await self.service.sessions.checkpoint(session.id, ANN)

    async def rollback(self, _: Workspace, session: Session) -> None:
        found, _more = await self.service.sessions.checkpoints(session.id)
        if found:
            chosen = self.random.choice(found)
            await self.service.sessions.rollback(session.id, ANN, chosen.checkpoint or "")

    async def destroy(self, _: Workspace, session: Session) -> None:
        await self.service.sessions.destroy(session.id, ANN)


if __name__ == "__main__":
    work_until_killed(Worker, WORKERS)
