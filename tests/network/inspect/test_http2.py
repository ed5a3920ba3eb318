"""HTTP/2 through the wall's end of TLS, with real clients and servers."""

import asyncio
import contextlib
import gzip
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import h2.errors
import h2.events
import h2.settings
import httpx
import pytest

from tests.certificates import Authority
from tests.network.inspect.conftest import NAME, SNI, VALUE, Wall
from tests.network.inspect.hosts import Talk2, host2, server_context, tell2

BEARER = f"Bearer {VALUE}"
H2 = {"http1": False, "http2": True}
CODE = h2.errors.ErrorCodes


@asynccontextmanager
async def served(
    wall: Wall, vouching: Authority, handler: Callable[[Talk2], Awaitable[None]] = tell2
) -> AsyncIterator[Wall]:
    async with host2(server_context(vouching, NAME, "h2"), handler) as port:
        wall.host = port
        yield wall


@asynccontextmanager
async def talking(wall: Wall) -> AsyncIterator[Talk2]:
    talk = await wall.talk2()
    try:
        yield talk
    finally:
        talk.writer.close()
        with contextlib.suppress(OSError):
            await talk.writer.wait_closed()


def seen(body: bytes) -> list[tuple[str, str]]:
    """Return the headers that a host says it got."""
    return [(name, value) for name, value in json.loads(body)["headers"]]


async def test_a_header_is_set_and_its_echo_redacted(wall: Wall, vouching: Authority) -> None:
    async with served(wall, vouching):
        wall.hold()
        async with wall.client(**H2) as client:
            answer = await client.post(
                "/v1?x", content=b"body", headers={"authorization": "mine"}, extensions=SNI
            )
    assert answer.http_version == "HTTP/2"
    headers = seen(answer.content)
    assert [value for name, value in headers if name == "authorization"] == [
        "Bearer " + "*" * len(VALUE)
    ]
    assert dict(headers)[":path"] == "/v1?x"
    assert dict(headers)[":authority"] == wall.authority_name
    assert answer.json()["body"] == "body"
    assert answer.headers["x-from"] == "host"
    assert wall.noted.secrets == ["KEY0"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
async def test_curl(wall: Wall, vouching: Authority) -> None:
    async with served(wall, vouching):
        wall.hold()
        run = await asyncio.create_subprocess_exec(
            "curl", "-sS", "--http2", "--cacert", str(wall.file), "--noproxy", "*",
            "--connect-to", f"{wall.authority_name}:127.0.0.1:{wall.port}",
            "-d", "x" * 100_000, "-w", "%{http_version}", f"https://{wall.authority_name}/a",
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await run.communicate()
    assert run.returncode == 0
    assert out.endswith(b"2")
    assert ("authorization", "Bearer " + "*" * len(VALUE)) in seen(out[:-1])


async def test_the_streams_of_a_connection_are_judged_one_by_one(
    wall: Wall, vouching: Authority
) -> None:
    async with served(wall, vouching):
        wall.hold(path="/v1/*")
        async with wall.client(**H2) as client:
            paths = ["/v1/a", "/v2/a", "/v1/../v2"] * 10
            answers = await asyncio.gather(
                *(client.get(httpx.URL(str(client.base_url), raw_path=each.encode()),
                             extensions=SNI) for each in paths)
            )  # fmt: skip
    got = [("authorization" in dict(seen(each.content))) for each in answers]
    assert got == [True, False, False] * 10
    assert wall.noted.secrets == ["KEY0"] * 10


@pytest.mark.parametrize("wrong", ["evil.test", NAME, f"{NAME}:1"])
async def test_another_host_is_misdirected_and_the_others_go_on(
    wall: Wall, vouching: Authority, wrong: str
) -> None:
    async with served(wall, vouching):
        wall.hold()
        async with talking(wall) as talk:
            await talk.request(1, authority=wrong)
            await talk.request(3, authority=wall.authority_name)
            head, body, _ = await talk.answer(1)
            assert head[":status"] == "421"
            assert NAME.encode() in body
            head, body, _ = await talk.answer(3)
            assert head[":status"] == "200"
    assert wall.noted.secrets == ["KEY0"]


async def test_a_second_name_in_host_is_misdirected_too(wall: Wall, vouching: Authority) -> None:
    async with served(wall, vouching), talking(wall) as talk:
        talk.h2.config.validate_outbound_headers = False
        talk.h2.config.normalize_outbound_headers = False
        await talk.request(1, ("host", "evil.test"), authority=wall.authority_name)
        with pytest.raises(ConnectionError):  # h2 takes it for no request at all
            await talk.answer(1)
        await wall.idle()
    assert wall.noted.words


async def test_a_refused_request_with_a_body_ends_and_the_next_is_served(
    wall: Wall, vouching: Authority
) -> None:
    async with served(wall, vouching), talking(wall) as talk:
        for number in range(1, 41, 2):
            await talk.request(number, method="POST", authority="evil.test", end=False)
            with contextlib.suppress(h2.exceptions.ProtocolError):
                await talk.data(number, bytes(60_000), end=True)
            head, _, _ = await talk.answer(number)
            assert head[":status"] == "421"
        await talk.request(41, method="POST", authority=wall.authority_name, end=False)
        await talk.data(41, b"x" * 1_000_000, end=True)
        head, body, _ = await talk.answer(41)
    assert len(json.loads(body)["body"]) == 1_000_000


async def test_grpc(wall: Wall, vouching: Authority) -> None:
    """Messages both ways while neither has ended, trailers with the status."""

    async def call(talk: Talk2) -> None:
        request = await talk.until(h2.events.RequestReceived)
        headers = dict(request.headers)
        assert headers["te"] == "trailers"
        assert headers["authorization"] == BEARER
        number = request.stream_id
        talk.h2.send_headers(number, [(":status", "200"), ("content-type", "application/grpc")])
        await talk.flush()
        for _ in range(3):
            data = await talk.until(h2.events.DataReceived, number)
            await talk.data(number, b"re:" + data.data)
        await talk.until(h2.events.StreamEnded, number)
        talk.h2.send_headers(number, [("grpc-status", "0"), ("leak", VALUE)], end_stream=True)
        await talk.flush()
        # An answer that is trailers alone.
        request = await talk.until(h2.events.RequestReceived)
        only = [(":status", "200"), ("grpc-status", "5")]
        talk.h2.send_headers(request.stream_id, only, end_stream=True)
        await talk.flush()
        while not talk.ended:
            await talk.take()

    async with served(wall, vouching, call):
        wall.hold()
        async with talking(wall) as talk:
            await talk.request(
                1, ("te", "trailers"), ("content-type", "application/grpc"),
                method="POST", path="/pkg.Service/Method", authority=wall.authority_name, end=False,
            )  # fmt: skip
            for word in (b"a", b"b", b"c"):
                await talk.data(1, word)
                data = await talk.until(h2.events.DataReceived, 1)
                assert data.data == b"re:" + word
            talk.h2.end_stream(1)
            await talk.flush()
            _, _, trailers = await talk.answer(1)
            assert trailers == {"grpc-status": "0", "leak": "*" * len(VALUE)}
            await talk.request(3, method="POST", authority=wall.authority_name)
            head, body, trailers = await talk.answer(3)
            assert (head["grpc-status"], body, trailers) == ("5", b"", {})


async def test_trailers_of_a_request_arrive(wall: Wall, vouching: Authority) -> None:
    async def call(talk: Talk2) -> None:
        request = await talk.until(h2.events.RequestReceived)
        trailers = await talk.until(h2.events.TrailersReceived)
        assert dict(trailers.headers) == {"sum": "9"}
        talk.h2.send_headers(request.stream_id, [(":status", "204")], end_stream=True)
        await talk.flush()
        while not talk.ended:
            await talk.take()

    async with served(wall, vouching, call), talking(wall) as talk:
        await talk.request(1, method="POST", authority=wall.authority_name, end=False)
        await talk.data(1, b"x" * 200_000)
        talk.h2.send_headers(1, [("sum", "9")], end_stream=True)
        await talk.flush()
        head, _, _ = await talk.answer(1)
        assert head[":status"] == "204"


async def test_interim_answers_and_the_host_that_asks_for_the_body(
    wall: Wall, vouching: Authority
) -> None:
    async def call(talk: Talk2) -> None:
        request = await talk.until(h2.events.RequestReceived)
        number = request.stream_id
        talk.h2.send_headers(number, [(":status", "103"), ("link", "</x>")])
        talk.h2.send_headers(number, [(":status", "100")])
        await talk.flush()
        await talk.until(h2.events.StreamEnded)
        talk.h2.send_headers(number, [(":status", "201")], end_stream=True)
        await talk.flush()
        while not talk.ended:
            await talk.take()

    async with served(wall, vouching, call), talking(wall) as talk:
        await talk.request(
            1, ("expect", "100-continue"), method="PUT", authority=wall.authority_name,
            end=False,
        )  # fmt: skip
        for status in ("103", "100"):
            said = await talk.until(h2.events.InformationalResponseReceived, 1)
            assert dict(said.headers)[":status"] == status
        await talk.data(1, b"body", end=True)
        head, _, _ = await talk.answer(1)
        assert head[":status"] == "201"


async def test_large_bodies_both_ways_at_once(wall: Wall, vouching: Authority) -> None:
    data = bytes(range(256)) * 8192  # 2 MiB
    async with served(wall, vouching):
        wall.hold()
        async with wall.client(**H2) as client:
            answers = await asyncio.gather(
                *(client.post("/", content=data, extensions=SNI) for _ in range(4))
            )
    for each in answers:
        assert each.json()["body"].encode("latin-1") == data


async def test_who_does_not_read_gets_no_more_and_takes_no_other_streams_window(
    wall: Wall, vouching: Authority
) -> None:
    sent = 0

    async def call(talk: Talk2) -> None:
        nonlocal sent
        answering: set[int] = set()
        while not talk.ended:
            for event in talk.events:
                if isinstance(event, h2.events.RequestReceived):
                    number = event.stream_id
                    endless = dict(event.headers)[":path"] == "/endless"
                    talk.h2.send_headers(number, [(":status", "200")], end_stream=not endless)
                    if endless:
                        answering.add(number)
            talk.events.clear()
            for number in answering:
                while (room := min(talk.h2.local_flow_control_window(number), 16384)) > 0:
                    talk.h2.send_data(number, bytes(room))
                    sent += room
            await talk.flush()
            await talk.take()

    async with served(wall, vouching, call), talking(wall) as talk:
        talk.acknowledges = False
        await talk.request(1, path="/endless", authority=wall.authority_name)
        await talk.until(h2.events.ResponseReceived, 1)
        before = -1
        while before != sent < 1 << 22:
            before = sent
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await talk.take()
        # What the machine takes, and what may be on its way to it.
        assert sent <= 65535 + 2 * (128 << 10)
        for number in range(3, 23, 2):
            await talk.request(number, authority=wall.authority_name)
            head, _, _ = await talk.answer(number)
            assert head[":status"] == "200"


async def test_a_host_that_does_not_read_makes_the_machine_wait(
    wall: Wall, vouching: Authority
) -> None:
    async def call(talk: Talk2) -> None:
        talk.acknowledges = False
        while not talk.ended:
            await talk.take()

    async with served(wall, vouching, call), talking(wall) as talk:
        await talk.request(1, method="POST", authority=wall.authority_name, end=False)
        sent = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                while True:
                    await talk.data(1, bytes(10_000))
                    sent += 10_000
        assert sent <= 65535 + 2 * (128 << 10)


@pytest.mark.parametrize("by", ["machine", "host"])
async def test_a_reset_goes_through_and_leaves_the_others(
    wall: Wall, vouching: Authority, by: str
) -> None:
    resets: list[int] = []
    happened = asyncio.Event()

    async def call(talk: Talk2) -> None:
        first = await talk.until(h2.events.RequestReceived)
        if by == "host":
            talk.h2.reset_stream(first.stream_id, CODE.ENHANCE_YOUR_CALM)
            await talk.flush()
        else:
            reset = await talk.until(h2.events.StreamReset)
            resets.append(reset.error_code)
            happened.set()
        await tell2(talk)

    async with served(wall, vouching, call), talking(wall) as talk:
        await talk.request(1, method="POST", authority=wall.authority_name, end=False)
        await talk.data(1, bytes(50_000))
        if by == "host":
            reset = await talk.until(h2.events.StreamReset, 1)
            assert reset.error_code == CODE.ENHANCE_YOUR_CALM
        else:
            talk.h2.reset_stream(1, CODE.CANCEL)
            await talk.flush()
            await asyncio.wait_for(happened.wait(), 10)
            assert resets == [CODE.CANCEL]
        await talk.request(3, authority=wall.authority_name)
        head, _, _ = await talk.answer(3)
        assert head[":status"] == "200"


async def test_resets_without_end_end_the_connection(wall: Wall, vouching: Authority) -> None:
    async with served(wall, vouching), talking(wall) as talk:
        with contextlib.suppress(OSError, h2.exceptions.ProtocolError):
            for number in range(1, 1001, 2):
                await talk.request(number, authority=wall.authority_name)
                talk.h2.reset_stream(number)
                await talk.flush()
            while not talk.ended:
                await talk.take()
        await wall.idle()
    assert any("reset 200 streams" in each for each in wall.noted.words)


async def test_a_host_that_goes_away_ends_what_it_has_begun(
    wall: Wall, vouching: Authority
) -> None:
    async def call(talk: Talk2) -> None:
        first = await talk.until(h2.events.RequestReceived)
        await talk.until(h2.events.RequestReceived)
        # As servers do: the frame, and then the rest of the streams up to the one that it names.
        frame = bytes((0, 0, 8, 7, 0, 0, 0, 0, 0)) + first.stream_id.to_bytes(4, "big") + bytes(4)
        talk.writer.write(talk.h2.data_to_send() + frame)
        talk.h2.send_headers(first.stream_id, [(":status", "200")])
        await talk.data(first.stream_id, b"x" * 100_000, end=True)
        while not talk.ended:
            await talk.take()

    async with served(wall, vouching, call), talking(wall) as talk:
        await talk.request(1, authority=wall.authority_name)
        await talk.request(3, authority=wall.authority_name)
        data = bytearray()
        codes: dict[int, int] = {}
        going: list[int] = []
        with contextlib.suppress(h2.exceptions.ProtocolError, OSError):
            # A client of h2 takes GOAWAY for the end: what follows is read as bytes.
            while piece := await asyncio.wait_for(talk.reader.read(1 << 16), 10):
                data += piece
        for kind, number, payload in frames(bytes(data)):
            if kind == 3:
                codes[number] = int.from_bytes(payload, "big")
            if kind == 7:
                going.append(int.from_bytes(payload[4:8], "big"))
        got = sum(len(body) for kind, number, body in frames(bytes(data)) if kind == 0)
    assert codes == {3: CODE.REFUSED_STREAM}
    assert going[0] == 0
    # The machine's window allows no more: it did not acknowledge.
    assert got == 65535 or got == 100_000


async def test_what_comes_after_a_host_has_gone_away_may_be_asked_for_elsewhere(
    wall: Wall, vouching: Authority
) -> None:
    went, go_on = asyncio.Event(), asyncio.Event()
    asked: list[int] = []

    async def call(talk: Talk2) -> None:
        first = await talk.until(h2.events.RequestReceived)
        frame = bytes((0, 0, 8, 7, 0, 0, 0, 0, 0)) + first.stream_id.to_bytes(4, "big") + bytes(4)
        talk.writer.write(frame)
        await talk.writer.drain()
        went.set()
        await go_on.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                asked.append((await talk.until(h2.events.RequestReceived)).stream_id)
        talk.h2.send_headers(first.stream_id, [(":status", "204")], end_stream=True)
        await talk.flush()
        while not talk.ended:
            await talk.take()

    async with served(wall, vouching, call), talking(wall) as talk:
        await talk.request(1, authority=wall.authority_name)
        await asyncio.wait_for(went.wait(), 10)
        await asyncio.sleep(0.3)
        await talk.request(3, authority=wall.authority_name)
        await asyncio.sleep(0.3)
        go_on.set()
        data = b""
        with contextlib.suppress(OSError):
            while piece := await asyncio.wait_for(talk.reader.read(1 << 16), 10):
                data += piece
    resets = {number: body for kind, number, body in frames(data) if kind == 3}
    assert resets == {3: CODE.REFUSED_STREAM.to_bytes(4, "big")}
    assert 1 in [number for kind, number, _ in frames(data) if kind == 1]
    assert asked == []


async def test_the_machine_that_goes_away_gets_what_it_has_asked_for(
    wall: Wall, vouching: Authority
) -> None:
    go_on = asyncio.Event()

    async def call(talk: Talk2) -> None:
        first = await talk.until(h2.events.RequestReceived)
        await go_on.wait()
        talk.h2.send_headers(first.stream_id, [(":status", "200")])
        await talk.data(first.stream_id, b"x" * 10_000, end=True)
        while not talk.ended:
            await talk.take()

    async with served(wall, vouching, call), talking(wall) as talk:
        await talk.request(1, authority=wall.authority_name)
        talk.writer.write(bytes((0, 0, 8, 7, 0, 0, 0, 0, 0)) + bytes(8))
        await talk.writer.drain()
        await asyncio.sleep(0.2)
        go_on.set()
        _, body, _ = await talk.answer(1)
        assert body == b"x" * 10_000
        await wall.idle()


async def test_pings_are_answered(wall: Wall, vouching: Authority) -> None:
    async with served(wall, vouching), talking(wall) as talk:
        talk.h2.ping(b"12345678")
        await talk.flush()
        answer = await talk.until(h2.events.PingAckReceived)
        assert answer.ping_data == b"12345678"


async def test_the_machine_may_open_no_more_streams_than_the_host_takes(
    wall: Wall, vouching: Authority
) -> None:
    async def call(talk: Talk2) -> None:
        await tell2(talk)

    async def few(talk: Talk2) -> None:
        talk.h2.update_settings({h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 3})
        await talk.flush()
        await call(talk)

    async with served(wall, vouching, few), wall.client(**H2) as client:
        answers = await asyncio.gather(*(client.get("/", extensions=SNI) for _ in range(20)))
    assert {each.status_code for each in answers} == {200}


async def test_compressed_answers_are_opened_and_redacted(wall: Wall, vouching: Authority) -> None:
    body = b"a" * 500_000 + VALUE.encode() + b"b"

    async def call(talk: Talk2) -> None:
        for coding in ("gzip", "br"):
            request = await talk.until(h2.events.RequestReceived)
            assert dict(request.headers)["accept-encoding"] == "identity"
            number = request.stream_id
            talk.h2.send_headers(number, [(":status", "200"), ("content-encoding", coding)])
            with contextlib.suppress(h2.exceptions.ProtocolError):
                await talk.data(number, gzip.compress(body), end=True)
        while not talk.ended:
            await talk.take()

    async with served(wall, vouching, call):
        wall.hold()
        async with wall.client(**H2) as client:
            answer = await client.get("/", extensions=SNI)
            assert answer.content == body.replace(VALUE.encode(), b"*" * len(VALUE))
            refused = await client.get("/", extensions=SNI)
            assert refused.status_code == 502


async def test_a_placeholder_in_a_body(wall: Wall, vouching: Authority) -> None:
    text = "placeholder-0123456789"
    async with served(wall, vouching):
        wall.hold("value+of/it", placeholder=text, in_body=True)
        async with wall.client(**H2) as client:
            answer = await client.post("/", json={"t": text}, extensions=SNI)
            # The echo is redacted; its length is that of the value as JSON writes it.
            assert text not in answer.text
            assert wall.noted.secrets == ["KEY0"]
            large = await client.post("/", json={"t": text + "x" * 70_000}, extensions=SNI)
            assert large.status_code == 413
    said = answer.json()
    assert json.loads(json.dumps(said["body"])) == '{"t":"' + "*" * 11 + '"}'


async def test_what_is_no_http2_ends_the_connection(wall: Wall, vouching: Authority) -> None:
    async with served(wall, vouching):
        reader, writer = await wall.open("h2")
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 10)
        writer.close()
        await wall.idle()
    assert any("no HTTP/2" in each for each in wall.noted.words)


async def test_a_host_that_breaks_off_leaves_no_stream_that_looks_whole(
    wall: Wall, vouching: Authority
) -> None:
    async def call(talk: Talk2) -> None:
        request = await talk.until(h2.events.RequestReceived)
        talk.h2.send_headers(request.stream_id, [(":status", "200")])
        await talk.data(request.stream_id, b"half of it")
        talk.writer.transport.abort()
        raise ConnectionResetError

    async with served(wall, vouching, call), wall.client(**H2) as client:
        with pytest.raises(httpx.HTTPError):
            await client.get("/", extensions=SNI)


def frames(data: bytes) -> list[tuple[int, int, bytes]]:
    """Return kind, stream and payload of each frame."""
    found, at = [], 0
    while at + 9 <= len(data):
        length = int.from_bytes(data[at : at + 3], "big")
        number = int.from_bytes(data[at + 5 : at + 9], "big")
        found.append((data[at + 3], number, data[at + 9 : at + 9 + length]))
        at += 9 + length
    return found
