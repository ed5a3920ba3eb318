"""Commands that are followed: over lost connections and restarts, nothing twice, nothing unsaid."""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.websockets import WebSocket, WebSocketDisconnect

from tests.client.double import Double, output
from torpor.client import (
    AnswerError,
    AsyncClient,
    Client,
    ConflictError,
    Disconnected,
    Exit,
    Gap,
    Item,
    NotFoundError,
    Output,
    Paused,
    Reconnected,
    Resumed,
    Terminal,
    UnauthorizedError,
    UnreachableError,
)
from torpor.client.exec_stream import Reading, Unsure

PATH = "/v2/agents/sessions/b/execs/e/stream"
EXIT = json.dumps({"type": "exit", "code": 3, "signal": None, "timed_out": False})

Talk = Callable[[WebSocket, int], Awaitable[None]]
Follow = Callable[..., list[Item]]


def talks(double: Double, talk: Talk, path: str = PATH) -> None:
    """Have ``talk`` speak on the socket; it is told how many there were before."""
    count = -1

    async def accepted(websocket: WebSocket) -> None:
        nonlocal count
        count += 1
        await websocket.accept()
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await talk(websocket, count)
            await websocket.close()

    double.sockets[path] = accepted


@pytest.fixture(params=["waits", "awaits"])
def follow(request: pytest.FixtureRequest, double: Double) -> Follow:
    """Follow the command with one of the clients, and return all items."""

    def waiting(**options: Any) -> list[Item]:
        with Client(double.url) as client, client.attach("b", "e", **options) as stream:
            return list(stream)

    async def awaiting(**options: Any) -> list[Item]:
        async with (
            AsyncClient(double.url) as client,
            client.attach("b", "e", **options) as stream,
        ):
            return [item async for item in stream]

    if request.param == "waits":
        return waiting
    return lambda **options: asyncio.run(awaiting(**options))


def test_all_that_a_command_does_is_told(double: Double, follow: Follow) -> None:
    async def talk(websocket: WebSocket, _: int) -> None:
        await websocket.send_bytes(output(0, b"out"))
        await websocket.send_bytes(output(3, b"\xfferr", 2))
        await websocket.send_text('{"type":"gap","start":7,"end":100}')
        await websocket.send_text('{"type":"paused"}')
        await websocket.send_text('{"type":"resumed"}')
        await websocket.send_text('{"type":"held"}')
        await websocket.send_text(EXIT)

    talks(double, talk)
    assert follow() == [
        Output(0, "stdout", b"out"),
        Output(3, "stderr", b"\xfferr"),
        Gap(7, 100),
        Paused(),
        Resumed(),
        Exit(3, None),
    ]
    assert double.joined == [f"{PATH}?seq=0"]


def test_a_lost_connection_is_looked_for_from_the_next_byte_on(
    double: Double, follow: Follow
) -> None:
    async def talk(websocket: WebSocket, before: int) -> None:
        if before == 0:
            await websocket.send_bytes(output(10, b"abc"))
            await websocket.close(1012, "the server stops")
            return
        # What is sent again is not told again.
        await websocket.send_bytes(output(11, b"bcdef"))
        await websocket.send_text('{"type":"gap","start":11,"end":20}')
        await websocket.send_text(EXIT)

    talks(double, talk)
    assert follow(seq=10) == [
        Output(10, "stdout", b"abc"),
        Disconnected("the server stops"),
        Reconnected(),
        Output(13, "stdout", b"def"),
        Gap(16, 20),
        Exit(3, None),
    ]
    assert double.joined == [f"{PATH}?seq=10", f"{PATH}?seq=13"]


def test_a_server_that_is_killed_and_started_again_is_found(double: Double, follow: Follow) -> None:
    written = threading.Event()

    async def talk(websocket: WebSocket, before: int) -> None:
        if before == 0:
            await websocket.send_bytes(output(0, b"1"))
            written.set()
            await websocket.receive()
        await websocket.send_bytes(output(1, b"2"))
        await websocket.send_text(EXIT)

    def restart() -> None:
        written.wait(10)
        double.stop()
        time.sleep(0.3)
        double.start()

    talks(double, talk)
    killing = threading.Thread(target=restart)
    killing.start()
    items = follow(patience=20)
    killing.join()
    assert [each.data for each in items if isinstance(each, Output)] == [b"1", b"2"]
    assert items[-1] == Exit(3, None)


def test_patience_ends(double: Double, follow: Follow) -> None:
    async def talk(websocket: WebSocket, before: int) -> None:
        await websocket.send_bytes(output(0, b"1"))
        threading.Thread(target=double.stop).start()
        await websocket.receive()

    talks(double, talk)
    with pytest.raises(UnreachableError):
        follow(patience=0.4)
    double.start()


def test_a_command_that_is_not_there_is_told_as_the_server_says(follow: Follow) -> None:
    with pytest.raises(NotFoundError, match="There is no command"):
        follow()


def test_a_command_that_is_gone_after_a_restart_ends_it(double: Double, follow: Follow) -> None:
    async def talk(websocket: WebSocket, before: int) -> None:
        del double.sockets[PATH]

    talks(double, talk)
    with pytest.raises(NotFoundError):
        follow()


def test_an_error_of_the_stream_is_raised_with_its_status(double: Double, follow: Follow) -> None:
    async def talk(websocket: WebSocket, before: int) -> None:
        await websocket.send_text(
            '{"type":"error","id":"conflict","message":"It is FAILED.","todo":"Resume it."}'
        )
        await websocket.close(4409, "conflict")

    talks(double, talk)
    with pytest.raises(ConflictError, match=r"It is FAILED\. Resume it\."):
        follow()


def test_a_token_is_shown_and_its_refusal_is_told(double: Double) -> None:
    async def refuse(websocket: WebSocket) -> None:
        assert websocket.headers["authorization"] == "Bearer torpor_x_y"
        from tests.client.double import refusal

        await websocket.send_denial_response(refusal(401, "unauthorized", "A token is needed."))

    double.sockets[PATH] = refuse
    with (
        Client(double.url, "torpor_x_y") as client,
        pytest.raises(UnauthorizedError, match="A token is needed"),
        client.attach("b", "e"),
    ):
        pass


@pytest.mark.parametrize("message", [b"\x01short", b"\x07" + bytes(9), "[]", "{", '{"x":1}'])
def test_what_is_no_message_of_the_stream_is_refused(message: str | bytes) -> None:
    with pytest.raises(AnswerError):
        list(Reading().take(message))


def test_a_status_is_a_shells() -> None:
    assert (Exit(3, None).status, Exit(None, 9).status, Exit(0, None).status) == (3, 137, 0)


# Input


def echoes(double: Double) -> list[Any]:
    """Have the command keep what it is told, up to the end of its input."""
    told: list[Any] = []

    async def talk(websocket: WebSocket, before: int) -> None:
        while True:
            message = await websocket.receive()
            if message["type"] != "websocket.receive":
                return
            if (data := message.get("bytes")) is not None:
                told.append(data)
                continue
            said = json.loads(message["text"])
            told.append(said)
            if said["type"] == "eof":
                await websocket.send_text(EXIT)
                return

    talks(double, talk)
    return told


TOLD = [
    b"x" * 65536,
    b"yz",
    {"type": "resize", "rows": 5, "columns": 6},
    {"type": "signal", "signal": 2},
    {"type": "eof"},
]


def test_input_size_and_signals_go_in_their_order(double: Double, client: Client) -> None:
    told = echoes(double)
    with client.attach("b", "e") as stream:
        stream.write(b"x" * 65536 + b"yz")
        stream.resize(Terminal(5, 6))
        stream.signal(2)
        stream.close_input()
        assert list(stream) == [Exit(3, None)]
        stream.write(b"nobody is left")  # and that is no error: it has ended
        assert (stream.exit, stream.seq) == (Exit(3, None), 0)
    assert told == TOLD


async def test_coroutines_do_the_same(double: Double, async_client: AsyncClient) -> None:
    told = echoes(double)
    async with async_client.attach("b", "e") as stream:
        await stream.write(b"x" * 65536 + b"yz")
        await stream.resize(Terminal(5, 6))
        await stream.signal(2)
        await stream.close_input()
        assert [item async for item in stream] == [Exit(3, None)]
        await stream.write(b"nobody is left")
    assert told == TOLD


async def test_input_waits_for_a_lost_connection_and_is_not_sent_twice(
    double: Double, async_client: AsyncClient
) -> None:
    told: list[bytes] = []

    async def talk(websocket: WebSocket, before: int) -> None:
        told.append(await websocket.receive_bytes())
        if before:
            await websocket.send_text(EXIT)

    talks(double, talk)
    async with async_client.attach("b", "e") as stream:
        await stream.write(b"first")
        items = [await anext(i := aiter(stream))]
        writing = asyncio.create_task(stream.write(b"second"))
        items += [item async for item in i]
        await writing
    assert told == [b"first", b"second"]
    # That the first arrived nobody has said; so it is said that it may not have.
    assert items[1:] == [Reconnected(5), Exit(3, None)]


def test_a_thread_that_writes_waits_for_a_lost_connection(double: Double, client: Client) -> None:
    told: list[bytes] = []

    async def talk(websocket: WebSocket, before: int) -> None:
        told.append(await websocket.receive_bytes())
        if before:
            await websocket.send_text(EXIT)

    talks(double, talk)
    with client.attach("b", "e") as stream:
        stream.write(b"first")
        items = iter(stream)
        assert isinstance(next(items), Disconnected)
        writing = threading.Thread(target=stream.write, args=(b"second",))
        writing.start()
        assert list(items) == [Reconnected(5), Exit(3, None)]
        writing.join()
    assert told == [b"first", b"second"]


def test_leaving_leaves_the_command_alone(double: Double, client: Client) -> None:
    told = echoes(double)
    with client.attach("b", "e") as stream:
        closing = threading.Timer(0.2, stream.close)
        closing.start()
        assert list(stream) == []
        with pytest.raises(UnreachableError, match="closed"):
            stream.write(b"x")
    assert told == []


def test_only_the_newest_input_is_unsure() -> None:
    unsure = Unsure()
    unsure.sent(100, now=0.0)
    unsure.sent(10, now=8.0)
    unsure.sent(5, now=9.0)
    assert unsure.lost(now=10.0) == 15
    assert unsure.lost(now=10.0) == 0


# Ports


def test_a_port_is_a_pipe_both_ways(double: Double, client: Client) -> None:
    async def talk(websocket: WebSocket, before: int) -> None:
        data = await websocket.receive_bytes()
        assert await websocket.receive_json() == {"type": "eof"}
        await websocket.send_bytes(b"hello, " + data)

    talks(double, talk, "/v2/agents/sessions/b/port-forward/8080")
    with client.forward("b", 8080) as port:
        port.write(b"you")
        port.close_input()
        assert (port.read(), port.read()) == (b"hello, you", b"")
        with pytest.raises(UnreachableError):
            port.write(b"x")
    with pytest.raises(ValueError, match="no port"):
        client.forward("b", 0)


async def test_coroutines_have_ports_too(double: Double, async_client: AsyncClient) -> None:
    async def talk(websocket: WebSocket, before: int) -> None:
        await websocket.send_bytes(await websocket.receive_bytes())
        await websocket.close(4409, "conflict")

    talks(double, talk, "/v2/agents/sessions/b/port-forward/1")
    async with async_client.forward("b", 1) as port:
        await port.write(b"x")
        await port.close_input()
        assert await port.read() == b"x"
        with pytest.raises(ConflictError):
            await port.read()
