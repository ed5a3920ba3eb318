"""What the wall serves itself: by name, for the session whose wire it is, and for nobody else."""

import asyncio
import json
from collections.abc import AsyncIterator

from tests.network.walled import request, walled
from tests.network.world import Internet, Wire, needs_root
from torpor.network.services import Call, Reply

pytestmark = needs_root
GATEWAY, MODELS = "gateway.torpor.internal", "models.torpor.internal"


async def test_health_says_whose_it_is_whatever_the_machine_says(
    wire: Wire, internet: Internet
) -> None:
    async with walled(wire, internet, "none", session="s-7") as wall:
        for name, service in ((GATEWAY, "gateway"), (MODELS, "models")):
            claims = ("X-Torpor-Session: s-8", "Authorization: Bearer s-8")
            answer = await wall.say(name, 80, request("s-8.test", "/health", *claims))
            head, _, page = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert json.loads(page) == {"service": service, "session": "s-7", "status": "ok"}
        assert (await wall.say(GATEWAY, 80, request(GATEWAY, "/mcp"))).startswith(b"HTTP/1.1 404")
        assert (await wall.say(GATEWAY, 443, request(GATEWAY))).startswith(b"HTTP/1.1 403 ")
        assert wall.lookups == []


async def test_handlers_take_and_give_bodies_piece_by_piece(wire: Wire, internet: Internet) -> None:
    calls: list[Call] = []

    async def handler(call: Call) -> Reply:
        calls.append(call)
        taken = [piece async for piece in call.body]

        async def pieces() -> AsyncIterator[bytes]:
            yield b"%d bytes\n" % len(b"".join(taken))
            await asyncio.sleep(0.05)
            yield call.session.encode()

        return Reply(201, ((b"content-type", b"text/event-stream"),), pieces())

    async with (
        walled(wire, internet, "none", handlers={GATEWAY: handler}) as wall,
        wall.dialled(GATEWAY, 80) as (reader, writer),
    ):
        body = b"x" * 300_000
        writer.write(request(GATEWAY, "/call?a=b", "Connection: keep-alive", body=body))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 201 ")
        assert (
            await reader.readuntil(b"\r\n0\r\n\r\n")
            == b"d\r\n300000 bytes\n\r\n3\r\ns-1\r\n0\r\n\r\n"
        )
        writer.write(request(GATEWAY, "/again", "Expect: 100-continue", body=b"y")[:-1])
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(b"y")
        assert b"1 bytes" in await reader.read()
        assert [(call.method, call.target) for call in calls] == [
            ("POST", "/call?a=b"), ("POST", "/again"),
        ]  # fmt: skip


async def test_a_handler_that_fails_is_a_500_and_is_reported(
    wire: Wire, internet: Internet
) -> None:
    async def broken(call: Call) -> Reply:
        raise ZeroDivisionError("of the handler's")

    async with walled(wire, internet, "none", handlers={GATEWAY: broken}) as wall:
        assert (await wall.say(GATEWAY, 80, request(GATEWAY))).startswith(b"HTTP/1.1 500 ")
        assert "ZeroDivisionError" in repr(wall.faults.pop())


async def test_what_is_no_request_ends_the_connection(wire: Wire, internet: Internet) -> None:
    async with walled(wire, internet, "none") as wall:
        assert await wall.say(GATEWAY, 80, b"GET / HTTP/1.1\r\nbad header\r\n\r\n") == b""


async def test_an_answer_waits_for_a_machine_that_sleeps(wire: Wire, internet: Internet) -> None:
    gate = asyncio.Event()

    async def slow(call: Call) -> Reply:
        await gate.wait()
        return Reply(200, (), b"late")

    async with (
        walled(wire, internet, "none", handlers={MODELS: slow}) as wall,
        wall.dialled(MODELS, 80) as (reader, writer),
    ):
        writer.write(request(MODELS))
        await asyncio.sleep(0.1)
        await wall.guard.hold()
        gate.set()
        waiting = asyncio.create_task(reader.read(1))
        done, _ = await asyncio.wait([waiting], timeout=0.3)
        assert not done
        wall.guard.go_on()
        assert await waiting == b"H"
        assert (await reader.read()).endswith(b"late")
