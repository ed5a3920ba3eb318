"""Previews from outside, as browsers and programs use them. The machines are agents on this host,
whose loopback is theirs."""

import asyncio
import contextlib
import hashlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import h11
import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from tests.api.apps import App, Asked, answer, read_body, running
from tests.api.conftest import Api, previewed
from tests.api.test_execs import in_use
from tests.certificates import Authority
from tests.guest.conftest import server
from tests.waiting import eventually
from torpor.api.preview import passing, upstream
from torpor.api.preview.addresses import Addresses
from torpor.api.tls import Certificate
from torpor.sessions.model import SYSTEM
from torpor.store.records import Status

TOKEN = "Torpor-Authorization"  # noqa: S105 (a header's name)


@pytest.fixture
async def one(api: Api) -> str:
    """A session called `one`."""
    return await api.ready(name="one")


def browser(api: Api, session: str, port: int, **options: Any) -> httpx.AsyncClient:
    """Return a client whose paths are those of a port of a session, with a good token."""
    headers = {"host": f"{port}-{session}.localhost:{api.addresses.port}"}
    headers[TOKEN] = f"Bearer {api.tokens['operator']}"
    headers |= options.pop("headers", {})
    base = f"http://127.0.0.1:{api.addresses.port}"
    return httpx.AsyncClient(base_url=base, headers=headers, timeout=20, trust_env=False, **options)


def socket_to(api: Api, session: str, port: int, path: str = "/", **more: Any) -> connect:
    """Open a WebSocket to a port of a session."""
    where = f"{port}-{session}.localhost"
    return connect(
        f"ws://{where}:{api.addresses.port}{path}",
        host="127.0.0.1",
        additional_headers={TOKEN: f"Bearer {api.tokens['operator']}"},
        proxy=None,
        **more,
    )


def header(asked: Asked, name: str) -> str | None:
    found = asked.all(name)
    assert len(found) <= 1, (name, found)
    return found[0] if found else None


# What goes through


async def test_a_request_and_its_answer_pass_as_they_are(api: Api, one: str) -> None:
    async with running() as app, previewed(api), browser(api, one, app.port) as client:
        found = await client.post("/a%2fb//d?x=%41&y", content=b"\x00\xffdata")
        assert found.status_code == 200
        assert found.reason_phrase == "Fine"
        said = found.json()
        assert (said["method"], said["target"]) == ("POST", "/a%2fb//d?x=%41&y")
        assert said["body"].encode("latin-1") == b"\x00\xffdata"
        (asked,) = app.asked
        assert header(asked, "host") == f"localhost:{app.port}"
        assert header(asked, "x-forwarded-for") == "127.0.0.1"
        assert header(asked, "x-forwarded-proto") == "http"
        assert header(asked, "x-forwarded-host") == client.headers["host"]
        assert header(asked, "x-forwarded-prefix") is None
        for method in ("GET", "HEAD", "DELETE", "PATCH", "OPTIONS", "PROPFIND"):
            found = await client.request(method, "/")
            assert found.status_code == 200
            assert app.asked[-1].method == method
            assert bool(found.content) is (method != "HEAD")
        assert (await client.get("/")).headers["content-type"] == "application/json"


async def test_bodies_of_any_size_stream_both_ways(api: Api, one: str) -> None:
    async def swallow(asked: Asked, _: App) -> None:
        body = await read_body(asked)
        await answer(asked, hashlib.sha256(body).hexdigest().encode())

    async def gush(asked: Asked, _: App) -> None:
        await read_body(asked)
        await asked.connection.send(h11.Response(status_code=200, headers=[]))
        for each in range(64):
            await asked.connection.send(h11.Data(data=bytes([each]) * 100_000))
        await asked.connection.send(h11.EndOfMessage())

    async def pieces() -> AsyncIterator[bytes]:
        for each in range(64):
            yield bytes([each]) * 100_000

    whole = hashlib.sha256(b"".join([bytes([each]) * 100_000 for each in range(64)])).hexdigest()
    async with (
        running(swallow=swallow, gush=gush) as app,
        previewed(api),
        browser(api, one, app.port) as client,
    ):
        assert (await client.put("/swallow", content=pieces())).text == whole
        length = {"content-length": "6400000"}
        assert (await client.put("/swallow", content=pieces(), headers=length)).text == whole
        assert hashlib.sha256((await client.get("/gush")).content).hexdigest() == whole


async def test_a_client_that_waits_for_100_gets_it_from_the_session(api: Api, one: str) -> None:
    async def careful(asked: Asked, _: App) -> None:
        await asked.connection.send(h11.InformationalResponse(status_code=100, headers=[]))
        await answer(asked, await read_body(asked))

    async with running(careful=careful) as app, previewed(api) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = (
            f"POST /careful HTTP/1.1\r\nHost: {app.port}-{one}.localhost\r\nContent-Length: 5\r\n"
            f"{TOKEN}: Bearer {api.tokens['operator']}\r\nExpect: 100-continue\r\n\r\n"
        )
        writer.write(head.encode())
        interim = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        assert interim == b"HTTP/1.1 100 \r\n\r\n"
        writer.write(b"hello")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        assert await reader.readexactly(5) == b"hello"
        writer.close()


async def test_an_answer_before_the_end_of_the_body_is_passed_on(api: Api, one: str) -> None:
    async def enough(asked: Asked, _: App) -> None:
        await answer(asked, b"too large", status=413)

    async with running(enough=enough) as app, previewed(api) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = (
            f"POST /enough HTTP/1.1\r\nHost: {app.port}-{one}.localhost\r\n"
            f"{TOKEN}: Bearer {api.tokens['operator']}\r\nContent-Length: 5000000\r\n\r\n"
        )
        writer.write(head.encode() + bytes(100_000))
        answered = await asyncio.wait_for(reader.readuntil(b"too large"), 10)
        assert answered.startswith(b"HTTP/1.1 413 ")
        assert b"connection: close\r\n" in answered.lower()
        writer.write(bytes(500_000))  # what was under way meets no reset
        await writer.drain()
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


async def test_websockets_pass_both_ways_and_live_over_a_pause(api: Api, one: str) -> None:
    async def shout(socket: ServerConnection) -> None:
        async for message in socket:
            assert isinstance(message, str)
            await socket.send(message.upper())

    async with (
        serve(shout, "127.0.0.1", 0, subprotocols=["chat"]) as app,  # type: ignore[list-item]
        previewed(api),
    ):
        port = next(iter(app.sockets)).getsockname()[1]
        async with socket_to(api, one, port, "/x?y", subprotocols=["chat"]) as socket:
            assert socket.subprotocol == "chat"
            await socket.send("hello")
            assert await asyncio.wait_for(socket.recv(), 10) == "HELLO"
            await socket.send("x" * 500_000)
            assert await asyncio.wait_for(socket.recv(), 20) == "X" * 500_000
            await eventually(lambda: in_use(api, one), lambda uses: uses == 0)
            for _ in range(2):
                await api.sessions.pause(one, SYSTEM)
                await socket.send("again")
                assert await asyncio.wait_for(socket.recv(), 20) == "AGAIN"
            await socket.close()
            assert socket.close_code == 1000


async def test_an_upgrade_that_is_refused_is_an_ordinary_answer(api: Api, one: str) -> None:
    async with running() as app, previewed(api):
        with pytest.raises(Exception, match="200"):
            async with socket_to(api, one, app.port):
                pass
        (asked,) = app.asked
        assert header(asked, "upgrade") == "websocket"


async def test_any_upgrade_passes_and_http_2_in_clear_text_does_not(api: Api, one: str) -> None:
    async def switch(asked: Asked, _: App) -> None:
        upgrade = header(asked, "upgrade")
        if upgrade is None:
            await answer(asked, b"none")
            return
        await asked.connection.send(
            h11.InformationalResponse(status_code=101, headers=[("upgrade", upgrade)])
        )
        asked.connection.writer.write(b"first")
        while data := await asked.connection.reader.read(1 << 16):
            asked.connection.writer.write(data.upper())
        asked.connection.writer.write(b"last")

    async def ask(port: int, app: App, protocol: str) -> tuple[Any, Any, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = (
            f"GET /switch HTTP/1.1\r\nHost: {app.port}-{one}.localhost\r\nUpgrade: {protocol}\r\n"
            f"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\n"
            f"{TOKEN}: Bearer {api.tokens['operator']}\r\n\r\n"
        )
        writer.write(head.encode())
        return reader, writer, await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)

    async with running(switch=switch) as app, previewed(api) as port:
        reader, writer, head = await ask(port, app, "own/1")
        assert head.startswith(b"HTTP/1.1 101 ")
        assert b"upgrade: own/1\r\n" in head
        writer.write(b"hello")
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 10) == b"firstHELLOlast"
        writer.close()
        reader, writer, head = await ask(port, app, "h2c")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert app.asked[-1].all("http2-settings") == []
        writer.close()


async def test_events_come_as_they_are_said_and_the_session_may_be_idle(api: Api, one: str) -> None:
    more = asyncio.Event()

    async def events(asked: Asked, _: App) -> None:
        await read_body(asked)
        kind = [("content-type", "text/event-stream; charset=utf-8")]
        await asked.connection.send(h11.Response(status_code=200, headers=kind))
        await asked.connection.send(h11.Data(data=b"data: 1\n\n"))
        await more.wait()
        await asked.connection.send(h11.Data(data=b"data: 2\n\n"))
        await asked.connection.reader.read()

    async with (
        running(events=events) as app,
        previewed(api),
        browser(api, one, app.port) as client,
        client.stream("GET", "/events") as found,
    ):
        pieces = found.aiter_bytes()
        assert await anext(pieces) == b"data: 1\n\n"
        await eventually(lambda: in_use(api, one), lambda uses: uses == 0)
        await api.sessions.pause(one, SYSTEM)
        more.set()
        await asyncio.sleep(0.2)
        assert (await api.sessions.get(one)).status is Status.PAUSED
        await api.sessions.resume(one, SYSTEM)
        assert await asyncio.wait_for(anext(pieces), 10) == b"data: 2\n\n"


async def test_a_download_counts_as_use(api: Api, one: str) -> None:
    more = asyncio.Event()

    async def slow(asked: Asked, _: App) -> None:
        await read_body(asked)
        await asked.connection.send(h11.Response(status_code=200, headers=[]))
        await asked.connection.send(h11.Data(data=b"1"))
        await more.wait()
        await asked.connection.send(h11.Data(data=b"2"), h11.EndOfMessage())

    async with (
        running(slow=slow) as app,
        previewed(api),
        browser(api, one, app.port) as client,
        client.stream("GET", "/slow") as found,
    ):
        pieces = found.aiter_bytes()
        assert await anext(pieces) == b"1"
        assert await in_use(api, one) == 1
        more.set()
        assert await anext(pieces) == b"2"
        await eventually(lambda: in_use(api, one), lambda uses: uses == 0)


async def test_who_goes_away_ends_what_was_asked(api: Api, one: str) -> None:
    ended = asyncio.Event()

    async def wait(asked: Asked, _: App) -> None:
        await read_body(asked)
        await asked.connection.reader.read()
        ended.set()

    async with running(wait=wait) as app, previewed(api), browser(api, one, app.port) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.get("/wait", timeout=0.5)
        await asyncio.wait_for(ended.wait(), 10)
        await eventually(lambda: in_use(api, one), lambda uses: uses == 0)


# Waking, pausing, and what becomes of connections


async def test_a_request_wakes_a_paused_session_and_the_url_stays(api: Api, one: str) -> None:
    async with running() as app, previewed(api), browser(api, one, app.port) as client:
        for _ in range(3):
            await api.sessions.pause(one, SYSTEM)
            assert (await client.get("/")).status_code == 200
            assert (await api.sessions.get(one)).status is Status.READY
        await api.sessions.pause(one, SYSTEM)
        async with asyncio.TaskGroup() as group:
            found = [group.create_task(client.get("/")) for _ in range(20)]
        assert {each.result().status_code for each in found} == {200}
    assert api.host.calls.count("start resume") == 4


async def test_a_pause_in_the_middle_is_waited_through(api: Api, one: str) -> None:
    begun, more = asyncio.Event(), asyncio.Event()

    async def slow(asked: Asked, _: App) -> None:
        await read_body(asked)
        await asked.connection.send(h11.Response(status_code=200, headers=[]))
        await asked.connection.send(h11.Data(data=b"1"))
        begun.set()
        await more.wait()
        await asked.connection.send(h11.Data(data=b"2"), h11.EndOfMessage())

    async with running(slow=slow) as app, previewed(api), browser(api, one, app.port) as client:
        asking = asyncio.create_task(client.get("/slow"))
        await begun.wait()
        await api.sessions.pause(one, SYSTEM)
        more.set()
        await asyncio.sleep(0.1)
        await api.sessions.resume(one, SYSTEM)
        assert (await asyncio.wait_for(asking, 10)).content == b"12"


async def test_the_url_stays_over_a_restart_of_the_server_and_so_does_a_link(
    api: Api, one: str
) -> None:
    async with running() as app:
        async with api.client() as client:
            made = await client.post(f"/sessions/{one}/previews", json={"port": app.port})
        link = made.json()["preview"]["link_url"].partition("/?")[2]
        where = api.previews.getsockname()
        for round_ in range(2):
            async with previewed(api), browser(api, one, app.port) as client:
                assert (await client.get("/")).status_code == 200
                del client.headers[TOKEN]
                assert (await client.get("/?" + link)).status_code == 303
                assert (await client.get("/x")).status_code == 200
            if not round_:
                await api.sessions.close()
                await api.database.close()
                api.previews.close()
                await api.open(where[1])


async def test_connections_are_kept_for_the_next_request_but_not_over_a_pause(
    api: Api, one: str
) -> None:
    async with running() as app, previewed(api), browser(api, one, app.port) as client:
        for _ in range(5):
            await client.get("/")
        assert app.connections == 1
        await client.post("/")  # which might be done twice
        assert app.connections == 2
        await api.sessions.pause(one, SYSTEM)
        await client.get("/")
        assert app.connections == 3


async def test_a_connection_that_was_closed_meanwhile_is_made_anew(api: Api, one: str) -> None:
    async def bye(asked: Asked, app: App) -> None:
        await answer(asked, b"bye")
        asked.connection.writer.close()

    async with running(bye=bye) as app, previewed(api), browser(api, one, app.port) as client:
        for _ in range(5):
            assert (await client.get("/bye")).text == "bye"
        assert [each.target for each in app.asked] == ["/bye"] * 5


async def test_kept_connections_are_bounded_in_number_and_time(
    api: Api, one: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "KEPT_SECONDS", 0.3)
    gathered, go = 0, asyncio.Event()

    async def together(asked: Asked, _: App) -> None:
        nonlocal gathered
        gathered += 1
        if gathered == 20:
            go.set()
        await go.wait()
        await answer(asked, b"x")

    async with running(together=together) as app, previewed(api):
        async with browser(api, one, app.port) as client, asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(client.get("/together"))

        async def open_ones() -> int:
            return sum(not writer.is_closing() for writer in app.writers)

        await eventually(open_ones, lambda count: count <= upstream.MOST_KEPT)
        await eventually(open_ones, lambda count: count == 0)


async def test_a_fork_and_a_rollback_have_the_addresses_that_one_expects(
    api: Api, one: str
) -> None:
    async with running() as app, previewed(api), api.client() as client:
        forked = await client.post(f"/sessions/{one}/fork", json={"count": 1})
        child = forked.json()["sessions"][0]["session_id"]
        assert api.addresses.url(child, app.port) != api.addresses.url(one, app.port)
        made = (await client.post(f"/sessions/{one}/checkpoints", json={})).json()["checkpoint"]
        await client.post(f"/sessions/{one}/checkpoints/{made['checkpoint_id']}/rollback")
        async with browser(api, one, app.port) as looking:
            assert (await looking.get("/")).status_code == 200


# What is wrong


async def test_what_cannot_be_passed_on_says_so(
    api: Api, one: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passing, "FIRST_BYTE_SECONDS", 0.3)

    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.close()

    async def never(asked: Asked, _: App) -> None:
        await asked.connection.reader.read()

    async with running(never=never) as app, previewed(api):
        async with server(babble) as port, browser(api, one, port) as client:
            found = await client.get("/", headers={"accept": "application/json"})
            assert (found.status_code, found.json()["id"]) == (502, "broken_answer")
        async with browser(api, one, port) as client:
            found = await client.get("/")
            assert found.status_code == 502
            assert found.text.startswith("502 Bad Gateway\n\nNobody listens on port")
        async with server(hang_up) as port, browser(api, one, port) as client:
            assert (await client.get("/")).status_code == 502
        async with browser(api, one, app.port) as client:
            assert (await client.get("/never")).status_code == 504
            await api.sessions.destroy(one, SYSTEM)
            assert (await client.get("/")).status_code == 404


async def test_an_answer_that_breaks_off_is_not_taken_for_whole(api: Api, one: str) -> None:
    async def half(asked: Asked, _: App) -> None:
        head = [("content-length", "10")]
        await asked.connection.send(h11.Response(status_code=200, headers=head))
        asked.connection.writer.write(b"half")
        asked.connection.writer.close()

    async with running(half=half) as app, previewed(api), browser(api, one, app.port) as client:
        with pytest.raises(httpx.HTTPError):
            await client.get("/half")


async def test_what_ends_with_the_server_ends_in_time(api: Api, one: str) -> None:
    async def events(asked: Asked, _: App) -> None:
        kind = [("content-type", "text/event-stream")]
        await asked.connection.send(h11.Response(status_code=200, headers=kind))
        await asked.connection.send(h11.Data(data=b"data: 1\n\n"))
        await asked.connection.reader.read()

    async def slow(asked: Asked, _: App) -> None:
        await asyncio.sleep(0.5)
        await answer(asked, b"done")

    async def listen(socket: ServerConnection) -> None:
        async for _ in socket:
            pass

    async def closed(client: httpx.AsyncClient) -> None:
        with pytest.raises(httpx.HTTPError):
            await client.get("/events")

    async def lost(socket: ClientConnection) -> None:
        with pytest.raises(ConnectionClosed):
            await socket.recv()

    async with running(events=events, slow=slow) as app, serve(listen, "127.0.0.1", 0) as other:
        port = next(iter(other.sockets)).getsockname()[1]
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(previewed(api))
            client = await stack.enter_async_context(browser(api, one, app.port))
            socket = await stack.enter_async_context(socket_to(api, one, port))
            endings = [
                asyncio.create_task(each)
                for each in (closed(client), lost(socket), client.get("/slow"))
            ]
            await eventually(lambda: asyncio.sleep(0, len(app.asked)), lambda count: count == 2)
            began = asyncio.get_running_loop().time()
            api.app.state.parts.closing.set()
            *_, answered = await asyncio.wait_for(asyncio.gather(*endings), 4)
            assert answered.text == "done"
        assert asyncio.get_running_loop().time() - began < 5


async def test_strangers_are_bounded_and_slow_ones_leave(
    api: Api, one: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torpor.api.preview import http1, listener

    monkeypatch.setattr(listener, "most_strangers", lambda: 3)
    monkeypatch.setattr(http1, "HEAD_SECONDS", 0.5)
    async with running() as app, previewed(api) as port, browser(api, one, app.port) as client:
        assert (await client.get("/")).status_code == 200
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        assert await asyncio.wait_for(opened[0][0].read(), 5) == b""
        opened[1][1].write(b"GET / HTTP/1.1\r\n")
        assert await asyncio.wait_for(opened[1][0].read(), 5) == b""
        assert (await client.get("/")).status_code == 200  # it is no stranger any more
        for _, writer in opened:
            writer.close()


# TLS


async def test_previews_speak_tls_with_the_name_that_is_meant(
    api: Api, one: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    context = Certificate(*authority.vouch("*.previews.test")).context("http/1.1")
    port = api.addresses.port
    object.__setattr__(api.app.state.parts, "previews", Addresses("https", "previews.test", port))
    trusting = ssl.create_default_context(cafile=authority.file)
    head = "GET / HTTP/1.1\r\nHost: {}\r\n{}: Bearer {}\r\nConnection: close\r\n\r\n"
    async with running() as app, previewed(api, context):
        name = f"{app.port}-{one}.previews.test"
        for host, status in ((name, b"200"), (f"1-{one}.previews.test", b"421")):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=trusting, server_hostname=name
            )
            writer.write(head.format(host, TOKEN, api.tokens["operator"]).encode())
            found = await asyncio.wait_for(reader.read(), 10)
            assert found.split(b" ")[1] == status
            writer.close()
        (asked,) = app.asked
        assert header(asked, "x-forwarded-proto") == "https"


async def test_the_log_has_no_path_and_no_token(
    api: Api, one: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "torpor.preview"):
        async with running() as app, previewed(api), browser(api, one, app.port) as client:
            await client.get("/secret-path?secret=query")
    (line,) = [each for each in caplog.records if "fields" in each.__dict__]
    fields = line.__dict__["fields"]
    assert (fields["session"], fields["port"], fields["status"]) == (one, app.port, 200)
    assert "secret" not in json.dumps(fields) + line.getMessage()
