"""Connections of clients that are slow, or too many."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from websockets.asyncio.client import connect

from tests.api.conftest import BASE, Api, served
from tests.api.reading import frames
from tests.api.test_events import api_client
from torpor.api import connections
from torpor.api.connections import Strangers
from torpor.sessions.model import SYSTEM

HEAD = f"GET {BASE}/whoami HTTP/1.1\r\nhost: x\r\n"
UPGRADE = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"


class Raw:
    """A connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, text: str) -> None:
        """Send something."""
        self.writer.write(text.encode())

    async def answer(self) -> str:
        """Read an answer's head, and then its body of JSON."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        return (head + await self.reader.readexactly(length)).decode()

    async def ended(self) -> None:
        """Return when the other end has closed the connection."""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(10):
                while await self.reader.read(1 << 16):
                    pass

    async def dribble(self) -> None:
        """Send on, byte by byte, until the connection is closed."""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(10):
                while not self.reader.at_eof():
                    self.send("x")
                    await self.writer.drain()
                    await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def opened(address: str) -> AsyncIterator[Raw]:
    """Open a connection to a server."""
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def arrived(answer: httpx.Response, event: str) -> None:
    """Return when an event has come on a stream."""
    async with asyncio.timeout(10):
        async for frame in frames(answer):
            if frame.id == event:
                return
    raise AssertionError("the stream has ended")


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Have heads of requests come soon, from now on."""
    return lambda: monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)


@pytest.mark.parametrize("begun", ["", "G", HEAD, HEAD + UPGRADE])
async def test_a_request_that_does_not_come_is_not_waited_for(
    api: Api, hurry: Callable[[], None], begun: str
) -> None:
    hurry()
    async with served(api) as address, opened(address) as raw:
        raw.send(begun)
        await raw.ended()


@pytest.mark.parametrize("begun", [HEAD + "x: ", HEAD + UPGRADE + "x: "])
async def test_bytes_that_come_one_by_one_gain_no_time(
    api: Api, hurry: Callable[[], None], begun: str
) -> None:
    hurry()
    async with served(api) as address, opened(address) as raw:
        raw.send(begun)
        await raw.dribble()


async def test_a_body_that_nobody_reads_gains_no_time(api: Api, hurry: Callable[[], None]) -> None:
    async with served(api) as address, opened(address) as raw:
        raw.send(f"POST {BASE}/sessions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
        assert "401" in await raw.answer()
        hurry()
        await raw.dribble()


async def test_the_second_request_of_a_connection_has_to_come_as_well(
    api: Api, hurry: Callable[[], None]
) -> None:
    async with served(api) as address, opened(address) as raw:
        raw.send(HEAD + "\r\n")
        assert "401" in await raw.answer()
        hurry()
        raw.send(HEAD)
        await raw.ended()


async def test_who_has_asked_is_given_all_time(api: Api, hurry: Callable[[], None]) -> None:
    session = await api.ready(name="one")
    command = await api.sessions.execs.start(session, SYSTEM, ["cat"], stdin=True)
    token = {"authorization": f"Bearer {api.tokens['operator']}"}
    url = f"{BASE}/sessions/one/execs/{command.id}/stream"
    async with (
        served(api) as address,
        api_client(api, address) as client,
        client.stream("GET", "/events") as answer,
        connect(f"ws://{address}{url}", additional_headers=token) as socket,
        opened(address) as idle,
    ):
        idle.send(HEAD + f"authorization: {token['authorization']}\r\n\r\n")
        assert "200 OK" in await idle.answer()
        hurry()
        for _ in range(2):
            async with opened(address) as slow:
                await slow.ended()
        await socket.send(b"hello")
        assert (await asyncio.wait_for(socket.recv(), 10)).endswith(b"hello")  # type: ignore[arg-type]
        await arrived(answer, (await api.sessions.events.add("note", None, SYSTEM)).id)
        idle.send(HEAD + f"authorization: {token['authorization']}\r\n\r\n")
        assert "200 OK" in await idle.answer()


async def test_of_too_many_strangers_the_oldest_goes(api: Api) -> None:
    strangers = Strangers(3)
    token = {"authorization": f"Bearer {api.tokens['operator']}"}
    session = await api.ready(name="one")
    command = await api.sessions.execs.start(session, SYSTEM, ["cat"], stdin=True)
    url = f"{BASE}/sessions/one/execs/{command.id}/stream"
    async with contextlib.AsyncExitStack() as stack:
        address = await stack.enter_async_context(served(api, strangers))
        client = await stack.enter_async_context(api_client(api, address))
        answer = await stack.enter_async_context(client.stream("GET", "/events"))
        socket = await stack.enter_async_context(
            connect(f"ws://{address}{url}", additional_headers=token)
        )
        held = [await stack.enter_async_context(opened(address)) for _ in range(5)]
        for each in held[:2]:
            await each.ended()
        for each in held[2:]:
            each.send(HEAD + "\r\n")
            assert "401" in await each.answer()
        assert (await client.get("/whoami")).status_code == 200
        await socket.send(b"hello")
        assert (await asyncio.wait_for(socket.recv(), 10)).endswith(b"hello")  # type: ignore[arg-type]
        await arrived(answer, (await api.sessions.events.add("note", None, SYSTEM)).id)
    assert not strangers._there


async def test_nothing_is_kept_of_connections_that_are_gone(api: Api) -> None:
    strangers = Strangers(3)
    async with served(api, strangers) as address:
        for begun in ("", HEAD, HEAD + "\r\n", "nonsense\r\n\r\n", HEAD + UPGRADE + "\r\n"):
            async with opened(address) as raw:
                raw.send(begun)
        async with opened(address) as raw:
            raw.send("nonsense\r\n\r\n")
            await raw.ended()
    assert not strangers._there
