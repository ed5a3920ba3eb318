"""The wall's end of TLS: whom it trusts, who trusts it, and that it fails closed."""

import asyncio
import contextlib
import gc
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from ipaddress import IPv4Address
from pathlib import Path

import httpx
import pytest

from tests.certificates import Authority
from tests.network.inspect.conftest import NAME, SNI, Noted, Wall
from tests.network.inspect.hosts import Exchange, Host1, connect, host1, server_context
from torpor.network.errors import NetworkError
from torpor.network.injection import Held
from torpor.network.inspect.offered import offered_protocols
from torpor.network.inspect.terminator import Terminator, TerminatorLimits, trusting
from torpor.network.verdicts import Destination


@pytest.fixture
async def host(wall: Wall, vouching: Authority) -> AsyncIterator[Host1]:
    async with host1(server_context(vouching, NAME, "http/1.1")) as host:
        wall.host = host.port
        yield host


async def status(wall: Wall) -> tuple[int, str]:
    async with wall.client() as client:
        answer = await client.get("/", extensions=SNI)
        return answer.status_code, answer.text


async def test_a_host_that_nobody_vouches_for_gets_nothing(wall: Wall, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    async with host1(server_context(Authority(tmp_path / "other"), NAME)) as host:
        wall.host = host.port
        wall.hold()
        code, text = await status(wall)
        assert code == 502
        assert "not trusted" in text
        assert host.asked == []


async def test_authorities_of_ones_own_are_trusted_if_they_are_named(
    wall: Wall, host: Host1, vouching: Authority
) -> None:
    wall.trust = trusting()  # type: ignore[method-assign]
    assert (await status(wall))[0] == 502
    wall.trust = trusting(vouching.file.read_text())  # type: ignore[method-assign]
    assert (await status(wall))[0] == 200
    assert trusting()().verify_mode is ssl.CERT_REQUIRED


async def test_a_host_of_another_name_gets_nothing(wall: Wall, vouching: Authority) -> None:
    async with host1(server_context(vouching, "other.test")) as host:
        wall.host = host.port
        wall.hold()
        code, text = await status(wall)
        assert code == 502
        assert "not trusted" in text
        assert host.asked == []


async def test_a_host_that_is_not_there_is_told(wall: Wall) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        wall.host = sock.getsockname()[1]
    code, text = await status(wall)
    assert code == 502
    assert "cannot be reached" in text
    assert wall.noted.words


async def test_a_machine_that_does_not_trust_the_wall_fails_and_it_is_told(
    wall: Wall, host: Host1, vouching: Authority
) -> None:
    wall.file.write_text(vouching.file.read_text())
    with pytest.raises(ssl.SSLCertVerificationError):
        await wall.open()
    await wall.idle()
    assert any("does not accept the wall" in each for each in wall.noted.words)
    assert host.asked == []


@pytest.mark.parametrize(
    ("speaks", "offers", "chosen"),
    [
        (("h2", "http/1.1"), ("h2", "http/1.1"), "h2"),
        (("http/1.1",), ("h2", "http/1.1"), "http/1.1"),
        (("h2", "http/1.1"), ("http/1.1",), "http/1.1"),
        (("h2", "http/1.1"), ("x", "h2"), "h2"),
        ((), ("h2", "http/1.1"), None),
        (("h2",), (), None),
    ],
)
async def test_what_the_host_chooses_is_what_the_machine_gets(
    wall: Wall, vouching: Authority, speaks: tuple[str, ...], offers: tuple[str, ...], chosen: str
) -> None:
    async with host1(server_context(vouching, NAME, *speaks)) as host:
        wall.host = host.port
        _, writer = await wall.open(*offers)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == chosen
        writer.close()
        await wall.idle()


async def test_old_versions_of_tls_are_not_spoken(wall: Wall, host: Host1) -> None:
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = wall.machine_context()
        context.minimum_version = context.maximum_version = version
        _, writer = await asyncio.open_connection(
            sock=await connect(wall.port), ssl=context, server_hostname=NAME
        )
        writer.close()
    assert wall.authority.context(NAME, ()).minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"", b"\x16\x03\x01\x00\x05\x02\0\0\1x"]
)
async def test_what_is_no_clienthello_reaches_no_host(wall: Wall, host: Host1, said: bytes) -> None:
    wall.limits = TerminatorLimits(greeting_seconds=0.3)
    sock = await connect(wall.port)
    loop = asyncio.get_running_loop()
    if said:
        await loop.sock_sendall(sock, said)
    try:
        assert await asyncio.wait_for(loop.sock_recv(sock, 10), 10) in (b"",)
    except ConnectionResetError:
        pass
    sock.close()
    await wall.idle()
    assert host.connections == 0


async def test_a_clienthello_in_small_pieces_and_records_is_read(wall: Wall, host: Host1) -> None:
    one, two = socket.socketpair()
    one.setblocking(False)
    two.setblocking(False)
    out = ssl.MemoryBIO()
    client = wall.machine_context("h2", "http/1.1").wrap_bio(
        ssl.MemoryBIO(), out, server_hostname=NAME
    )
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    hello = out.read()[5:]
    records = b"".join(
        b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part
        for part in (hello[at : at + 40] for at in range(0, len(hello), 40))
    )
    reading = asyncio.create_task(offered_protocols(two))
    for at in range(0, len(records), 16):
        one.send(records[at : at + 16])
        await asyncio.sleep(0)
    assert await asyncio.wait_for(reading, 10) == ("h2", "http/1.1")
    assert two.recv(len(records) + 10) == records
    one.close()
    two.close()


async def test_no_byte_for_too_long_ends_it(wall: Wall, host: Host1) -> None:
    wall.limits = TerminatorLimits(idle_seconds=0.3)
    reader, writer = await wall.open()
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 10) == b""
    await wall.idle()
    assert any("Nothing has come" in each for each in wall.noted.words)
    writer.close()


async def test_a_machine_that_sleeps_is_written_nothing_and_loses_nothing(
    wall: Wall, host: Host1
) -> None:
    went_on = asyncio.Event()

    async def halves(exchange: Exchange) -> None:
        await exchange.start(content_length="8")
        await exchange.data(b"half")
        await went_on.wait()
        await exchange.data(b"rest")
        await exchange.end()
        exchange.writer.close()
        raise ConnectionResetError

    host.handler = halves
    wall.limits = TerminatorLimits(idle_seconds=0.3)
    reader, writer = await wall.open()
    writer.write(f"GET / HTTP/1.1\r\nHost: {wall.authority_name}\r\n\r\n".encode())
    await reader.readuntil(b"half")
    wall.awake.clear()
    went_on.set()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 1)  # longer than it may be idle
    wall.awake.set()
    assert await asyncio.wait_for(reader.read(), 10) == b"rest"
    writer.close()


async def test_an_address_without_a_name_is_not_looked_into(wall: Wall, host: Host1) -> None:
    one, two = socket.socketpair()
    noted = Noted()

    async def look_up() -> list[object]:
        return []

    async def dial() -> socket.socket:
        raise AssertionError

    terminator = Terminator(wall.authority, look_up, wall.trust)  # type: ignore[arg-type]
    to = Destination(None, IPv4Address("192.0.2.1"), 443)
    await terminator.serve(one, to, dial, noted)
    assert two.recv(1) == b""
    assert noted.words
    assert not await terminator.wanted(to)
    two.close()


async def test_it_is_wanted_where_there_is_a_binding_or_nobody_knows(wall: Wall) -> None:
    wall.host = 443
    wall.hold()

    async def look_up() -> list[object]:
        return list(wall.held)

    async def fails() -> list[object]:
        raise NetworkError("away")

    terminator = Terminator(wall.authority, look_up, wall.trust)  # type: ignore[arg-type]
    address = IPv4Address("198.18.0.1")
    assert await terminator.wanted(Destination(NAME, address, 443))
    assert not await terminator.wanted(Destination(NAME, address, 8443))
    assert not await terminator.wanted(Destination("other.test", address, 443))
    broken = Terminator(wall.authority, fails, wall.trust)  # type: ignore[arg-type]
    assert await broken.wanted(Destination("other.test", address, 443))


async def test_who_is_cut_leaves_no_socket_and_no_task(wall: Wall, host: Host1) -> None:
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    writers = []
    for _ in range(5):
        reader, writer = await wall.open()
        writer.write(f"GET / HTTP/1.1\r\nHost: {wall.authority_name}\r\n\r\n".encode())
        await reader.readline()
        writers.append(writer)
    tasks = list(wall.served)
    assert len(tasks) == 5
    for each in tasks:
        each.cancel()
    assert not (await asyncio.wait(tasks, timeout=10))[1]
    for writer in writers:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    for _ in range(100):
        await asyncio.sleep(0.02)
        if len(list(Path("/proc/self/fd").iterdir())) <= before:
            break
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
    assert not [each for each in asyncio.all_tasks() if "http" in each.get_name()]


async def test_what_dialling_or_watching_says_is_said_on(wall: Wall, host: Host1) -> None:
    """The proxy's own errors end a connection, and reach the proxy."""

    class CutError(Exception):
        pass

    async def refuses() -> socket.socket:
        raise NetworkError("The policy says no.")

    async def look_up() -> list[Held]:
        return []

    to = Destination(NAME, IPv4Address("198.18.0.1"), host.port)
    terminator = Terminator(wall.authority, look_up, wall.trust)
    for speaks in ("dial", "watch"):
        one, two = tcp_pair()
        noted = Noted()
        if speaks == "watch":
            noted.sent = cut(CutError)  # type: ignore[method-assign]
        dial = refuses if speaks == "dial" else (lambda: connect(host.port))
        serving = asyncio.create_task(terminator.serve(one, to, dial, noted))
        try:
            reader, writer = await asyncio.open_connection(
                sock=two, ssl=wall.machine_context(), server_hostname=NAME
            )
            writer.write(
                f"POST / HTTP/1.1\r\nHost: {wall.authority_name}\r\n"
                "Content-Length: 90000\r\n\r\n".encode()
            )
            await writer.drain()
            await asyncio.sleep(0.2)
            writer.write(b"x" * 50_000)
            with contextlib.suppress(ConnectionError):
                text = (await asyncio.wait_for(reader.read(), 10)).decode()
                assert speaks == "watch" or "The policy says no." in text
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            with pytest.raises(CutError if speaks == "watch" else NetworkError):
                await asyncio.wait_for(serving, 10)
        finally:
            two.close()
        assert one.fileno() == -1


def cut(error: type[Exception]) -> Callable[[int], None]:
    """Return what says at the second piece that it is enough."""
    counted: list[int] = []

    def sent(count: int) -> None:
        counted.append(count)
        if len(counted) > 1:
            raise error

    return sent


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        two = socket.create_connection(listening.getsockname())
        one, _ = listening.accept()
    return one, two


async def test_many_short_connections(wall: Wall, host: Host1) -> None:
    wall.hold()
    once = asyncio.Semaphore(20)

    async def one() -> int:
        async with (
            once,
            httpx.AsyncClient(
                verify=context, trust_env=False, timeout=60, headers={"host": wall.authority_name}
            ) as client,
        ):
            answer = await client.get(f"https://127.0.0.1:{wall.port}/", extensions=SNI)
            return answer.status_code

    context = wall.machine_context()
    codes = await asyncio.gather(*(one() for _ in range(100)))
    assert set(codes) == {200}
    assert len(wall.noted.secrets) == 100
