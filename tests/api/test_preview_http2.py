"""Previews over HTTP/2: what came in as one is said to the session as HTTP/1.1, as strictly."""

import asyncio
import contextlib
import hashlib
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import h11
import httpx
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from websockets.asyncio.server import ServerConnection, serve
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN
from websockets.uri import parse_uri

from tests.api.apps import App, Asked, answer, read_body, running
from tests.api.conftest import Api, previewed
from tests.api.test_execs import in_use
from tests.api.test_preview import TOKEN, browser, header
from tests.certificates import Authority
from tests.waiting import eventually
from torpor.api.preview import http1
from torpor.api.preview.addresses import Addresses
from torpor.api.preview.heads2 import head_of
from torpor.api.tls import Certificate
from torpor.network.heads import HeadError
from torpor.sessions.model import SYSTEM

H2 = {"http1": False, "http2": True}


@pytest.fixture
async def one(api: Api) -> str:
    """A session called `one`."""
    return await api.ready(name="one")


class Talk:
    """A connection in HTTP/2, as a client of its own kind has it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        # What a hostile client would send is sent.
        self.h2 = H2Connection(
            H2Configuration(
                client_side=True,
                header_encoding="latin-1",
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        self.events: list[Event] = []

    async def flush(self) -> None:
        self.writer.write(self.h2.data_to_send())
        await self.writer.drain()

    async def until(self, wanted: Callable[[Event], bool]) -> Event:
        """Return the first event, of those that are there or come, of which this is so."""
        while True:
            for at, event in enumerate(self.events):
                if wanted(event):
                    del self.events[at]
                    return event
            data = await asyncio.wait_for(self.reader.read(1 << 16), 10)
            if not data:
                raise EOFError
            self.events += self.h2.receive_data(data)
            await self.flush()

    async def ask(self, *headers: tuple[str, str], end: bool = True) -> int:
        stream = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, list(headers), end_stream=end)
        await self.flush()
        return stream

    async def status(self, stream: int) -> int:
        """Return the status of an answer, 0 if the request was reset."""
        found = await self.until(
            lambda event: (
                isinstance(event, ResponseReceived | StreamReset) and event.stream_id == stream
            )
        )
        return int(dict(found.headers)[":status"]) if isinstance(found, ResponseReceived) else 0  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def talking(api: Api) -> AsyncIterator[Talk]:
    """Speak HTTP/2 to previews, in clear text."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.addresses.port)
    talk = Talk(reader, writer)
    talk.h2.initiate_connection()
    await talk.flush()
    yield talk
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def asking(api: Api, session: str, port: int, path: str = "/") -> list[tuple[str, str]]:
    """Return the headers of a good request."""
    return [
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", f"{port}-{session}.localhost"),
        (":path", path),
        (TOKEN.lower(), f"Bearer {api.tokens['operator']}"),
    ]


# What goes through


async def test_a_request_and_its_answer_pass_as_they_are(api: Api, one: str) -> None:
    async with running() as app, previewed(api), browser(api, one, app.port, **H2) as client:
        found = await client.post("/a%2fb//d?x=%41&y", content=b"\x00\xffdata")
        assert (found.status_code, found.http_version) == (200, "HTTP/2")
        said = found.json()
        assert (said["method"], said["target"]) == ("POST", "/a%2fb//d?x=%41&y")
        assert said["body"].encode("latin-1") == b"\x00\xffdata"
        (asked,) = app.asked
        assert header(asked, "host") == f"localhost:{app.port}"
        assert header(asked, "content-length") == "6"
        assert asked.all("torpor-authorization") == []
        for method in ("GET", "HEAD", "DELETE"):
            found = await client.request(method, "/", headers={"cookie": "a=1; b=2"})
            assert bool(found.content) is (method != "HEAD")
            assert header(app.asked[-1], "cookie") == "a=1; b=2"


async def test_many_requests_go_side_by_side_and_wake_the_session_once(api: Api, one: str) -> None:
    together, waiting = asyncio.Event(), 0

    async def wait(asked: Asked, _: App) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 50:
            together.set()
        await asyncio.wait_for(together.wait(), 20)
        await answer(asked, asked.target.encode())

    async with (
        running(wait=wait) as app,
        previewed(api),
        browser(api, one, app.port, **H2) as client,
    ):
        await api.sessions.pause(one, SYSTEM)
        async with asyncio.TaskGroup() as group:
            found = [group.create_task(client.get(f"/wait?{n}")) for n in range(50)]
        assert [each.result().text for each in found] == [f"/wait?{n}" for n in range(50)]
    assert api.host.calls.count("start resume") == 1


PIECES = 250
"""Of 100,000 bytes: more than any buffers hold."""


async def test_bodies_of_any_size_stream_both_ways_at_the_pace_of_who_takes_them(
    api: Api, one: str
) -> None:
    go, taken = asyncio.Event(), 0

    async def swallow(asked: Asked, _: App) -> None:
        await go.wait()
        body = await read_body(asked)
        await answer(asked, hashlib.sha256(body).hexdigest().encode())

    async def gush(asked: Asked, _: App) -> None:
        await asked.connection.send(h11.Response(status_code=200, headers=[]))
        for each in range(PIECES):
            await asked.connection.send(h11.Data(data=bytes([each]) * 100_000))
        await asked.connection.send(h11.EndOfMessage())

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal taken
        for each in range(PIECES):
            taken += 100_000
            yield bytes([each]) * 100_000

    whole = hashlib.sha256(
        b"".join([bytes([each]) * 100_000 for each in range(PIECES)])
    ).hexdigest()
    async with (
        running(swallow=swallow, gush=gush) as app,
        previewed(api),
        browser(api, one, app.port, **H2) as client,
    ):
        sending = asyncio.create_task(client.put("/swallow", content=pieces()))
        await asyncio.sleep(1)
        # It is held up: what is under way is in the buffers of three connections, which the kernel
        # makes as large as some MiB each (tcp_rmem, tcp_wmem), and nothing piles up here.
        assert taken < PIECES * 100_000 // 2
        go.set()
        assert (await sending).text == whole
        assert hashlib.sha256((await client.get("/gush")).content).hexdigest() == whole


async def test_events_come_as_they_are_said_and_end_with_who_listens(api: Api, one: str) -> None:
    ended = asyncio.Event()

    async def events(asked: Asked, _: App) -> None:
        kind = [("content-type", "text/event-stream")]
        await asked.connection.send(h11.Response(status_code=200, headers=kind))
        await asked.connection.send(h11.Data(data=b"data: 1\n\n"))
        await asked.connection.reader.read()
        ended.set()

    async with running(events=events) as app, previewed(api), talking(api) as talk:
        stream = await talk.ask(*asking(api, one, app.port, "/events"))
        found = await talk.until(lambda event: isinstance(event, DataReceived))
        assert isinstance(found, DataReceived)
        assert found.data == b"data: 1\n\n"
        await eventually(lambda: in_use(api, one), lambda uses: uses == 0)
        talk.h2.reset_stream(stream, ErrorCodes.CANCEL)
        await talk.flush()
        await asyncio.wait_for(ended.wait(), 10)
        assert await talk.status(await talk.ask(*asking(api, one, app.port))) == 200


async def test_a_websocket_goes_over_a_stream_beside_others(api: Api, one: str) -> None:
    async def shout(socket: ServerConnection) -> None:
        async for message in socket:
            assert isinstance(message, str)
            await socket.send(message.upper())

    async with serve(shout, "127.0.0.1", 0) as app, previewed(api), talking(api) as talk:
        port = next(iter(app.sockets)).getsockname()[1]
        headers = [
            (":method", "CONNECT"),
            (":protocol", "websocket"),
            *asking(api, one, port)[1:],
            ("sec-websocket-version", "13"),
        ]
        stream = await talk.ask(*headers, end=False)
        assert await talk.status(stream) == 200
        frames = ClientProtocol(parse_uri("ws://x/"), state=OPEN)
        for word in ("hello", "x" * 20_000):
            frames.send_text(word.encode())
            sent = b"".join(frames.data_to_send())
            for at in range(0, len(sent), 10_000):
                talk.h2.send_data(stream, sent[at : at + 10_000])
            await talk.flush()
            got: list[Frame] = []
            while not got:
                event = await talk.until(lambda event: isinstance(event, DataReceived))
                assert isinstance(event, DataReceived)
                talk.h2.acknowledge_received_data(event.flow_controlled_length or 0, stream)
                frames.receive_data(event.data or b"")
                got = [each for each in frames.events_received() if isinstance(each, Frame)]
            assert (got[0].opcode, got[0].data) == (Opcode.TEXT, word.upper().encode())
        frames.send_close(1000)
        talk.h2.send_data(stream, b"".join(frames.data_to_send()))
        await talk.flush()
        await talk.until(lambda event: isinstance(event, StreamEnded))


async def test_what_is_no_websocket_is_none_over_http_2_either(api: Api, one: str) -> None:
    async with running() as app, previewed(api), talking(api) as talk:
        rest = asking(api, one, app.port)[1:]
        stream = await talk.ask(
            (":method", "CONNECT"), (":protocol", "websocket"), *rest, end=False
        )
        assert await talk.status(stream) == 200  # an ordinary answer, which ends
        await talk.until(lambda event: isinstance(event, StreamEnded))
        stream = await talk.ask((":method", "CONNECT"), (":protocol", "other"), *rest, end=False)
        assert await talk.status(stream) == 501


async def test_a_request_that_is_taken_back_ends_in_the_session(api: Api, one: str) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait(asked: Asked, _: App) -> None:
        begun.set()
        await asked.connection.reader.read()
        ended.set()

    async with running(wait=wait) as app, previewed(api), talking(api) as talk:
        stream = await talk.ask(*asking(api, one, app.port, "/wait"))
        await asyncio.wait_for(begun.wait(), 10)
        talk.h2.reset_stream(stream, ErrorCodes.CANCEL)
        await talk.flush()
        await asyncio.wait_for(ended.wait(), 10)


# What is refused


async def test_each_request_is_judged_by_itself(api: Api, one: str) -> None:
    other = await api.ready(name="two")
    async with running() as app, previewed(api), talking(api) as talk:
        good = asking(api, one, app.port)
        assert await talk.status(await talk.ask(*good)) == 200
        assert await talk.status(await talk.ask(*good[:-1])) == 401
        elsewhere = asking(api, other, app.port)
        assert await talk.status(await talk.ask(*elsewhere[:-1])) == 401
        assert len(app.asked) == 1


@pytest.mark.parametrize(
    ("changes", "statuses"),
    [
        ({":authority": "evil", "host": "{h}"}, (400, 0)),
        ({":authority": "a@{h}"}, (400, 0)),
        ({":authority": "{h}\\x"}, (400, 0)),
        ({":authority": None}, (400, 0)),
        ({":path": "x"}, (400, 0)),
        ({":path": "/a b"}, (400, 0)),
        ({":path": "/a#b"}, (400, 0)),
        ({":path": "/a HTTP/1.1\r\nHost: evil\r\n\r\nGET /"}, (400, 0)),
        ({":path": "*"}, (400, 0)),
        ({":method": "G T"}, (400, 0)),
        ({":method": "GET / HTTP/1.1\r\nx: y"}, (400, 0)),
        ({":method": "CONNECT"}, (400, 405, 0)),
        ({":method": "TRACE"}, (405, 0)),
        ({"x-a": "b\r\nx-b: c"}, (400, 0)),
        ({"x-a": "b\0c"}, (400, 0)),
        ({"x-a": "b\nc"}, (400, 0)),
        ({"x-a": " b"}, (400, 0)),
        ({"x-a\r\nx-b": "c"}, (400, 0)),
        ({"x a": "c"}, (400, 0)),
        ({"X-A": "c"}, (400, 0)),
        ({"x-a:": "c"}, (400, 0)),
        ({"transfer-encoding": "chunked"}, (400, 0)),
        ({"connection": "x-a"}, (400, 0)),
        ({"upgrade": "websocket"}, (400, 0)),
        ({"content-length": "5"}, (400, 0)),
        ({"content-length": "+0"}, (400, 0)),
        ({"expect": "the-unexpected"}, (417, 0)),
    ],
)
async def test_what_would_be_another_request_in_http_1_1_reaches_nobody(
    api: Api, one: str, changes: dict[str, str | None], statuses: tuple[int, ...]
) -> None:
    async with running() as app, previewed(api), talking(api) as talk:
        host = f"{app.port}-{one}.localhost"
        headers = dict(asking(api, one, app.port))
        for name, value in changes.items():
            if value is None:
                del headers[name]
            else:
                headers[name] = value.replace("{h}", host)
        stream = await talk.ask(*headers.items())
        try:
            status = await talk.status(stream)
        except EOFError:
            status = 0  # the connection has ended
        assert status in statuses
        assert app.asked == []


def test_heads_are_strict_by_themselves() -> None:
    """What h2 refuses already is refused here too."""
    good = [(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"a"), (b":path", b"/")]
    assert head_of(good, whole=True)[0].length == 0
    assert head_of(good, whole=False)[0].length is None
    for pair in (
        (b"transfer-encoding", b"chunked"), (b"connection", b"x"), (b"upgrade", b"x"),
        (b"host", b"b"), (b"x", b"a\r\nb"), (b"X", b"a"), (b"x", b" a"), (b"", b"a"),
    ):  # fmt: skip
        with pytest.raises(HeadError):
            head_of([*good, pair], whole=True)
    for lengths in ([b"5", b"5"], [b"+5"], [b""]):
        with pytest.raises(HeadError):
            head_of([*good, *((b"content-length", each) for each in lengths)], whole=False)
    with pytest.raises(HeadError) as error:
        head_of([*good, *[(b"x", b"y")] * 101], whole=True)
    assert error.value.status == 431


async def test_requests_taken_back_without_end_end_the_connection(api: Api, one: str) -> None:
    async with running() as app, previewed(api), talking(api) as talk:
        with contextlib.suppress(OSError):
            for _ in range(150):
                stream = await talk.ask(*asking(api, one, app.port))
                talk.h2.reset_stream(stream, ErrorCodes.CANCEL)
                await talk.flush()
        found = await talk.until(lambda event: isinstance(event, ConnectionTerminated))
        assert isinstance(found, ConnectionTerminated)
        assert found.error_code == ErrorCodes.ENHANCE_YOUR_CALM
        await eventually(lambda: in_use(api, one), lambda uses: uses == 0)


async def test_who_sends_no_request_leaves(
    api: Api, one: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torpor.api.preview import http2

    monkeypatch.setattr(http2, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(http1, "HEAD_SECONDS", 0.3)
    async with previewed(api), talking(api) as talk:
        with pytest.raises((EOFError, ConnectionResetError)):
            await talk.until(lambda _: False)


# TLS, and the end


async def test_over_tls_http_2_is_what_a_browser_gets(api: Api, one: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = Certificate(*authority.vouch("*.previews.test")).context("h2", "http/1.1")
    port = api.addresses.port
    object.__setattr__(api.app.state.parts, "previews", Addresses("https", "previews.test", port))
    trusting = ssl.create_default_context(cafile=authority.file)
    async with running() as app, previewed(api, context):
        for versions, seen in ((H2, "HTTP/2"), ({"http2": False}, "HTTP/1.1")):
            name = f"{app.port}-{one}.previews.test"
            more: dict[str, Any] = {"verify": trusting, "trust_env": False, **versions}
            async with httpx.AsyncClient(base_url=f"https://127.0.0.1:{port}", **more) as client:
                show = {TOKEN: f"Bearer {api.tokens['operator']}"}
                for host, status in ((name, 200), (f"1-{one}.previews.test", 421)):
                    found = await client.get(
                        "/", headers={"host": host, **show}, extensions={"sni_hostname": name}
                    )
                    assert (found.status_code, found.http_version) == (status, seen)


async def test_the_end_of_the_server_waits_for_what_is_under_way(api: Api, one: str) -> None:
    begun = asyncio.Event()

    async def slow(asked: Asked, _: App) -> None:
        begun.set()
        await asyncio.sleep(0.5)
        await answer(asked, b"done")

    async with running(slow=slow) as app:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(previewed(api))
            client = await stack.enter_async_context(browser(api, one, app.port, **H2))
            asking_ = asyncio.create_task(client.get("/slow"))
            await begun.wait()
            began = asyncio.get_running_loop().time()
            api.app.state.parts.closing.set()
            assert (await asyncio.wait_for(asking_, 4)).text == "done"
        assert asyncio.get_running_loop().time() - began < 4
