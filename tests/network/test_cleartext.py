"""HTTP in the clear through the wall: what passes is what one server and one client would see, and
nothing passes as a part of one request that is another."""

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator
from ipaddress import IPv4Address

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.network.walled import Walled, Web, request, serving, walled
from tests.network.world import CDN, GOOD, Internet, Wire, needs_root
from torpor.network.cleartext import Cleartext, RefusedError
from torpor.network.flow import Flow, Spending
from torpor.network.heads import judge, whole
from torpor.network.hold import Hold
from torpor.network.limits import Limits
from torpor.network.relay import NoMoreError
from torpor.network.traffic import Counts
from torpor.network.turns import Share, Turns
from torpor.network.verdicts import Destination, Verdict

KEEP = "Connection: keep-alive"


@pytest.fixture
async def web(internet: Internet) -> AsyncIterator[Web]:
    made = Web("good")
    async with serving(internet.far, GOOD, 80, made):
        yield made


@pytest.fixture
async def wall(wire: Wire, internet: Internet) -> AsyncIterator[Walled]:
    async with walled(wire, internet, ["good.test", "*.cdn.test"]) as made:
        yield made


@needs_root
async def test_chunks_come_as_chunks_and_nothing_else(web: Web, wall: Walled) -> None:
    head = "POST / HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n"
    body = "0005 ; name=value\r\nhello\r\n1\r\n!\r\n0\r\nX-Sum: 1\r\nHost: evil.test\r\n\r\n"
    data = f"{head}Connection: close\r\n\r\n{body}".encode()
    async with wall.dialled("good.test", 80) as (reader, writer):
        for place in range(0, len(data), 7):
            writer.write(data[place : place + 7])
            await asyncio.sleep(0)
        assert b"got 6 bytes" in await reader.read()
    assert web.hosts == ["good.test"]
    assert web.bodies == [b"hello!"]


@needs_root
async def test_a_large_body_passes_whole(web: Web, wall: Walled) -> None:
    body = bytes(range(256)) * 12_000
    answer = await wall.say("good.test", 80, request("good.test", body=body))
    assert f"got {len(body)} bytes".encode() in answer
    assert web.bodies == [body]


@needs_root
async def test_who_waits_for_100_gets_it_from_the_other_side(web: Web, wall: Walled) -> None:
    async with wall.dialled("good.test", 80) as (reader, writer):
        writer.write(request("good.test", "/", "Expect: 100-continue", body=b"x")[:-1])
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"x")
        assert b"got 1 bytes" in await reader.read()


@needs_root
async def test_what_is_between_two_ends_stays_there(web: Web, wall: Walled) -> None:
    dropped = ("Proxy-Authorization: a", "TE: gzip", "Keep-Alive: 5", "X-Hop: b", "Upgrade: h2c")
    more = ("HTTP2-Settings: c", "Connection: X-Hop, Upgrade, HTTP2-Settings, close", "X-End: d")
    await wall.say("good.test", 80, request("GOOD.test:80", "/a?b", *dropped, *more))
    assert web.heads == [
        b"GET /a?b HTTP/1.1\r\nhost: GOOD.test:80\r\nx-end: d\r\nconnection: close\r\n\r\n"
    ]


@needs_root
async def test_requests_ahead_of_their_answers_are_each_judged(web: Web, wall: Walled) -> None:
    many = b"".join(request("good.test", f"/{number}", KEEP) for number in range(10))
    answer = await wall.say("good.test", 80, many + request("www.cdn.test"))
    assert answer.count(b"HTTP/1.1 200") == 10
    assert answer.count(b"HTTP/1.1 421") == 1
    assert len(web.heads) == 10


REFUSED = {
    "length and chunks": "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a folded header": "X: a\r\n b\r\n\r\n",
    "a bare line end": "X: a\n\r\n",
    "two hosts": "Host: evil.test\r\n\r\n",
    "an unknown coding": "Transfer-Encoding: gzip\r\n\r\n",
}


@needs_root
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("first", [True, False])
async def test_what_can_be_read_in_two_ways_is_refused(
    name: str, first: bool, web: Web, wall: Walled
) -> None:
    before = b"" if first else request("good.test", "/", KEEP)
    bad = f"POST / HTTP/1.1\r\nHost: good.test\r\n{REFUSED[name]}".encode()
    answer = await wall.say("good.test", 80, before + bad)
    assert answer.count(b"HTTP/1.1 400 ") == 1
    assert len(web.heads) == (0 if first else 1)


@needs_root
@pytest.mark.parametrize(
    "body", ["5\r\nhello!\r\n0\r\n\r\n", "x\r\n", "-1\r\n", "5\nhello\r\n0\r\n\r\n", "5\r\nhel"]
)
async def test_a_body_without_a_clear_end_is_cut_off(body: str, web: Web, wall: Walled) -> None:
    head = "POST / HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with wall.dialled("good.test", 80) as (reader, writer):
        writer.write(f"{head}{body}".encode())
        writer.write_eof()
        with pytest.raises(ConnectionResetError):
            await reader.read()
    assert web.bodies == []


@needs_root
async def test_an_answer_before_the_end_of_an_upload_arrives(
    wall: Walled, internet: Internet
) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with (
        serving(internet.far, CDN, 80, refuse),
        wall.dialled("www.cdn.test", 80) as (reader, writer),
    ):
        writer.write(b"POST / HTTP/1.1\r\nHost: www.cdn.test\r\nContent-Length: 9000000\r\n\r\n")
        writer.write(bytes(100_000))
        assert await reader.readuntil(b"\r\n\r\n") == (
            b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )


@needs_root
async def test_a_client_that_says_it_is_done_still_gets_its_answer(web: Web, wall: Walled) -> None:
    async with wall.dialled("good.test", 80) as (reader, writer):
        writer.write(request("good.test", "/", KEEP))
        writer.write_eof()
        assert b"got 0 bytes" in await reader.read()


class Sockets:
    """Changes to another protocol if it ``agrees``, and then sends back what comes."""

    def __init__(self, *, agrees: bool) -> None:
        self.agrees = agrees
        self.heads: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            if b"upgrade: websocket" in head and self.agrees:
                writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 101 Switching\r\n\r\nfirst")
                while data := await reader.read(1 << 16):
                    writer.write(data)
                writer.close()
                return
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno")


UPGRADE = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: abc")


@needs_root
@pytest.mark.parametrize("first", [True, False])
async def test_a_websocket_passes_also_behind_other_requests(
    first: bool, wall: Walled, internet: Internet
) -> None:
    server = Sockets(agrees=True)
    async with (
        serving(internet.far, CDN, 80, server),
        wall.dialled("www.cdn.test", 80) as (reader, writer),
    ):
        if not first:
            writer.write(request("www.cdn.test", "/", KEEP))
            assert (await reader.readuntil(b"\r\n\r\nno")).startswith(b"HTTP/1.1 200")
        writer.write(request("www.cdn.test", "/ws", *UPGRADE))
        assert (await reader.readuntil(b"first")).count(b"HTTP/1.1 101 ") == 1
        # What is no request any more is not read as one.
        writer.write(request("evil.test") + b"\x00\xff")
        assert await reader.readexactly(len(request("evil.test")) + 2)
        writer.write_eof()
        assert await reader.read() == b""
    assert b"sec-websocket-key: abc\r\n" in server.heads[-1]
    assert wall.lookups.count("www.cdn.test") == 1


@needs_root
async def test_an_upgrade_that_is_not_agreed_to_opens_nothing(
    wall: Walled, internet: Internet
) -> None:
    server = Sockets(agrees=False)
    async with serving(internet.far, CDN, 80, server):
        asked = request("www.cdn.test", "/ws", *UPGRADE) + request("evil.test", "/hidden")
        answer = await wall.say("www.cdn.test", 80, asked)
    assert answer.count(b"HTTP/1.1 200 ") == 1
    assert answer.count(b"HTTP/1.1 421 ") == 1
    assert len(server.heads) == 1


# Fuzzing, without namespaces: a machine's bytes, and what the other side gets of them.

GOOD_ONE = Destination("good.test", IPv4Address("198.18.1.1"), 80)


async def passed(data: bytes) -> tuple[bytes, bool]:
    """Return what goes on of what a machine says, and whether that was said to be all."""
    machine, ours = socket.socketpair()
    upstream, far = socket.socketpair()
    for each in (machine, ours, upstream, far):
        each.setblocking(False)
    limits = Limits()
    task = asyncio.current_task()
    assert task is not None
    flow = Flow(
        GOOD_ONE,
        Verdict(True, "good.test"),
        share=Share(Turns()),
        hold=Hold(),
        spending=Spending(limits),
        count=Counts().begin(GOOD_ONE),
        task=task,
    )

    def ask(to: Destination, host: str) -> Verdict:
        return Verdict(host == to.name, "good.test", "another")

    async def dial() -> socket.socket:
        return upstream

    machine.sendall(data)
    machine.shutdown(socket.SHUT_WR)
    far.shutdown(socket.SHUT_WR)  # and answers nothing
    whole_one = True
    requests = Cleartext(ours, GOOD_ONE, flow, ask)
    try:
        await requests.serve(await requests.first(), dial)
    except (RefusedError, OSError, NoMoreError, ExceptionGroup):
        whole_one = False
    got = b""
    upstream.close()
    with contextlib.suppress(BlockingIOError):
        while piece := far.recv(1 << 16):
            got += piece
    flow.decision(ended=True)
    for each in (machine, ours, far):
        each.close()
    return got, whole_one


PIECES = st.sampled_from([
    b"GET / HTTP/1.1\r\n", b"POST /a HTTP/1.1\r\n", b"GET http://good.test/ HTTP/1.1\r\n",
    b"Host: good.test\r\n", b"Host: evil.test\r\n", b"Host: good.test\r\nHost: evil.test\r\n",
    b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: identity\r\n", b"Connection: close\r\n", b"Connection: keep-alive\r\n",
    b"Connection: upgrade\r\nUpgrade: websocket\r\n", b"Upgrade: h2c\r\n", b"X: y\r\n",
    b" folded\r\n", b"\r\n", b"hello", b"0\r\n\r\n", b"5\r\nhello\r\n", b"5;x=y\r\nhello\r\n",
    b"5\r\nhello!\r\n",
    b"\n", b"\r", b"\x00", b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n", b"0\r\nHost: evil.test\r\n\r\n",
])  # fmt: skip


@settings(max_examples=400)
@given(
    st.lists(PIECES, max_size=14), st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=2)))
)
async def test_whatever_is_said_only_whole_requests_for_the_host_go_on(
    pieces: list[bytes], changes: list[tuple[int, bytes]]
) -> None:
    data = b"".join(pieces)
    for place, other in changes:
        data = data[:place] + other + data[place + len(other) :]
    got, _ = await passed(data)
    heads = strictly(got)
    assert all(head == "good.test" for head in heads), (data, got)


def strictly(data: bytes) -> list[str]:
    """Return the hosts of the requests in ``data``, as a strict parser and h11 both read them; what
    is cut off at the end is none. Raises what they raise if it is anything else."""
    hosts = []
    while data:
        end = whole(data)
        if end is None:
            break
        head = judge(data[:end])
        hosts.append(re.sub(r"\.?(:80)?$", "", head.authority.lower()))
        parser = h11.Connection(h11.SERVER)
        parser.receive_data(data)
        event = parser.next_event()
        assert isinstance(event, h11.Request)
        while isinstance(event := parser.next_event(), h11.Data):
            pass
        if not isinstance(event, h11.EndOfMessage):
            assert event is h11.NEED_DATA
            break
        rest = bytes(parser.trailing_data[0])
        assert len(rest) < len(data)
        data = rest
    return hosts


async def test_the_strict_reader_of_this_test_sees_what_is_hidden() -> None:
    hidden = request("good.test", "/", KEEP) + request("evil.test")
    assert strictly(hidden) == ["good.test", "evil.test"]
    got, _ = await passed(hidden)
    assert strictly(got) == ["good.test"]
