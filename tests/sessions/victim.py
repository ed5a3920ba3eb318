"""A program that changes sessions without end, and says what it does, until it is killed.

Run as ``python -m tests.sessions.victim ROOT URL SEED``. Each line is JSON: ``begin`` before
something is asked for, ``done`` with what is true from then on.
"""

import contextlib
import json
import random
from typing import Any

from tests.sessions.conftest import ANN, Service
from tests.sessions.killing import work_until_killed
from torpor.sessions import ConflictError, Key, NewSession
from torpor.store.records import Session, Status

SESSIONS = 8


def say(what: str, **facts: Any) -> None:
    """Say something at once."""
    print(json.dumps({"what": what, **facts}), flush=True)


class Worker:
    """Changes one session after the other; each session is one worker's own."""

    def __init__(self, service: Service, number: int, seed: int) -> None:
        self.service = service
        self.name = f"s{number}"
        self.seed = seed
        self.random = random.Random(f"{seed} {number}")

    async def work(self) -> None:
        """Work until killed."""
        turn = 0
        while True:
            turn += 1
            session = await self.session(turn)
            do = self.random.choice(
                [self.count] * 4
                + [self.pause, self.resume] * 3
                + [self.checkpoint, self.rollback, self.fork, self.destroy]
            )
            say("begin", session=session.id, op=do.__name__)
            await do(session)
            now = await self.service.get(session)
            machine = self.service.host.running().get(now.machine or "")
            counted = self.service.host.counted(machine.id) if machine else None
            say(
                "done", session=now.id, op=do.__name__, status=now.status,
                generation=now.generation, counted=counted,
            )  # fmt: skip

    async def session(self, turn: int) -> Session:
        """Return this worker's session; make it if there is none."""
        query = await self.service.sessions.page(_named(self.name))
        if query.items:
            return await self.service.sessions.ready(query.items[0].id, 10)
        say("begin", session=self.name, op="create")
        key = Key(f"{self.name} {self.seed} {turn}", "d")
        wanted = NewSession(name=self.name)
        if self.random.random() < 0.5:
            wanted = await self.configured(f"{self.name}-{self.seed}-{turn}")
        made = await self.service.sessions.create(wanted, ANN, key=key)
        return await self.service.sessions.ready(made.id, 10)

    async def configured(self, name: str) -> NewSession:
        """Return a session of a configuration of its own."""
        key = Key(f"configuration {name}", "d")
        config = await self.service.sessions.configs.create(name, NewSession(), ANN, key=key)
        return await self.service.sessions.configs.new_session(config.id, self.name)

    async def count(self, session: Session) -> None:
        if session.status is Status.READY:
            self.service.host.count(session.machine or "")

    async def pause(self, session: Session) -> None:
        await self.service.sessions.pause(session.id, ANN, durable=self.random.random() < 0.5)

    async def resume(self, session: Session) -> None:
        await self.service.sessions.resume(session.id, ANN)

    async def checkpoint(self, session: Session) -> None:
        await self.service.sessions.checkpoint(session.id, ANN)

    async def rollback(self, session: Session) -> None:
        found, _ = await self.service.sessions.checkpoints(session.id)
        if found:
            chosen = self.random.choice(found)
            await self.service.sessions.rollback(session.id, ANN, chosen.checkpoint or "")

    async def fork(self, session: Session) -> None:
        forked = await self.service.sessions.fork(session.id, ANN, count=2)
        for child in forked.children:
            assert isinstance(child, Session)
            await self.service.sessions.destroy(child.id, ANN)

    async def destroy(self, session: Session) -> None:
        await self.service.sessions.destroy(session.id, ANN)
        config = await self.service.sessions.configs.find(session.config or "")
        if not config.implicit:
            with contextlib.suppress(ConflictError):  # children have it too
                await self.service.sessions.configs.delete(config.id, ANN)


def _named(name: str) -> Any:
    from torpor.store.sessions import SessionQuery

    return SessionQuery(name=name)


if __name__ == "__main__":
    work_until_killed(Worker, SESSIONS)
