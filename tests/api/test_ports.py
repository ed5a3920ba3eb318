"""Ports over WebSockets. The machines are agents on this host, whose loopback is theirs."""

import asyncio
import json

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.api.conftest import BASE, Api, served
from tests.api.test_execs import in_use
from tests.guest.conftest import server
from tests.waiting import eventually
from torpor.client.exec_stream import END_OF_INPUT
from torpor.sessions.model import SYSTEM
from torpor.store.records import Status


@pytest.fixture
async def one(api: Api) -> str:
    """A session called `one`."""
    return await api.ready(name="one")


async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each piece in capitals."""
    while data := await reader.read(1 << 16):
        writer.write(data.upper())
        await writer.drain()


def forward(api: Api, address: str, port: int, role: str = "operator") -> connect:
    """Open a WebSocket to a port of session `one`."""
    url = f"ws://{address}{BASE}/sessions/one/port-forward/{port}"
    return connect(url, additional_headers={"authorization": f"Bearer {api.tokens[role]}"})  # type: ignore[index]


async def read(socket: ClientConnection, size: int) -> bytes:
    """Read bytes."""
    data = b""
    while len(data) < size:
        piece = await asyncio.wait_for(socket.recv(), 10)
        assert isinstance(piece, bytes)
        data += piece
    return data


async def to_the_end(socket: ClientConnection) -> None:
    """Read until the other end closes. Raises ConnectionClosed."""
    while True:
        await socket.recv()


async def test_bytes_go_both_ways_and_the_session_may_be_idle_meanwhile(api: Api, one: str) -> None:
    async with (
        server(shout) as port,
        served(api) as address,
        forward(api, address, port) as socket,
    ):
        await socket.send(b"hello")
        assert await read(socket, 5) == b"HELLO"
        await asyncio.gather(
            *(socket.send(b"x" * 100_000) for _ in range(20)), read(socket, 2_000_000)
        )
        await eventually(lambda: in_use(api, one), lambda uses: uses == 0)
    assert [each.type for each in await api.events(one)].count("port.opened") == 1


async def test_the_upgrade_wakes_a_paused_session(api: Api, one: str) -> None:
    async with server(shout) as port, served(api) as address:
        await api.sessions.pause(one, SYSTEM)
        async with forward(api, address, port) as socket:
            await socket.send(b"hello")
            assert await read(socket, 5) == b"HELLO"


async def test_a_connection_lives_over_a_pause_and_its_bytes_wake_the_session(
    api: Api, one: str
) -> None:
    async with (
        server(shout) as port,
        served(api) as address,
        forward(api, address, port) as socket,
    ):
        await socket.send(b"hello")
        assert await read(socket, 5) == b"HELLO"
        for _ in range(3):
            await api.sessions.pause(one, SYSTEM)
            await socket.send(b"again")
            assert await read(socket, 5) == b"AGAIN"
    assert api.host.calls.count("start resume") == 3


async def test_the_end_of_a_connection_closes_the_websocket(api: Api, one: str) -> None:
    async def bye(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"bye")
        await writer.drain()
        writer.close()

    async with (
        server(bye) as port,
        served(api) as address,
        forward(api, address, port) as socket,
    ):
        assert await read(socket, 3) == b"bye"
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), 5)
        assert socket.close_code == 1000


async def test_the_end_of_the_client_closes_the_connection(api: Api, one: str) -> None:
    ended = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        ended.set()

    async with server(wait) as port, served(api) as address:
        async with forward(api, address, port):
            pass
        await asyncio.wait_for(ended.wait(), 5)


async def test_what_cannot_be_connected_is_an_ordinary_error(api: Api, one: str) -> None:
    async with server(shout) as port, served(api) as address:
        free = port
    async with served(api) as address:
        for number, role, status, word in (
            (free, "operator", 502, "guest_econnrefused"),
            (0, "operator", 400, "invalid_request"),
            (65536, "operator", 400, "invalid_request"),
            (free, "viewer", 403, "forbidden"),
        ):
            with pytest.raises(InvalidStatus) as refused:
                async with forward(api, address, number, role):
                    pass
            assert refused.value.response.status_code == status
            assert json.loads(refused.value.response.body)["id"] == word


async def test_only_bytes_are_passed_on(api: Api, one: str) -> None:
    async with (
        server(shout) as port,
        served(api) as address,
        forward(api, address, port) as socket,
    ):
        await socket.send("text")
        assert json.loads(await socket.recv())["type"] == "error"
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 4400


async def test_who_sends_no_more_still_reads_the_answer(api: Api, one: str) -> None:
    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(str(len(await reader.read())).encode())
        writer.close()

    async with (
        server(count) as port,
        served(api) as address,
        forward(api, address, port) as socket,
    ):
        await socket.send(b"x" * 300_000)
        await socket.send(END_OF_INPUT)
        assert await read(socket, 6) == b"300000"
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), 5)
        assert socket.close_code == 1000


async def test_a_request_without_an_upgrade_is_told_so_and_wakes_nothing(
    api: Api, one: str
) -> None:
    await api.sessions.pause(one, SYSTEM)
    async with api.client() as client:
        answer = await client.get(f"/sessions/{one}/port-forward/8000")
        assert (answer.status_code, answer.json()["id"]) == (400, "upgrade_required")
        assert (await client.get("/sessions/none/port-forward/8000")).status_code == 404
        assert (await client.get(f"/sessions/{one}/port-forward/0")).status_code == 400
    async with api.client("viewer") as client:
        assert (await client.get(f"/sessions/{one}/port-forward/8000")).status_code == 403
    assert (await api.sessions.get(one)).status is Status.PAUSED


async def test_a_session_that_is_destroyed_takes_its_connections_along(api: Api, one: str) -> None:
    async with (
        server(shout) as port,
        served(api) as address,
        forward(api, address, port) as socket,
    ):
        await api.sessions.destroy(one, SYSTEM)
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(to_the_end(socket), 10)
        assert socket.close_code == 4404
