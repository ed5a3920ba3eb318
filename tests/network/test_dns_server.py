"""The DNS of a machine's link, on real sockets: from the address that was asked, within limits."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from torpor.network import dns_server as module
from torpor.network.dns_server import CONNECTIONS, IP_PKTINFO, MOST_AT_ONCE, DnsServer, Pace


class Answers:
    """Answers with what was asked, after ``go_on``; counts."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.asked: list[tuple[bytes, bool]] = []

    async def __call__(self, query: bytes, udp: bool) -> bytes | None:
        self.asked.append((query, udp))
        await self.go_on.wait()
        return None if query == b"nothing" else b"to " + query


class Served:
    """A server on loopback, and clients of it."""

    def __init__(self, answers: Answers, port: int) -> None:
        self.answers = answers
        self.port = port

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def bound() -> tuple[socket.socket, socket.socket]:
    """Return sockets for UDP and TCP on one free port of all addresses."""
    while True:
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
        udp.bind(("0.0.0.0", 0))  # noqa: S104 - which address was asked is what is tested
        tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            tcp.bind(udp.getsockname())
        except OSError:
            udp.close()
            tcp.close()
            continue
        tcp.listen(64)
        return udp, tcp


@asynccontextmanager
async def serving(pace: Pace | None = None) -> AsyncIterator[Served]:
    udp, tcp = bound()
    answers = Answers()
    with udp, tcp:
        server = DnsServer(udp, tcp, answers, pace or Pace(10_000))
        running = asyncio.ensure_future(server.run())
        try:
            yield Served(answers, udp.getsockname()[1])
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert running.cancelled(), "it ends when it is told to, and not before"


@asynccontextmanager
async def asking() -> AsyncIterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        yield sock


async def received(sock: socket.socket) -> tuple[bytes, str]:
    async with asyncio.timeout(10):
        data, (address, _) = await asyncio.get_running_loop().sock_recvfrom(sock, 4096)
        return data, address


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.005)


async def message(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, query: bytes
) -> bytes:
    writer.write(len(query).to_bytes(2) + query)
    return await answered(reader)


async def answered(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(10):
        return await reader.readexactly(int.from_bytes(await reader.readexactly(2)))


async def without_end(do: Callable[..., Awaitable[object]], *arguments: object) -> None:
    async with asyncio.timeout(20):
        while True:
            await do(*arguments)


async def closed(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(10):
        with suppress(ConnectionError):
            assert await reader.read() == b""


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8"])
async def test_the_answer_comes_from_the_address_that_was_asked(address: str) -> None:
    async with serving() as served, asking() as sock:
        sock.sendto(b"query", (address, served.port))
        assert await received(sock) == (b"to query", address)
        assert served.answers.asked == [(b"query", True)]


async def test_what_gets_no_answer_gets_none_and_the_next_does() -> None:
    async with serving() as served, asking() as sock:
        for query in (b"nothing", b"", b"query"):
            sock.sendto(query, ("127.0.0.1", served.port))
        answers = {(await received(sock))[0] for _ in range(2)}
        assert answers == {b"to ", b"to query"}


async def test_datagrams_beyond_what_is_answered_at_once_are_dropped() -> None:
    async with serving() as served, asking() as sock:
        served.answers.go_on.clear()
        for number in range(MOST_AT_ONCE + 50):
            sock.sendto(b"%d" % number, ("127.0.0.1", served.port))
            if number % 16 == 0:
                await asyncio.sleep(0.005)
        await until(lambda: len(served.answers.asked) == MOST_AT_ONCE)
        await asyncio.sleep(0.1)
        assert len(served.answers.asked) == MOST_AT_ONCE
        served.answers.go_on.set()
        for _ in range(MOST_AT_ONCE):
            await received(sock)
        sock.sendto(b"after", ("127.0.0.1", served.port))
        assert (await received(sock))[0] == b"to after"


async def test_more_than_its_pace_is_dropped_over_udp_and_ends_a_connection() -> None:
    now = 0.0
    async with serving(Pace(2, lambda: now)) as served, asking() as sock:
        for number in range(10):
            sock.sendto(b"%d" % number, ("127.0.0.1", served.port))
        await until(lambda: len(served.answers.asked) == 4)
        await asyncio.sleep(0.1)
        assert len(served.answers.asked) == 4
        async with served.connected() as (reader, writer):
            writer.write(b"\0\1x")
            await closed(reader)
        now = 1.0
        async with served.connected() as (reader, writer):
            assert await message(reader, writer, b"x") == b"to x"


def test_a_pace_saves_up_for_two_seconds_and_no_more() -> None:
    now = 0.0
    pace = Pace(3, lambda: now)
    assert [pace.take() for _ in range(7)] == [True] * 6 + [False]
    now = 0.34
    assert [pace.take() for _ in range(2)] == [True, False]
    now = 1000.0
    assert [pace.take() for _ in range(7)] == [True] * 6 + [False]


# TCP


async def test_many_queries_on_one_connection() -> None:
    async with serving() as served, served.connected() as (reader, writer):
        for number in range(20):
            query = b"%d" % number
            assert await message(reader, writer, query) == b"to " + query
        assert {udp for _, udp in served.answers.asked} == {False}


async def test_a_query_may_come_byte_by_byte_and_two_together() -> None:
    async with serving() as served, served.connected() as (reader, writer):
        for byte in b"\0\5query":
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.001)
        assert await answered(reader) == b"to query"
        writer.write(b"\0\1a\0\1b")
        assert [await answered(reader), await answered(reader)] == [b"to a", b"to b"]


async def test_a_client_that_goes_in_the_middle_harms_nobody() -> None:
    async with serving() as served:
        for piece in (b"", b"\0", b"\0\5que", b"\0\5query"):
            async with served.connected() as (_, writer):
                writer.write(piece)
                await writer.drain()
        async with served.connected() as (reader, writer):
            assert await message(reader, writer, b"query") == b"to query"


async def test_a_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE", 0.05)
    async with serving() as served, served.connected() as (reader, writer):
        writer.write(b"\0\5que")
        await closed(reader)


async def test_a_busy_connection_is_closed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIFETIME", 0.2)
    async with serving() as served, served.connected() as (reader, writer):
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await without_end(message, reader, writer, b"query")


async def test_there_is_an_end_to_connections_and_they_make_room() -> None:
    async with serving() as served:
        opened = [
            await asyncio.open_connection("127.0.0.1", served.port) for _ in range(CONNECTIONS)
        ]
        for reader, writer in opened:
            assert await message(reader, writer, b"x") == b"to x"
        async with served.connected() as (reader, writer):
            writer.write(b"\0\1y")
            await asyncio.sleep(0.1)
            assert (b"y", False) not in served.answers.asked
            opened[0][1].close()
            assert await answered(reader) == b"to y"
        for _, writer in opened:
            writer.close()


async def test_a_client_that_reads_nothing_holds_nothing_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "IDLE", 0.2)
    async with serving() as served:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", served.port))
            query = (60_000).to_bytes(2) + bytes(60_000)
            with pytest.raises(OSError, match=r"reset|Broken"):
                await without_end(loop.sock_sendall, client, query)


# With all that is behind it, where any address is this host's


async def test_nothing_of_a_denied_name_leaves_the_host() -> None:
    """E1: in a namespace where every address is the wall's, with the host's own resolver, and a
    name server that writes down what it is asked."""
    script = Path(__file__).with_name("dns_world.py")
    ran = await asyncio.create_subprocess_exec(
        "unshare", "--user", "--map-root-user", "--net", "--mount", sys.executable, script,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(60):
        out, err = await ran.communicate()
    assert ran.returncode == 0, err.decode()
    assert out.decode().splitlines() == [
        "good.test at 8.8.8.8 over UDP: NOERROR, from 8.8.8.8",
        "good.test at 8.8.8.8 over TCP: NOERROR",
        "missing.good.test at 1.1.1.1 over UDP: NXDOMAIN, from 1.1.1.1",
        "c2vjcmv0.evil.test at 8.8.8.8 over UDP: NXDOMAIN, from 8.8.8.8",
        "c2vjcmv0.evil.test at 9.9.9.9 over TCP: NXDOMAIN",
        "denied: c2vjcmv0.evil.test c2vjcmv0.evil.test",
        "the name server was asked for: good.test missing.good.test",
    ]
