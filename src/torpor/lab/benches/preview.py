"""What a browser waits for: a page through a preview, also of a paused session, and many bytes;
beside the same from a machine's port, with nothing in between."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from urllib.parse import urlsplit

from torpor.client import AsyncClient
from torpor.lab.benches.group import Group, Stopwatch
from torpor.lab.figures import Figure, Notebook
from torpor.lab.laboratory import Laboratory
from torpor.lab.server import served
from torpor.vm import Command, GuestAgent, GuestError

PORT = 8000
PLACE = "/srv/bench"
CARRIED = 32
"""MiB of random bytes in one file."""
PAGES = 10
SETTLED = 0.7
"""Seconds after a pause, in which its snapshot becomes durable."""
STARTED = 60.0
SERVER = ("python3", "-m", "http.server", "--protocol", "HTTP/1.1", "--bind", "127.0.0.1")

FIGURES = (
    Figure("preview_page", "s", "a page of 1 KiB through a preview, on a connection that is kept"),
    Figure("dialled_page", "s", "the same by torpor.vm alone: no service, no preview"),
    Figure("preview_page_adds", "s", "the first less the second, in turns with each other", True),
    Figure("preview_page_wakes", "s", "the same from a paused session: with its thaw"),
    Figure("preview_32mib", "s", "a file of 32 MiB through a preview"),
    Figure("dialled_32mib", "s", "the same by torpor.vm alone: what the link carries by itself"),
)

Write = Callable[[bytes], Awaitable[None]]
Read = Callable[[], Awaitable[bytes]]
"""Waits for what comes next; nothing, if nothing does."""


class Browser:
    """Gets one thing after the other on a connection. ``head`` are the lines that it sends with
    each request."""

    def __init__(self, write: Write, read: Read, head: str) -> None:
        self._write, self._read = write, read
        self._head = head
        self._left = b""

    async def get(self, path: str) -> int:
        """Get something; return how many bytes it has. Raises ValueError if there is none."""
        await self._write(f"GET {path} HTTP/1.1\r\n{self._head}\r\n".encode())
        while b"\r\n\r\n" not in self._left:
            self._left += await self._more()
        head, _, rest = self._left.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").lower().split("\r\n")
        if " 200 " not in first:
            raise ValueError(f"it answered {first!r}")
        said = dict(line.split(": ", 1) for line in lines if line)
        length = int(said["content-length"])
        come = len(rest)
        while come < length:
            rest = await self._more()
            come += len(rest)
        self._left = rest[len(rest) - (come - length) :]
        return length

    async def _more(self) -> bytes:
        data = await self._read()
        if not data:
            raise ValueError("it ended the connection")
        return data


@asynccontextmanager
async def _previewing(url: str, token: str) -> AsyncIterator[Browser]:
    """Connect to a preview: its name is one of this computer, wherever that leads by itself."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection("127.0.0.1", where.port, limit=1 << 20)

    async def write(data: bytes) -> None:
        writer.write(data)
        await writer.drain()

    head = f"Host: {where.netloc}\r\nTorpor-Authorization: Bearer {token}\r\n"
    try:
        yield Browser(write, lambda: reader.read(1 << 20), head)
    finally:
        writer.close()


@asynccontextmanager
async def _dialling(agent: GuestAgent) -> AsyncIterator[Browser]:
    """Connect to the port of a machine."""
    connection = await agent.dial(PORT)
    try:
        yield Browser(connection.write, connection.read, "Host: localhost\r\n")
    finally:
        connection.close()


async def measure(lab: Laboratory, runs: int, book: Notebook) -> None:
    """Get a page and a file in two ways, of a session, which is paused in between, and of a machine
    that has the same."""
    settings = {"preview_listen": "127.0.0.1:0"}
    page, file = os.urandom(1 << 10), os.urandom(CARRIED << 20)
    serving = [*SERVER, str(PORT), "-d", PLACE]
    async with (
        served(lab.maker, lab.host.home.parent, settings) as server,
        server.client() as client,
    ):
        session = (await client.create_session(wait=True)).id
        await client.write_file(session, f"{PLACE}/page", page, parents=True)
        await client.write_file(session, f"{PLACE}/file", file)
        await client.start_exec(session, serving)
        url = (await client.get_ingress(session, PORT)).url
        agent = (await lab.machine("bench")).agent
        await agent.files.write(f"{PLACE}/page", page, parents=True)
        await agent.files.write(f"{PLACE}/file", file)
        await agent.start(Command(serving))
        await _until_served(lambda: _previewing(url, server.token))
        await _until_served(lambda: _dialling(agent))
        for run in book.runs(runs):
            async with _previewing(url, server.token) as preview, _dialling(agent) as port:
                ways = {"preview": preview, "dialled": port}
                for turn in range(PAGES + 1):
                    took = await _turn(ways, "/page", run + turn)
                    if not turn:  # the first opens what is kept
                        continue
                    for way, seconds in took.items():
                        book.note(f"{way}_page", seconds)
                    book.note("preview_page_adds", took["preview"] - took["dialled"])
                for way, seconds in (await _turn(ways, "/file", run)).items():
                    book.note(f"{way}_32mib", seconds)
                await _pause(client, session)
                book.note("preview_page_wakes", await _seconds(preview, "/page"))


async def _turn(ways: Mapping[str, Browser], path: str, turn: int) -> dict[str, float]:
    """Get something in all ways, each first every other time; return how long each took."""
    names = list(ways) if turn % 2 else list(ways)[::-1]
    return {name: await _seconds(ways[name], path) for name in names}


async def _seconds(browser: Browser, path: str) -> float:
    clock = Stopwatch()
    await browser.get(path)
    return clock.seconds()


async def _pause(client: AsyncClient, session: str) -> None:
    await client.pause_session(session)
    await asyncio.sleep(SETTLED)


async def _until_served(connect: Callable[[], AbstractAsyncContextManager[Browser]]) -> None:
    """Wait until somebody listens."""
    async with asyncio.timeout(STARTED):
        while True:
            try:
                async with connect() as browser:
                    await browser.get("/page")
                    return
            except (ValueError, GuestError):
                await asyncio.sleep(0.2)


GROUP = Group("previews", FIGURES, measure)
