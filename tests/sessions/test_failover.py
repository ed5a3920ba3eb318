"""A server is killed, or stands still, while it works: another one takes its host, and finishes
what was under way or undoes it."""

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.sessions.conftest import ANN, Service
from tests.sessions.server import HOST, claim
from torpor.api.tenure import held
from torpor.sessions.hosts import SESSION
from torpor.store import Database, operations
from torpor.store.errors import BusyError, HostHeldError
from torpor.store.records import Session, Status

ROOT = Path(__file__).parents[2]
KILLS = 3


class Other:
    """A server in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, root: Path, url: str, place: str, seconds: float) -> "Other":
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.sessions.server",
                root,
                url,
                place,
                str(seconds),
                stdout=asyncio.subprocess.PIPE,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
            )
        )

    async def says(self, wanted: str = "") -> str:
        """Return the next thing that it says, or wait until that is what is wanted."""
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            while True:
                said = (await self.process.stdout.readline()).decode().strip()
                assert said, "it has ended"
                if wanted in ("", said):
                    return said

    async def kill(self) -> None:
        self.process.kill()
        await self.process.communicate()


@contextlib.asynccontextmanager
async def taken_over(root: Path, url: str, place: str) -> AsyncIterator[Service]:
    """The next server, as soon as it gets the host."""
    service = Service(root, url)
    service.options["me"] = HOST
    database = await service.opened_database()
    try:
        async with asyncio.timeout(30), contextlib.AsyncExitStack() as stack:
            while True:
                try:
                    await stack.enter_async_context(held(database, claim(place), 30))
                    break
                except HostHeldError:
                    await asyncio.sleep(0.1)
            await service.open()
            yield service
            await service.sessions.close()
    finally:
        await database.close()


async def check(service: Service, session: Session, killed_in: str) -> None:
    """See that a session is paused or runs, whole, and that nothing else is left."""
    assert session.status in (Status.READY, Status.PAUSED), session
    async with service.database.read() as conn:
        assert await operations.unfinished(conn) == []
    running = service.host.running()
    if session.status is Status.READY:
        assert list(running) == [session.machine]
        assert running[session.machine or ""].labels[SESSION] == session.id
    else:
        assert running == {}
        assert session.snapshot in service.host.snapshots()
    types = await service.types(session)
    told = [
        each for each in types if each in ("session.ready", "session.paused", "session.resumed")
    ]
    assert (
        told[-1]
        == {
            Status.READY: "session.resumed" if "session.paused" in told else "session.ready",
            Status.PAUSED: "session.paused",
        }[session.status]
    ), (killed_in, types)


@pytest.mark.parametrize("place", ["same", "other"])
async def test_what_a_killed_server_was_doing_is_finished_or_undone(
    tmp_path: Path, database_url: str, place: str
) -> None:
    """From the same place the host is taken at once, from another one when its time is over."""
    chance = random.Random(place)
    outcomes = set()
    for turn in range(KILLS):
        other = await Other.start(tmp_path / str(turn), database_url, "same", 2)
        try:
            session = await other.says()
            killed_in = ("resume", "pause")[turn % 3 == 2]
            await other.says(killed_in)
            await asyncio.sleep(chance.uniform(0, 0.35))
        finally:
            await other.kill()
        async with taken_over(tmp_path / str(turn), database_url, place) as service:
            found = await service.sessions.get(session)
            await check(service, found, killed_in)
            outcomes.add(found.status)
            counted = found if found.status is Status.READY else None
            if counted is None:
                counted = await service.sessions.resume(session, ANN)
            assert service.host.counted(counted.machine or "") >= 1
            await service.sessions.destroy(session, ANN)
            assert service.host.machines() == []
    assert outcomes <= {Status.READY, Status.PAUSED}


async def stopped(other: Other, url: str) -> None:
    """Have a server stand still, but not just while it writes: nobody else could, then."""
    database = await Database.open(url)
    try:
        while True:
            other.process.send_signal(signal.SIGSTOP)
            with contextlib.suppress(BusyError, TimeoutError):
                async with asyncio.timeout(1), database.write():
                    return
            other.process.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.01)
    finally:
        await database.close()


async def test_one_that_stood_still_too_long_changes_nothing_any_more(
    tmp_path: Path, database_url: str
) -> None:
    other = await Other.start(tmp_path, database_url, "same", 2)
    try:
        session = await other.says()
        await other.says("resume")
        await stopped(other, database_url)
        async with taken_over(tmp_path, database_url, "other") as service:
            found = await service.sessions.get(session)
            await check(service, found, "resume")
            paused = await service.sessions.pause(session, ANN)
            told = await service.types()
            other.process.send_signal(signal.SIGCONT)
            assert await other.says("fenced") == "fenced"
            async with asyncio.timeout(20):
                await other.process.communicate()
            assert await service.sessions.get(session) == paused
            assert await service.types() == told
    finally:
        if other.process.returncode is None:
            await other.kill()
