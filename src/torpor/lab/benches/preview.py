"""What a browser waits for: a page through a preview, also of a paused session, and many bytes."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from torpor.client import AsyncClient
from torpor.lab.benches.group import Group, Stopwatch
from torpor.lab.figures import Figure, Notebook
from torpor.lab.laboratory import Laboratory
from torpor.lab.server import served

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
    Figure("preview_page_wakes", "s", "the same from a paused session: with its thaw"),
    Figure("preview_32mib", "s", "a file of 32 MiB through a preview"),
)


class Browser:
    """A connection to a preview, which shows a token."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, token: str
    ) -> None:
        self._reader, self._writer = reader, writer
        self._head = f"Host: {host}\r\nTorpor-Authorization: Bearer {token}\r\n\r\n"

    async def get(self, path: str) -> int:
        """Get something; return how many bytes it has. Raises ValueError if there is none."""
        self._writer.write(f"GET {path} HTTP/1.1\r\n{self._head}".encode())
        head = await self._reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").lower().split("\r\n")
        if " 200 " not in first:
            raise ValueError(f"the preview answered {first!r}")
        said = dict(line.split(": ", 1) for line in lines if line)
        length = int(said["content-length"])
        for left in range(length, 0, -(1 << 20)):
            await self._reader.readexactly(min(left, 1 << 20))
        return length


@asynccontextmanager
async def _browser(url: str, token: str) -> AsyncIterator[Browser]:
    """Connect to a preview: its name is one of this computer, wherever that leads by itself."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection("127.0.0.1", where.port, limit=1 << 20)
    try:
        yield Browser(reader, writer, where.netloc, token)
    finally:
        writer.close()


async def measure(lab: Laboratory, runs: int, book: Notebook) -> None:
    """Get a page and a file of one session, which is paused in between."""
    settings = {"preview_listen": "127.0.0.1:0"}
    async with (
        served(lab.maker, lab.host.home.parent, settings) as server,
        server.client() as client,
    ):
        session = (await client.create_session(wait=True)).id
        await client.write_file(session, f"{PLACE}/page", os.urandom(1 << 10), parents=True)
        await client.write_file(session, f"{PLACE}/file", os.urandom(CARRIED << 20))
        serving = [*SERVER, str(PORT), "-d", PLACE]
        await client.start_exec(session, serving)
        url = (await client.get_ingress(session, PORT)).url
        await _until_served(url, server.token)
        for _ in book.runs(runs):
            async with _browser(url, server.token) as browser:
                await browser.get("/page")
                for _ in range(PAGES):
                    book.note("preview_page", await _seconds(browser, "/page"))
                book.note("preview_32mib", await _seconds(browser, "/file"))
                await _pause(client, session)
                book.note("preview_page_wakes", await _seconds(browser, "/page"))


async def _seconds(browser: Browser, path: str) -> float:
    clock = Stopwatch()
    await browser.get(path)
    return clock.seconds()


async def _pause(client: AsyncClient, session: str) -> None:
    await client.pause_session(session)
    await asyncio.sleep(SETTLED)


async def _until_served(url: str, token: str) -> None:
    """Wait until somebody listens in the session."""
    async with asyncio.timeout(STARTED):
        while True:
            try:
                async with _browser(url, token) as browser:
                    await browser.get("/page")
                    return
            except ValueError:
                await asyncio.sleep(0.2)


GROUP = Group("previews", FIGURES, measure)
