"""What many sessions cost the server: at once, paused, idle, and as history."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

from torpor.client import AsyncClient, Session
from torpor.lab.benches.group import Group, Stopwatch
from torpor.lab.benches.idle import cpu_seconds
from torpor.lab.figures import Figure, Notebook, percentile
from torpor.lab.filling import fill
from torpor.lab.laboratory import Laboratory
from torpor.lab.server import Server, served

AT_ONCE, PAUSED, IDLE = 20, 200, 20
MOST_BURSTS = 5
SIDE_BY_SIDE = 4
"""Sessions that are made at the same time where that is not what is measured."""
SETTLED, WATCHED_PAUSED, WATCHED_IDLE = 15.0, 30.0, 60.0
THERE, LIVE, PAGES = 10_000, 1_000, 20
LIBRARIES = "import fastapi, uvicorn, sqlalchemy.ext.asyncio"

BURST = (
    Figure("api_create_20_p99", "s", "20 sessions asked for at once: the 99th of 100 is ready"),
)
MANY_PAUSED = (
    Figure(
        "api_paused_200_mib", "MiB", "resident memory of a server after it has paused 200 sessions,"
        " less what it had before",
    ),
    Figure("api_paused_200_cpu", "%", "processor time of that server over 30 s, nothing asked"),
)  # fmt: skip
MANY_IDLE = (
    Figure("api_idle_20_cpu", "%", "processor time of a server with 20 idle sessions over 60 s"),
)
HISTORY = (
    Figure(
        "api_libraries", "s", "a Python that imports the server's libraries (FastAPI, uvicorn,"
        " SQLAlchemy) and nothing of Torpor: from its start to its end",
    ),
    Figure("api_start", "s", "a server with no session: from its start to its first answer"),
    Figure(
        "api_start_10000", "s", "the same with 10,000 sessions: 9,000 destroyed, 1,000 paused in"
        " copies of one real snapshot",
    ),
    Figure("api_page_of_10000", "s", "the newest 50 of these sessions"),
)  # fmt: skip


async def measure_burst(lab: Laboratory, runs: int, book: Notebook) -> None:
    """Ask for many sessions at once."""
    async with served(lab.maker, lab.host.home.parent) as server, server.client() as client:
        await client.destroy_session((await client.create_session(wait=True)).id)

        async def create() -> tuple[str, float]:
            clock = Stopwatch()
            made = await client.create_session(wait=True)
            return made.id, clock.seconds()

        for _ in book.runs(min(runs, MOST_BURSTS)):
            made = await asyncio.gather(*(create() for _ in range(AT_ONCE)))
            book.note("api_create_20_p99", percentile([seconds for _, seconds in made], 99))
            for session, _ in made:
                await client.destroy_session(session)


async def measure_paused(lab: Laboratory, runs: int, book: Notebook) -> None:
    """Pause many sessions, and look at the server before and after."""

    async def pause(client: AsyncClient) -> Session:
        made = await client.create_session(wait=True)
        await client.pause_session(made.id)
        return made

    async with served(lab.maker, lab.host.home.parent) as server, server.client() as client:
        # What a server takes for the first sessions of all it does not take again.
        first = await _many(SIDE_BY_SIDE, lambda: pause(client))
        for session in first:
            await client.destroy_session(session.id)
        await asyncio.sleep(SETTLED)
        before = resident_mib(server.pid)
        for _ in book.runs(1):
            await _many(PAUSED, lambda: pause(client))
            await asyncio.sleep(SETTLED)
            book.note("api_paused_200_mib", max(0.0, resident_mib(server.pid) - before))
            book.note("api_paused_200_cpu", await _percent(server, WATCHED_PAUSED))


async def measure_idle(lab: Laboratory, runs: int, book: Notebook) -> None:
    """Leave many sessions alone, and look at the server."""
    async with served(lab.maker, lab.host.home.parent) as server, server.client() as client:
        await _many(IDLE, lambda: client.create_session(wait=True))
        await asyncio.sleep(SETTLED)
        for _ in book.runs(1):
            book.note("api_idle_20_cpu", await _percent(server, WATCHED_IDLE))


async def measure_history(lab: Laboratory, runs: int, book: Notebook) -> None:
    """Start a server that has much to remember, and list it."""
    async with served(lab.maker, lab.host.home.parent) as server:
        for _ in book.runs(min(runs, MOST_BURSTS)):
            await server.stop()
            book.note("api_start", await server.start())
        async with server.client() as client:
            made = await client.create_session(wait=True)
            await client.pause_session(made.id, durable=True)
            await server.stop()
            await fill(server.home, server.database, THERE, LIVE)
            for _ in book.runs(min(runs, MOST_BURSTS)):
                book.note("api_libraries", await server.start_of(LIBRARIES))
                book.note("api_start_10000", await server.start())
                await server.stop()
            await server.start()
            for turn in range(PAGES + 1):
                clock = Stopwatch()
                page = await client.list_sessions(status="ALL")
                assert len(page.items) == 50
                if turn:  # the first opens a connection
                    book.note("api_page_of_10000", clock.seconds())


async def _many(count: int, make: Callable[[], Awaitable[Session]]) -> list[Session]:
    turns = asyncio.Semaphore(SIDE_BY_SIDE)

    async def one() -> Session:
        async with turns:
            return await make()

    return list(await asyncio.gather(*(one() for _ in range(count))))


async def _percent(server: Server, seconds: float) -> float:
    """Return the processor time that a server takes, in percent of a core."""
    before, clock = cpu_seconds([server.pid]), Stopwatch()
    await asyncio.sleep(seconds)
    return 100 * (cpu_seconds([server.pid]) - before) / clock.seconds()


def resident_mib(pid: int) -> float:
    """Return the memory of a process that is there: ``VmRSS`` of proc(5)."""
    found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    assert found is not None, f"process {pid} has ended"
    return int(found[1]) / 1024


GROUPS = (
    Group("sessions at once", BURST, measure_burst),
    Group("paused sessions", MANY_PAUSED, measure_paused),
    Group("idle sessions", MANY_IDLE, measure_idle),
    Group("many sessions", HISTORY, measure_history),
)
