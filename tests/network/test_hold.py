"""Connections while their machine sleeps: nothing is written to it, nothing is lost, and what waits
for too long is ended on both sides."""

import asyncio
import contextlib
import hashlib
import os
import socket
from collections.abc import Iterator

import pytest

from tests.network.walled import Walled, echo, judged, serving, walled
from tests.network.world import GOOD, Internet, Wire, needs_root
from tests.waiting import eventually
from torpor.network.limits import Limits
from torpor.network.readiness import unacknowledged

pytestmark = needs_root
SIZE = 24 << 20
DATA = os.urandom(1 << 20)


@contextlib.contextmanager
def frozen(wire: Wire) -> Iterator[None]:
    """Have the machine be as one that is frozen: its card neither takes nor gives."""
    wire.machine.run("ip", "link", "set", "eth0", "down")
    try:
        yield
    finally:
        wire.machine.run(
            "ip", "-batch", "-",
            words="link set eth0 up\nroute add default via 198.19.255.1\n",
        )  # fmt: skip


async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send SIZE bytes."""
    await reader.readexactly(2)
    for _ in range(SIZE // len(DATA)):
        writer.write(DATA)
        await writer.drain()
    writer.close()


def digest() -> str:
    return hashlib.sha256(DATA * (SIZE // len(DATA))).hexdigest()


async def moved(wall: Walled, most: int) -> None:
    """Wait until some of a transfer has passed, and not all."""

    async def passed() -> int:
        return sum(each.sent + each.received for each in wall.guard.traffic())

    assert await eventually(passed, lambda count: count > 1 << 20) < most


async def test_a_download_goes_on_where_it_was(wire: Wire, internet: Internet) -> None:
    got = hashlib.sha256()
    async with (
        serving(internet.far, GOOD, 9, send),
        walled(wire, internet) as wall,
        wall.dialled("good.test", 9) as (reader, writer),
    ):
        writer.write(b"\0\0")
        for _ in range(20):
            got.update(await reader.read(1 << 16))
        await moved(wall, SIZE)
        await wall.guard.hold()
        with frozen(wire):
            await asyncio.sleep(0.2)
            (before,) = wall.guard.traffic()
            await asyncio.sleep(0.5)
            (after,) = wall.guard.traffic()
            assert after.received == before.received
        wall.guard.go_on()
        async with asyncio.timeout(30):
            while data := await reader.read(1 << 20):
                got.update(data)
    assert got.hexdigest() == digest()


async def test_an_upload_goes_on_where_it_was(wire: Wire, internet: Internet) -> None:
    got = hashlib.sha256()
    whole = asyncio.Event()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            got.update(data)
            await asyncio.sleep(0)
        whole.set()

    async with (
        serving(internet.far, GOOD, 9, take),
        walled(wire, internet) as wall,
        wall.dialled("good.test", 9) as (_, writer),
    ):

        async def upload() -> None:
            for _ in range(SIZE // len(DATA)):
                writer.write(DATA)
                await writer.drain()
            writer.write_eof()

        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            tasks.create_task(upload())
            await moved(wall, SIZE)
            await wall.guard.hold()
            with frozen(wire):
                await asyncio.sleep(0.5)
            wall.guard.go_on()
            await whole.wait()
    assert got.hexdigest() == digest()


async def test_what_was_written_is_taken_before_the_freeze(wire: Wire, internet: Internet) -> None:
    async with (
        serving(internet.far, GOOD, 7, echo),
        walled(wire, internet) as wall,
        wall.dialled(GOOD, 7) as (reader, writer),
    ):
        for _ in range(50):
            writer.write(b"\0" * 10_000)
            await reader.readexactly(10_000)
        assert await wall.guard.hold() is True
        for flow in wall.guard._flows:
            assert flow.machine is not None
            assert unacknowledged(flow.machine) == 0
        with frozen(wire):
            pass
        wall.guard.go_on()
        writer.write(b"\1")
        assert await reader.readexactly(1) == b"\1"


async def test_what_the_other_side_says_meanwhile_is_heard_after_it(
    wire: Wire, internet: Internet
) -> None:
    said = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        await said.wait()
        writer.write(b"meanwhile")
        writer.close()

    async with (
        serving(internet.far, GOOD, 7, talk),
        walled(wire, internet) as wall,
        wall.dialled(GOOD, 7) as (reader, writer),
    ):
        writer.write(b"\0")
        await asyncio.sleep(0.1)
        assert await wall.guard.hold() is True
        with frozen(wire):
            said.set()
            await asyncio.sleep(0.3)
        wall.guard.go_on()
        assert await reader.read() == b"meanwhile"


async def test_who_is_held_for_too_long_is_ended_on_both_sides(
    wire: Wire, internet: Internet
) -> None:
    ended = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(1))
        try:
            await reader.read()
        except ConnectionResetError:
            ended.set()

    async with (
        serving(internet.far, GOOD, 7, wait),
        walled(wire, internet) as wall,
        wall.dialled(GOOD, 7) as (reader, writer),
    ):
        writer.write(b"\0")
        await reader.readexactly(1)
        assert await wall.guard.hold(seconds=0.3) is True
        with frozen(wire):
            async with asyncio.timeout(5):
                await ended.wait()
        assert "slept for longer" in wall.decisions[-1].why
        assert not reader.at_eof()
        wall.guard.go_on()
        with pytest.raises(ConnectionResetError):
            async with asyncio.timeout(5):
                await reader.read()


async def test_what_a_policy_ends_while_the_machine_sleeps_is_told_when_it_wakes(
    wire: Wire, internet: Internet
) -> None:
    async with (
        serving(internet.far, GOOD, 7, echo),
        walled(wire, internet) as wall,
        wall.dialled(GOOD, 7) as (reader, writer),
    ):
        writer.write(b"\0")
        await reader.readexactly(1)
        await wall.guard.hold()
        with frozen(wire):
            assert await wall.guard.policy(judged("none")) == 1
        wall.guard.go_on()
        with pytest.raises(ConnectionResetError):
            async with asyncio.timeout(5):
                await reader.read()


async def test_nobody_is_idle_for_being_asleep(wire: Wire, internet: Internet) -> None:
    async with (
        serving(internet.far, GOOD, 7, echo),
        walled(wire, internet, limits=Limits(idle=0.6)) as wall,
        wall.dialled(GOOD, 7) as (reader, writer),
    ):
        writer.write(b"\0")
        assert await reader.readexactly(1) == b"\0"
        await wall.guard.hold()
        await asyncio.sleep(1.0)
        wall.guard.go_on()
        await asyncio.sleep(0.2)
        writer.write(b"\1")
        assert await reader.readexactly(1) == b"\1"


async def test_an_end_that_is_not_taken_yet_is_waited_for(wire: Wire, internet: Internet) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.write(some)
        writer.close()

    some = DATA[:400_000]

    async with (
        serving(internet.far, GOOD, 7, talk),
        walled(wire, internet) as wall,
    ):
        sock = await wall.connect(GOOD, 7)
        sock.shutdown(socket.SHUT_WR)

        async def passed() -> int:
            return sum(each.received for each in wall.guard.traffic())

        await eventually(passed, lambda count: count == len(some))
        # All has been said, and lies in the wall's kernel: the connection is the wall's to hold.
        await asyncio.sleep(0.3)
        assert wall.guard.connections == 1
        assert await wall.guard.hold() is False
        wall.guard.go_on()
        got = b""
        loop = asyncio.get_running_loop()
        while piece := await loop.sock_recv(sock, 1 << 20):
            got += piece
        assert got == some
        sock.close()

        async def open_now() -> int:
            return wall.guard.connections

        await eventually(open_now, lambda count: count == 0)
