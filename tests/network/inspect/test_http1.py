"""HTTP/1.1 through the wall's end of TLS, with real clients and servers."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import h11
import httpx
import pytest
from websockets.asyncio.client import connect as connect_websocket
from websockets.asyncio.server import ServerConnection, serve

from tests.certificates import Authority
from tests.network.inspect.conftest import NAME, SNI, VALUE, Wall
from tests.network.inspect.hosts import Exchange, Host1, connect, host1, server_context
from torpor.network.errors import NetworkError

BEARER = f"Bearer {VALUE}"


@pytest.fixture
async def host(wall: Wall, vouching: Authority) -> AsyncIterator[Host1]:
    async with host1(server_context(vouching, NAME, "http/1.1")) as host:
        wall.host = host.port
        yield host


async def get(wall: Wall, path: str = "/", **options: Any) -> httpx.Response:
    method = options.pop("method", "GET")
    async with wall.client() as client:
        return await client.request(method, path, extensions=SNI, **options)


async def test_a_header_is_set_and_the_machines_own_is_removed(wall: Wall, host: Host1) -> None:
    wall.hold()
    answer = await get(wall, "/v1?x=1", headers={"Authorization": "Bearer mine", "x-a": "b"})
    assert answer.status_code == 200
    (asked,) = host.asked
    assert (asked.method, asked.target) == ("GET", "/v1?x=1")
    assert asked.all("authorization") == [BEARER]
    assert asked.all("host") == [wall.authority_name]
    assert asked.all("x-a") == ["b"]
    assert wall.noted.secrets == ["KEY0"]


async def test_what_is_echoed_is_redacted_and_nothing_else(wall: Wall, host: Host1) -> None:
    wall.hold()
    answer = await get(wall, headers={"x-a": "b"})
    assert VALUE not in answer.text
    said = dict(answer.json()["headers"])
    assert said["authorization"] == "Bearer " + "*" * len(VALUE)
    assert said["x-a"] == "b"


async def test_a_host_without_secrets_is_passed_through_as_it_is(wall: Wall, host: Host1) -> None:
    wall.hold(host="other.test")
    answer = await get(wall, headers={"authorization": "mine", "accept-encoding": "br"})
    said = dict(answer.json()["headers"])
    assert (said["authorization"], said["accept-encoding"]) == ("mine", "br")
    assert wall.noted.secrets == []


@pytest.mark.parametrize("second", [{"path": "/v1"}, {"host": "*.example.test"}, {"query": "key"}])
async def test_two_bindings_that_match_are_none_and_that_is_told(
    wall: Wall, host: Host1, second: dict[str, Any]
) -> None:
    wall.hold()
    wall.hold("another-value-entirely", **second)
    answer = await get(wall, "/v1", headers={"authorization": "mine"})
    assert dict(answer.json()["headers"])["authorization"] == "mine"
    assert wall.noted.secrets == []
    assert any("2 bindings match" in each for each in wall.noted.words)


async def test_each_request_of_a_connection_is_judged_by_itself(wall: Wall, host: Host1) -> None:
    wall.hold(path="/v1/*", methods=["GET"])
    async with wall.client() as client:
        for path, method in (
            ("/v1/a", "GET"),
            ("/v2/a", "GET"),
            ("/v1/a", "POST"),
            ("/v1/b", "GET"),
        ):
            await client.request(method, path, extensions=SNI)
    assert [each.all("authorization") for each in host.asked] == [[BEARER], [], [], [BEARER]]
    assert host.connections == 1


async def test_a_rotation_reaches_a_connection_that_is_open(wall: Wall, host: Host1) -> None:
    wall.hold()
    async with wall.client() as client:
        await client.get("/", extensions=SNI)
        wall.held.clear()
        wall.hold("the-new-value-of-today")
        await client.get("/", extensions=SNI)
        wall.held.clear()
        answer = await client.get("/", extensions=SNI)
    assert [each.all("authorization") for each in host.asked] == [
        [BEARER], ["Bearer the-new-value-of-today"], [],
    ]  # fmt: skip
    assert answer.status_code == 200


async def test_another_host_on_the_same_connection_is_misdirected(wall: Wall, host: Host1) -> None:
    wall.hold()
    for wrong in ("evil.test", f"evil.test:{host.port}", NAME, f"{NAME}:1", f"{NAME}.evil.test"):
        answer = await get(wall, headers={"host": wrong})
        assert answer.status_code == 421, wrong
        assert NAME in answer.text
    assert host.asked == []
    assert wall.noted.secrets == []


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: {0}\r\nHost: evil.test\r\n\r\n", 400),
        ("GET https://evil.test/ HTTP/1.1\r\nHost: {0}\r\n\r\n", 400),
        ("CONNECT evil.test:443 HTTP/1.1\r\nHost: {0}\r\n\r\n", 405),
        ("GET / HTTP/1.1\r\nHost: {0}\r\nX: a\x00b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: {0}\r\nContent-Length: 1, 2\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: {0}\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        ("GET / HTTP/1.1\r\nHost: {0}\r\nX: " + "a" * 70000 + "\r\n\r\n", 431),
        ("nonsense\r\n\r\n", 400),
    ],
)
async def test_what_is_no_plain_request_reaches_no_host(
    wall: Wall, host: Host1, head: str, status: int
) -> None:
    wall.hold()
    reader, writer = await wall.open("http/1.1")
    writer.write(head.format(wall.authority_name).encode())
    line = await asyncio.wait_for(reader.readline(), 10)
    assert line.split()[1] == str(status).encode()
    assert (await reader.read())[:0] == b""
    writer.close()
    assert host.asked == []


async def test_a_length_is_said_in_one_way(wall: Wall, host: Host1) -> None:
    reader, writer = await wall.open()
    writer.write(
        f"POST / HTTP/1.1\r\nHost: {wall.authority_name}\r\nContent-Length: 4\r\n"
        "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n".encode()
    )
    assert b"200" in await reader.readline()
    (asked,) = host.asked
    assert (asked.all("content-length"), asked.body) == ([], b"abc")
    writer.close()


async def test_hop_by_hop_headers_and_other_upgrades_stay_here(wall: Wall, host: Host1) -> None:
    wall.hold()
    await get(
        wall,
        headers={
            "connection": "x-mine, upgrade, authorization", "x-mine": "1", "upgrade": "h2c",
            "http2-settings": "AAMAAABkAAQAAP__", "te": "trailers", "proxy-authorization": "x",
            "authorization": "mine",
        },
    )  # fmt: skip
    (asked,) = host.asked
    assert asked.all("authorization") == [BEARER]
    names = {name for name, _ in asked.headers}
    assert not names & {"x-mine", "upgrade", "http2-settings", "te", "proxy-authorization"}


async def test_large_bodies_both_ways(wall: Wall, host: Host1) -> None:
    wall.hold()
    data = bytes(range(256)) * 16384  # 4 MiB

    async def echo(exchange: Exchange) -> None:
        body = await exchange.body()
        await exchange.start(content_length=str(len(body)))
        for at in range(0, len(body), 1 << 16):
            await exchange.data(body[at : at + (1 << 16)])
        await exchange.end()

    host.handler = echo
    assert (await get(wall, method="POST", content=data)).content == data

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(data), 100_000):
            yield data[at : at + 100_000]

    assert (await get(wall, method="POST", content=pieces())).content == data
    assert wall.noted.counts[0] > 2 * len(data)
    assert wall.noted.counts[1] > 2 * len(data)


async def test_who_does_not_read_makes_the_host_wait(wall: Wall, host: Host1) -> None:
    sent = 0

    async def endless(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.start()
        while True:
            await exchange.data(bytes(1 << 16))
            sent += 1 << 16

    host.handler = endless
    wall.hold()
    reader, writer = await wall.open()
    writer.write(f"GET / HTTP/1.1\r\nHost: {wall.authority_name}\r\n\r\n".encode())
    await reader.readline()
    seen = -1
    while seen != sent < 1 << 27:
        seen = sent
        await asyncio.sleep(0.5)
    assert sent < 64 << 20
    writer.transport.abort()


async def test_continue_is_the_hosts_to_say(wall: Wall, host: Host1) -> None:
    order: list[str] = []

    async def careful(exchange: Exchange) -> None:
        order.append("head")
        assert exchange.asked.all("expect") == ["100-continue"]
        await exchange.send(h11.InformationalResponse(status_code=100, headers=[]))
        order.append((await exchange.body()).decode())
        await exchange.start(content_length="0")
        await exchange.end()

    host.handler = careful
    wall.hold()
    reader, writer = await wall.open()
    head = f"POST / HTTP/1.1\r\nHost: {wall.authority_name}\r\nContent-Length: 4\r\n"
    writer.write(f"{head}Expect: 100-continue\r\n\r\n".encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
    assert order == ["head"]
    writer.write(b"body")
    assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
    assert order == ["head", "body"]
    writer.close()


async def test_a_refusal_comes_before_the_body_was_sent(wall: Wall, host: Host1) -> None:
    async def refuses(exchange: Exchange) -> None:
        await exchange.start(413, content_length="0", connection="close")
        await exchange.end()

    host.handler = refuses
    reader, writer = await wall.open()
    head = f"POST / HTTP/1.1\r\nHost: {wall.authority_name}\r\nContent-Length: 90000000\r\n\r\n"
    writer.write(head.encode())
    assert b" 413 " in await asyncio.wait_for(reader.readline(), 10)
    writer.close()


async def test_events_of_a_stream_are_not_kept_waiting(wall: Wall, host: Host1) -> None:
    go_on = asyncio.Event()

    async def events(exchange: Exchange) -> None:
        await exchange.start(content_type="text/event-stream")
        await exchange.data(b"data: one\n\n")
        await go_on.wait()
        await exchange.data(b"data: " + VALUE[:5].encode())
        await exchange.data(VALUE[5:].encode() + b"\n\n")
        await exchange.end()

    host.handler = events
    wall.hold()
    async with (
        wall.client() as client,
        client.stream("GET", "/", extensions=SNI) as answer,
    ):
        pieces = answer.aiter_raw()
        assert await asyncio.wait_for(anext(pieces), 10) == b"data: one\n\n"
        go_on.set()
        rest = b"".join([piece async for piece in pieces])
    assert rest == b"data: " + b"*" * len(VALUE) + b"\n\n"


async def test_the_host_learns_that_the_machine_has_gone_while_it_is_silent(
    wall: Wall, host: Host1
) -> None:
    gone = asyncio.Event()

    async def silent(exchange: Exchange) -> None:
        await exchange.start(content_type="text/event-stream")
        await exchange.data(b"data: one\n\n")
        if not await exchange.reader.read(1):
            gone.set()

    host.handler = silent
    reader, writer = await wall.open()
    writer.write(f"GET / HTTP/1.1\r\nHost: {wall.authority_name}\r\n\r\n".encode())
    await reader.readuntil(b"one")
    writer.close()
    await asyncio.wait_for(gone.wait(), 10)


async def test_trailers_go_both_ways(wall: Wall, host: Host1) -> None:
    async def trailing(exchange: Exchange) -> None:
        await exchange.body()
        await exchange.start(transfer_encoding="chunked")
        await exchange.data(b"x")
        await exchange.end(sum="abc", leak=VALUE)

    host.handler = trailing
    wall.hold()
    reader, writer = await wall.open()
    writer.write(
        f"POST / HTTP/1.1\r\nHost: {wall.authority_name}\r\nTransfer-Encoding: chunked\r\n\r\n"
        "1\r\na\r\n0\r\nx-sum: 9\r\n\r\n".encode()
    )
    answer = await reader.readuntil(b"0\r\n")
    answer += await reader.readuntil(b"\r\n\r\n")
    assert b"sum: abc\r\n" in answer
    assert VALUE.encode() not in answer
    assert host.asked[0].trailers == [("x-sum", "9")]
    writer.close()


async def test_what_comes_compressed_all_the_same_is_opened_and_redacted(
    wall: Wall, host: Host1
) -> None:
    body = b"a" * 300_000 + VALUE.encode() + b"b" * 1000

    async def coded(exchange: Exchange) -> None:
        assert exchange.asked.all("accept-encoding") == ["identity"]
        if exchange.asked.target == "/br":
            await exchange.start(content_encoding="br", content_length="5")
            await exchange.data(b"abcde")
        else:
            data = gzip.compress(body[:1000]) + gzip.compress(body[1000:])
            await exchange.start(content_encoding="gzip", content_length=str(len(data)))
            await exchange.data(data)
        await exchange.end()

    host.handler = coded
    wall.hold()
    answer = await get(wall, headers={"accept-encoding": "gzip, br"})
    assert answer.content == body.replace(VALUE.encode(), b"*" * len(VALUE))
    assert "content-encoding" not in answer.headers
    refused = await get(wall, "/br")
    assert refused.status_code == 502
    assert "looked through" in refused.text


async def test_an_answer_that_was_cut_off_does_not_look_whole(wall: Wall, host: Host1) -> None:
    async def cut(exchange: Exchange) -> None:
        await exchange.start(content_length="100")
        await exchange.data(b"x" * 50)
        exchange.writer.transport.abort()
        raise ConnectionResetError

    host.handler = cut
    wall.hold()
    with pytest.raises(httpx.HTTPError):
        await get(wall)
    assert any("cut off" in each or "middle" in each for each in wall.noted.words)


async def test_an_answer_that_is_none_is_told(wall: Wall, host: Host1) -> None:
    async def rude(exchange: Exchange) -> None:
        exchange.writer.write(b"what?\r\n\r\n")
        await exchange.writer.drain()
        raise ConnectionResetError

    host.handler = rude
    answer = await get(wall)
    assert answer.status_code == 502
    assert "no HTTP" in answer.text


async def test_a_host_that_closes_a_connection_between_requests_closes_the_machines(
    wall: Wall, host: Host1
) -> None:
    async def once(exchange: Exchange) -> None:
        await exchange.start(content_length="0")
        await exchange.end()
        exchange.writer.close()
        raise ConnectionResetError

    host.handler = once
    for _ in range(2):
        reader, writer = await wall.open()
        writer.write(f"GET / HTTP/1.1\r\nHost: {wall.authority_name}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


async def test_a_host_that_only_knows_the_end_of_the_connection(wall: Wall, host: Host1) -> None:
    async def old(exchange: Exchange) -> None:
        exchange.writer.write(b"HTTP/1.0 200 OK\r\n\r\nold body " + VALUE.encode())
        await exchange.writer.drain()
        raise ConnectionResetError

    host.handler = old
    wall.hold()
    answer = await get(wall)
    assert answer.content == b"old body " + b"*" * len(VALUE)
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("kind", ["json", "form"])
async def test_a_placeholder_is_swapped_in_headers_and_small_bodies(
    wall: Wall, host: Host1, kind: str
) -> None:
    text = "placeholder-0123456789"
    wall.hold('va"lue+of/it', placeholder=text, in_body=True)
    body: dict[str, Any] = (
        {"json": {"token": text}} if kind == "json" else {"data": {"token": text}}
    )
    answer = await get(wall, method="POST", headers={"x-k": text}, **body)
    assert answer.status_code == 200
    (asked,) = host.asked
    assert asked.all("x-k") == ['va"lue+of/it']
    if kind == "json":
        assert json.loads(asked.body) == {"token": 'va"lue+of/it'}
    else:
        assert asked.body == b"token=va%22lue%2Bof%2Fit"
    assert asked.all("content-length") == [str(len(asked.body))]
    large = await get(wall, method="POST", json={"token": text, "x": "y" * 70_000})
    assert large.status_code == 413
    assert len(host.asked) == 1


async def test_a_failing_look_up_lets_nothing_through(wall: Wall, host: Host1) -> None:
    async def fails() -> list[Any]:
        raise NetworkError("The database is away.")

    wall.look_up = fails
    answer = await get(wall)
    assert answer.status_code == 503
    assert "database is away" in answer.text
    assert host.asked == []


# WebSockets


async def test_a_websocket_gets_its_header_keeps_its_protocol_and_is_redacted(
    wall: Wall, vouching: Authority
) -> None:
    heads: list[Any] = []

    async def chat(ws: ServerConnection) -> None:
        heads.append(ws.request.headers)
        async for message in ws:
            await ws.send(f"{message} {VALUE}" if isinstance(message, str) else message)

    context = server_context(vouching, NAME, "http/1.1")
    async with serve(chat, "127.0.0.1", 0, ssl=context, subprotocols=["chat.v2"]) as server:
        wall.host = server.sockets[0].getsockname()[1]
        wall.hold(schemes=["wss"])
        async with connect_websocket(
            f"wss://{wall.authority_name}/live",
            sock=await connect(wall.port),
            ssl=wall.machine_context("http/1.1"),
            server_hostname=NAME,
            subprotocols=["chat.v1", "chat.v2"],
            additional_headers={"authorization": "mine"},
        ) as ws:
            assert ws.subprotocol == "chat.v2"
            await ws.send("hello")
            assert await ws.recv() == "hello " + "*" * len(VALUE)
            await ws.send(b"\x00" * 300_000)
            assert await ws.recv() == b"\x00" * 300_000
            await (await ws.ping())
    assert heads[0].get_all("authorization") == [BEARER]
    assert "sec-websocket-extensions" not in heads[0]
    assert wall.noted.secrets == ["KEY0"]
    await wall.idle()


async def test_a_websocket_is_no_https_to_a_binding(wall: Wall, host: Host1) -> None:
    wall.hold(schemes=["https"])
    await get(wall, headers={"connection": "upgrade", "upgrade": "websocket"})
    assert host.asked[0].all("authorization") == []
    assert host.asked[0].all("upgrade") == ["websocket"]


async def test_a_websocket_that_is_refused_is_an_answer(wall: Wall, host: Host1) -> None:
    wall.hold()
    answer = await get(wall, headers={"connection": "upgrade", "upgrade": "websocket"})
    assert answer.status_code == 200
    assert host.asked[0].all("authorization") == [BEARER]


async def test_after_a_101_each_side_ends_by_itself(wall: Wall, host: Host1) -> None:
    seen = bytearray()
    got = asyncio.Event()

    async def switch(exchange: Exchange) -> None:
        await exchange.send(
            h11.InformationalResponse(
                status_code=101, headers=[("upgrade", "websocket"), ("connection", "upgrade")]
            )
        )
        while data := await exchange.reader.read(100):
            seen.extend(data)
            got.set()
        exchange.writer.write(b"that was all")
        await exchange.writer.drain()
        raise ConnectionResetError

    host.handler = switch
    reader, writer = await wall.open()
    writer.write(
        f"GET / HTTP/1.1\r\nHost: {wall.authority_name}\r\nConnection: upgrade\r\n"
        "Upgrade: websocket\r\n\r\n".encode()
    )
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    writer.write(b"raw")
    await asyncio.wait_for(got.wait(), 10)
    writer.close()
    await wall.idle()
