"""Killing the server at random moments while sessions are worked with, and looking at what the next
one makes of it."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

from torpor.client import AsyncClient, ClientError
from torpor.images import Maker
from torpor.lab.check import Check
from torpor.lab.remains import machine_processes, remains
from torpor.lab.server import Server, served
from torpor.lab.server_work import LostError, Worker
from torpor.vm.processes import ProcessId

SESSIONS = 8
LONGEST = 2.5
"""Seconds of work between a start of the server and its end, at most."""
DIES_EVERY = 5
"""Each time that this many kills are done, a machine dies while there is no server."""


class Gang:
    """Workers that work until they are told to rest."""

    def __init__(self, workers: list[Worker]) -> None:
        self.workers = workers
        self._go = asyncio.Event()

    async def work(self) -> None:
        """Work until told to rest; the step that is under way is done to its end."""
        self._go.set()
        async with asyncio.TaskGroup() as group:
            for worker in self.workers:
                group.create_task(self._steps(worker))

    async def _steps(self, worker: Worker) -> None:
        while self._go.is_set():
            await worker.step()

    def rest(self) -> None:
        """Begin nothing new."""
        self._go.clear()


async def server_kills(
    maker: Maker, within: Path, count: int, seed: int, database: str | None = None
) -> AsyncIterator[Check]:
    """Kill a server ``count`` times while 8 sessions are worked with; one check each, and one for
    what is left when all sessions are destroyed. Ends with the first that fails.

    ``database`` is the URL of the server's, a file in its home by itself.
    """
    chance = random.Random(seed)  # noqa: S311 - repeatable moments, no secret
    settings = {} if database is None else {"database": database}
    async with served(maker, within, settings) as server, server.client() as client:
        workers = [Worker(client, number, seed) for number in range(SESSIONS)]
        try:
            for number in range(1, count + 1):
                check = await _kill(server, client, workers, chance, number)
                yield check
                if not check.ok:
                    return
            yield await _emptied(server, client, workers)
        finally:
            for worker in workers:
                await worker.close()


async def _kill(
    server: Server,
    client: AsyncClient,
    workers: list[Worker],
    chance: random.Random,
    number: int,
) -> Check:
    name = f"server kill {number}"
    expected = "machines are adopted, nothing acknowledged is lost or done twice, nothing is left"
    gang = Gang(workers)
    cut: list[str] = []
    dead: Worker | None = None
    seconds = 0.0
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(gang.work())
            await asyncio.sleep(chance.uniform(0.2, LONGEST))
            gang.rest()
            await server.kill()
            cut = sorted(worker.doing for worker in workers if worker.doing is not None)
            before = machine_processes(server.home)
            if number % DIES_EVERY == 0:
                dead = _one_dies(server, workers, chance)
            seconds = await server.start()
        for worker in workers:
            await (worker.failed() if worker is dead else worker.inspect())
        faults = _adopted(server, before, workers)
        faults += await _told(client, number)
        faults += await remains(server, client)
    except* (LostError, ClientError, TimeoutError) as errors:
        faults = [str(each) for each in _leaves(errors)]
    seen = f"cut off: {', '.join(cut) or 'nothing'}"
    if not faults:
        seen += f"; answered again after {seconds:.1f} s"
        seen += "; a machine had died: FAILED, and recovered" if dead is not None else ""
    return Check(name, not faults, expected, "; ".join([*faults, seen]))


def _one_dies(server: Server, workers: list[Worker], chance: random.Random) -> Worker | None:
    """Kill the machine of a session on which nothing is under way."""
    at_rest = [
        worker
        for worker in workers
        if worker.doing is None and worker.state is not None and worker.state.status == "READY"
    ]
    if not at_rest:
        return None
    worker = chance.choice(at_rest)
    machine_processes(server.home)[worker.session.sandbox or ""].kill()
    return worker


def _adopted(server: Server, before: dict[str, ProcessId], workers: list[Worker]) -> list[str]:
    """Machines that ran before and still are a session's run as the same process."""
    now = machine_processes(server.home)
    mine = {worker.state.sandbox for worker in workers if worker.state is not None}
    return [
        f"machine {machine} was process {before[machine]} and is {now.get(machine)}"
        for machine in before.keys() & mine
        if now.get(machine) != before[machine]
    ]


async def _told(client: AsyncClient, number: int) -> list[str]:
    """The newest report of a reconciliation is that of this start."""
    said = [each async for each in client.events(follow=False)]
    reports = sum(each.type == "server.reconciled" for each in said)
    # One of the first start, and one for each kill.
    return [] if reports == number + 1 else [f"{reports} reports of {number + 1} starts"]


async def _emptied(server: Server, client: AsyncClient, workers: list[Worker]) -> Check:
    done = sum(worker.done for worker in workers)
    for worker in workers:
        if worker.state is not None:
            await client.destroy_session(worker.session.id)
    left = await remains(server, client)
    for part in ("snapshots", "machines", "bases", "layers"):
        found = sorted(each.name for each in (server.home / part).iterdir())
        if part in ("snapshots", "machines") and found:
            left.append(f"{part}: {found}")
    return Check(
        "server kills, in the end",
        not left,
        "when all sessions are destroyed no process, snapshot or directory is left",
        "; ".join(left) or f"nothing is left after {done} operations",
    )


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [error]
