"""Many connections of one machine, and what another one sees of them.

The long forms are for `FLOOD=10000 pytest tests/network/test_flood.py`; times are not asserted.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.network.walled import Walled, echo, serving, walled
from tests.network.world import ANYWHERE, GOOD, Internet, Wire, needs_root
from tests.waiting import eventually
from torpor.network.limits import Limits
from torpor.network.turns import Turns

pytestmark = needs_root
OPEN = Path("/proc/self/fd")
MANY = int(os.environ.get("FLOOD", "1000"))


async def once(wall: Walled) -> None:
    """Make a short connection."""
    async with wall.dialled("good.test", 7) as (reader, writer):
        writer.write(b"\0?")
        assert await reader.readexactly(2) == b"\0?"


async def test_many_short_connections_leave_nothing(wire: Wire, internet: Internet) -> None:
    loose = Limits(new_connections=1e6)
    async with (
        serving(internet.far, GOOD, 7, echo),
        walled(wire, internet, ["good.test:7"], limits=loose) as wall,
    ):
        await once(wall)
        before = len(list(OPEN.iterdir()))
        slots = asyncio.Semaphore(50)

        async def short() -> None:
            async with slots:
                await once(wall)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(MANY):
                tasks.create_task(short())

        async def open_now() -> int:
            return wall.guard.connections

        await eventually(open_now, lambda count: count == 0)
        (traffic,) = wall.guard.traffic()
        assert (traffic.connections, traffic.sent) == (MANY + 1, 2 * (MANY + 1))

        async def descriptors() -> int:
            return len(list(OPEN.iterdir()))

        await eventually(descriptors, lambda count: count <= before)


async def test_more_new_connections_than_may_be_wait_and_are_served(
    wire: Wire, internet: Internet
) -> None:
    limits = Limits(new_connections=50)
    async with (
        serving(internet.far, GOOD, 7, echo),
        walled(wire, internet, ["good.test:7"], limits=limits) as wall,
    ):
        began = time.monotonic()
        await asyncio.gather(*(once(wall) for _ in range(150)))
        # 100 at once, and the others at 50 a second.
        assert time.monotonic() - began > 0.9


async def test_a_machine_is_served_beside_another_that_floods(
    wire: Wire, other_wire: Wire, internet: Internet, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = Turns()
    times: dict[str, list[float]] = {"alone": [], "beside": []}

    async def timed(wall: Walled, kind: str) -> None:
        began = time.perf_counter()
        await once(wall)
        times[kind].append(time.perf_counter() - began)

    async with (
        serving(internet.far, ANYWHERE, 7, echo),
        walled(wire, internet, ["good.test:7"], turns=turns) as calm,
        walled(other_wire, internet, "none", turns=turns, session="s-2") as wild,
        contextlib.AsyncExitStack() as stack,
    ):
        for _ in range(100):
            await timed(calm, "alone")
        stack.enter_context(flooding(wild, seconds=30))
        await asyncio.sleep(0.5)
        for _ in range(100):
            await timed(calm, "beside")
    with capsys.disabled():
        medians = {kind: sorted(each)[50] * 1000 for kind, each in times.items()}
        print(f"\n  a short connection: {medians}")
    # The flood was one: far more was tried than is let in.
    assert len(wild.decisions) > 100


@contextlib.contextmanager
def flooding(wall: Walled, seconds: int):
    """Have a process in the machine begin connections as fast as it can."""
    program = (
        "import socket, time\n"
        f"until = time.monotonic() + {seconds}\n"
        "while time.monotonic() < until:\n"
        "    s = socket.socket(); s.setblocking(False)\n"
        f"    s.connect_ex(({GOOD!r}, 7)); s.close()\n"
    )
    machine = wall.wire.machine
    process = subprocess.Popen(
        ["nice", "-n", "19", *machine.command(sys.executable, "-c", program)],
        pass_fds=(machine.fd,),
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()
