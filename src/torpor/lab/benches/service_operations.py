"""What the service adds to an operation: each is done over HTTP and directly, in turns."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Protocol

from torpor.client import AsyncClient, Event, Session
from torpor.lab.benches.group import Group, Stopwatch, first_exec
from torpor.lab.figures import Figure, Notebook
from torpor.lab.laboratory import Laboratory
from torpor.lab.server import Server, served
from torpor.vm import Machine, VmError, Wanted

SETTLED = 0.7
"""Seconds after a snapshot, in which it becomes durable and is not in the way of what is next."""
EXECS = 5
CONTENT = os.urandom(64 << 10)
FILE = "/root/content"
OPERATIONS = {
    "create": "a new session, up to ready",
    "exec": "/bin/true in a session that has run it before, up to its status",
    "file_write": "64 KiB into a new file",
    "file_read": "the same file back",
    "checkpoint": "a checkpoint of a session, which runs on: the call has returned",
    "fork_2": "two children of a session that runs, up to both ready",
    "pause": "the call has returned",
    "resume": "up to ready",
}
FIGURES = tuple(
    figure
    for name, meaning in OPERATIONS.items()
    for figure in (
        Figure(f"api_{name}", "s", f"over HTTP: {meaning}"),
        Figure(f"direct_{name}", "s", "the same without the service, by torpor.vm alone"),
        Figure(
            f"api_{name}_adds", "s", "the first less the second, in turns with each other", True
        ),
    )
)


class Side(Protocol):
    """One way to do the operations, on one session after the other."""

    async def create(self) -> None:
        """Start a session, and go on with that one."""

    async def exec(self) -> None:
        """Run ``/bin/true``."""

    async def file_write(self) -> None:
        """Write the file."""

    async def file_read(self) -> None:
        """Read it."""

    async def checkpoint(self) -> None:
        """Take a checkpoint."""

    async def fork_2(self) -> None:
        """Fork two children; :meth:`tidy` ends them."""

    async def pause(self) -> None:
        """Pause."""

    async def resume(self) -> None:
        """Resume."""

    async def tidy(self, *, end: bool = False) -> None:
        """End the children; with ``end`` the session too."""


class Direct:
    """The operations as :class:`torpor.vm.Host` does them."""

    def __init__(self, lab: Laboratory) -> None:
        self._lab = lab
        self._machine: Machine | None = None
        self._children: list[Machine | VmError] = []
        self._snapshots: list[str] = []

    @property
    def machine(self) -> Machine:
        assert self._machine is not None
        return self._machine

    async def create(self) -> None:
        self._machine = await self._lab.machine("bench")

    async def exec(self) -> None:
        await first_exec(self.machine)

    async def file_write(self) -> None:
        await self.machine.agent.write_file(FILE, CONTENT)

    async def file_read(self) -> None:
        assert await self.machine.agent.read_file(FILE) == CONTENT

    async def checkpoint(self) -> None:
        frozen = await self._lab.host.freeze(self.machine, Wanted("run"))
        self._snapshots.append(frozen.manifest.id)

    async def fork_2(self) -> None:
        forked = await self._lab.host.fork(self.machine, 2)
        self._snapshots.append(forked.frozen.manifest.id)
        self._children = list(forked.children)

    async def pause(self) -> None:
        frozen = await self._lab.host.freeze(self.machine, Wanted("stop"))
        self._snapshots.append(frozen.manifest.id)

    async def resume(self) -> None:
        self._machine = await self._lab.host.thaw(self._snapshots[-1])

    async def tidy(self, *, end: bool = False) -> None:
        for child in self._children:
            if isinstance(child, VmError):
                raise child
            await self._lab.host.end(child)
        self._children = []
        if end:
            await self._lab.host.end(self.machine)
            while self._snapshots:
                await self._lab.host.remove(self._snapshots.pop())


class Api:
    """The same over HTTP. ``events`` are those of all sessions, as they happen."""

    def __init__(self, client: AsyncClient, events: AsyncIterator[Event]) -> None:
        self._client = client
        self._events = events
        self._session: Session | None = None
        self._children: tuple[Session, ...] = ()

    @property
    def session(self) -> str:
        assert self._session is not None
        return self._session.id

    async def create(self) -> None:
        self._session = await self._client.create_session(wait=True)

    async def exec(self) -> None:
        assert (await self._client.run(self.session, ["/bin/true"])).status == 0

    async def file_write(self) -> None:
        await self._client.write_file(self.session, FILE, CONTENT)

    async def file_read(self) -> None:
        assert await self._client.read_file(self.session, FILE) == CONTENT

    async def checkpoint(self) -> None:
        await self._client.create_checkpoint(self.session)

    async def fork_2(self) -> None:
        forked = await self._client.fork_session(self.session, count=2)
        self._children = forked.sessions
        missing = {child.id for child in self._children}
        assert len(missing) == 2, forked.failures
        async for event in self._events:
            assert event.type != "session.failed", event
            if event.type == "session.ready":
                missing.discard(event.session or "")
            if not missing:
                return

    async def pause(self) -> None:
        await self._client.pause_session(self.session)

    async def resume(self) -> None:
        await self._client.resume_session(self.session)

    async def page(self) -> None:
        """List the newest sessions, of which there are more than a page has."""
        page = await self._client.list_sessions(status="ALL")
        assert len(page.items) == 50

    async def tidy(self, *, end: bool = False) -> None:
        for child in self._children:
            await self._client.destroy_session(child.id)
        self._children = ()
        if end:
            await self._client.destroy_session(self.session)


@asynccontextmanager
async def api_of(server: Server) -> AsyncIterator[Api]:
    """The operations over HTTP, at a server."""
    async with server.client() as client, aclosing(client.events(follow=True)) as events:
        yield Api(client, events)


async def measure(lab: Laboratory, runs: int, book: Notebook) -> None:
    """Do all operations on both sides, each first every other time."""
    async with served(lab.maker, lab.host.home.parent) as server, api_of(server) as api:
        async for name, took in in_turns({"api": api, "direct": Direct(lab)}, runs, book):
            book.note(f"api_{name}_adds", took["api"] - took["direct"])


async def in_turns(
    sides: Mapping[str, Side], runs: int, book: Notebook
) -> AsyncIterator[tuple[str, dict[str, float]]]:
    """Do all operations on two sides, each first every other time, and note how long they took;
    yield each, and the seconds that it took each side."""
    for side in sides.values():  # the first use of a base by a program opens it
        await side.create()
        await side.tidy(end=True)
    for run in book.runs(runs):
        for name in OPERATIONS:
            times = EXECS if name in ("exec", "file_write", "file_read") else 1
            if name == "exec":
                await asyncio.gather(*(side.exec() for side in sides.values()))
            for turn in range(times):
                yield name, await _turn(sides, name, run + turn, book)
        for side in sides.values():
            await side.tidy(end=True)
        await asyncio.sleep(SETTLED)  # what was removed is not freed in the next create's time


async def _turn(
    sides: Mapping[str, Side], name: str, turn: int, book: Notebook
) -> dict[str, float]:
    took = {}
    words = list(sides) if turn % 2 else reversed(list(sides))
    for word in words:
        operation: Awaitable[None] = getattr(sides[word], name)()
        clock = Stopwatch()
        await operation
        took[word] = clock.seconds()
        book.note(f"{word}_{name}", took[word])
        await sides[word].tidy()
        if name in ("checkpoint", "fork_2", "pause"):
            await asyncio.sleep(SETTLED)
    return took


GROUP = Group("service operations", FIGURES, measure)
