"""A policy that changes under connections that live, and limits on what a machine may take."""

import asyncio
import contextlib
import threading
import time

import pytest

from tests.network.test_proxy import hello
from tests.network.walled import Walled, Web, echo, judged, request, serving, walled
from tests.network.world import ANYWHERE, CDN, EVIL, GOOD, OTHER, Internet, Wire, needs_root
from tests.waiting import eventually
from torpor.network.limits import Limits

pytestmark = needs_root

Live = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def lives(one: Live) -> bool:
    """Say whether an echo still answers on a connection."""
    reader, writer = one
    try:
        writer.write(b"\0?")
        return await reader.readexactly(2) == b"\0?"
    except (ConnectionResetError, BrokenPipeError):
        return False


async def test_what_is_denied_now_is_cut_at_once_and_the_rest_goes_on(
    wire: Wire, internet: Internet
) -> None:
    before = ["good.test:7", "evil.test:7", "www.cdn.test:7", "other.test:7"]
    async with (
        serving(internet.far, ANYWHERE, 7, echo),
        walled(wire, internet, before) as wall,
        contextlib.AsyncExitStack() as stack,
    ):
        names = ("good.test", "evil.test", "www.cdn.test", "other.test")
        live = [
            (name, await stack.enter_async_context(wall.dialled(name, 7)))
            for name in names
            for _ in range(20)
        ]
        assert all([await lives(one) for _, one in live])
        assert await wall.guard.policy(judged(["good.test:7"])) == 60
        assert wall.guard.connections == 20
        told = [each for each in wall.decisions if each.ended]
        assert {each.name for each in told} == set(names) - {"good.test"}
        assert all(not each.allowed and "policy" in each.why for each in told)
        for name, one in live:
            assert await lives(one) is (name == "good.test")


async def test_a_connection_that_only_begins_is_cut_too(wire: Wire, internet: Internet) -> None:
    async with (
        serving(internet.far, GOOD, 80, Web("good")),
        walled(wire, internet, ["good.test"]) as wall,
        wall.dialled("good.test", 80) as (reader, writer),
    ):
        writer.write(b"GET / HTTP/1.1\r\n")

        async def open_now() -> int:
            return wall.guard.connections

        await eventually(open_now, lambda count: count == 1)
        assert await wall.guard.policy(judged(["other.test"])) == 1
        with pytest.raises(ConnectionResetError):
            await reader.read()


async def test_what_spoke_first_is_cut_where_that_may_not_be_any_more(
    wire: Wire, internet: Internet
) -> None:
    async def banner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await reader.read()

    async with (
        serving(internet.far, OTHER, 22, banner),
        walled(wire, internet, ["other.test:22"]) as wall,
        wall.dialled("other.test", 22) as (reader, _),
    ):
        assert await reader.readexactly(5) == b"hello"
        assert await wall.guard.policy(judged(["other.test:22", "good.test"])) == 0
        assert await wall.guard.policy(judged(["tls://other.test:22"])) == 1
        with pytest.raises(ConnectionResetError):
            await reader.read()


async def test_requests_under_way_are_cut_by_the_host_that_they_said(
    wire: Wire, internet: Internet
) -> None:
    web = Web("cdn")
    async with (
        serving(internet.far, CDN, 80, web),
        walled(wire, internet) as wall,
        wall.dialled("www.cdn.test", 80) as (reader, writer),
    ):
        writer.write(request("www.cdn.test", "/", "Connection: keep-alive"))
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        assert await wall.guard.policy(judged({"unrestricted": True, "deny": ["evil.test"]})) == 0
        assert await wall.guard.policy(judged(["*.other.test"])) == 1


async def test_a_rule_that_inspects_ends_what_was_not_inspected(
    wire: Wire, internet: Internet
) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(1 << 16))
        await reader.read()

    async with (
        serving(internet.far, GOOD, 443, silent),
        walled(wire, internet, ["good.test"]) as wall,
        wall.dialled("good.test", 443) as (reader, writer),
    ):
        writer.write(hello("good.test"))
        assert await reader.read(3)
        inspecting = judged({"allow": [{"host": "good.test", "inspect": True}]})
        assert await wall.guard.policy(inspecting) == 1
        # And without anybody who can, nothing passes uninspected.
        async with wall.dialled("good.test", 443) as (later, saying):
            saying.write(hello("good.test"))
            assert (await later.read()).startswith(b"\x15\x03")
    assert "inspected" in wall.denied().why


async def test_a_silent_machine_is_left_alone_for_a_while_and_then_reset(
    wire: Wire, internet: Internet
) -> None:
    async with (
        walled(wire, internet, ["good.test"], limits=Limits(hello=1.0)) as wall,
        contextlib.AsyncExitStack() as stack,
    ):
        began = time.monotonic()
        silent = [
            await stack.enter_async_context(wall.dialled("good.test", 443)) for _ in range(300)
        ]

        async def open_now() -> int:
            return wall.guard.connections

        assert await eventually(open_now, lambda count: count > 250) <= 300
        for reader, _ in silent:
            with pytest.raises(ConnectionResetError):
                await reader.read()
        assert time.monotonic() - began > 1.0
        await eventually(open_now, lambda count: count == 0)


async def test_bytes_one_by_one_gain_no_time(wire: Wire, internet: Internet) -> None:
    async with (
        walled(wire, internet, ["good.test"], limits=Limits(hello=0.5)) as wall,
        wall.dialled("good.test", 443) as (reader, writer),
    ):
        for byte in b"\x16\x03\x01\x00\xff\x01\x00\x00\xfb\x03\x03" + bytes(100):
            writer.write(bytes([byte]))
            await asyncio.sleep(0.05)
            if writer.is_closing():
                break
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            await reader.read()
    assert "did not say" in wall.denied().why


async def test_connections_are_bounded_and_that_is_said(wire: Wire, internet: Internet) -> None:
    async with (
        serving(internet.far, GOOD, 7, echo),
        walled(wire, internet, limits=Limits(connections=5)) as wall,
        contextlib.AsyncExitStack() as stack,
    ):
        live = [await stack.enter_async_context(wall.dialled(GOOD, 7)) for _ in range(5)]
        assert all([await lives(one) for one in live])
        answer = await wall.say(GOOD, 7, request(GOOD))
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert "5 connections are open" in wall.denied().why
        assert all([await lives(one) for one in live])


async def test_idle_and_long_connections_end(wire: Wire, internet: Internet) -> None:
    for limits, why in (
        (Limits(idle=0.3), "Nothing was said"),
        (Limits(longest=0.3), "It lasted too long"),
    ):
        async with (
            serving(internet.far, GOOD, 7, echo),
            walled(wire, internet, limits=limits) as wall,
            wall.dialled(GOOD, 7) as (reader, writer),
        ):
            writer.write(b"\0")
            assert await reader.read(1) == b"\0"
            with pytest.raises(ConnectionResetError):
                await reader.read()
            assert why in wall.decisions[-1].why


async def test_all_bytes_together_are_bounded(wire: Wire, internet: Internet) -> None:
    async with (
        serving(internet.far, GOOD, 7, echo),
        walled(wire, internet, limits=Limits(total=100_000)) as wall,
    ):
        async with wall.dialled(GOOD, 7) as (reader, writer):
            writer.write(b"\0" * 200_000)
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(200_000)
        assert await wall.refused(GOOD, 7, b"\0")
        assert "100000 bytes" in wall.denied().why


async def test_bytes_per_second_are_bounded(wire: Wire, internet: Internet) -> None:
    async with (
        serving(internet.far, GOOD, 7, echo),
        walled(wire, internet, limits=Limits(rate=1_000_000)) as wall,
        wall.dialled(GOOD, 7) as (reader, writer),
    ):
        began = time.monotonic()
        writer.write(b"\0" * 1_000_000)
        await reader.readexactly(1_000_000)
        # Two megabytes are moved, the first of them at once, the last pieces before they are paid.
        assert time.monotonic() - began > 0.4


async def test_decisions_without_end_are_told_in_few(wire: Wire, internet: Internet) -> None:
    async with walled(wire, internet, "none", limits=Limits(new_connections=5000)) as wall:
        for _ in range(700):
            await flood_once(wall)

        async def waiting() -> int:
            return len(wall.decisions)

        await eventually(waiting, lambda count: count >= 500)
    assert 500 <= len(wall.decisions) < 600
    assert "more decisions" in wall.decisions[-1].why


async def flood_once(wall: Walled) -> None:
    with contextlib.suppress(OSError):
        sock = await wall.connect(EVIL, 9)
        sock.close()
    assert OTHER


@pytest.mark.parametrize("while_resolving", [True, False])
async def test_what_changes_while_a_connection_is_made_counts(
    while_resolving: bool, wire: Wire, internet: Internet
) -> None:
    # Denied by its address, which is known last.
    after = judged({"unrestricted": True, "deny": [f"{GOOD}/32"]})
    web = Web("good")
    async with serving(internet.far, GOOD, 80, web), walled(wire, internet) as wall:
        looking, go_on = threading.Event(), threading.Event()

        def slowly(name: str) -> None:
            looking.set()
            go_on.wait(5)

        if while_resolving:
            wall.before_lookup = slowly
        async with wall.dialled("good.test", 80) as (reader, writer):
            if while_resolving:
                await asyncio.to_thread(looking.wait, 5)
            else:
                writer.write(request("good.test", "/", "Connection: keep-alive"))
                assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
                await reader.readline()
            cut = await wall.guard.policy(after)
            go_on.set()
            if while_resolving:
                writer.write(request("good.test"))
                assert (await reader.read()).startswith(b"HTTP/1.1 403 ")
                assert web.heads == []
            else:
                assert cut == 1
                with pytest.raises(ConnectionResetError):
                    await reader.read()
