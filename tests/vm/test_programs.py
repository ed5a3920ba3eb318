"""Programs are ended with all that they started."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.waiting import eventually
from torpor.vm.programs import end_group, start_group

LEAVES_A_CHILD = """
import os, signal, sys, time
ready, told = os.pipe()
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(told, b"x")
    time.sleep(1000)
os.read(ready, 1)
print("ready", flush=True)
time.sleep(1000)
"""


async def in_group(leader: int) -> list[int]:
    """The living processes of a group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        state, _, group = text.rpartition(") ")[2].split()[:3]
        if int(group) == leader and state not in "ZX":
            found.append(int(stat.parent.name))
    return found


async def all_gone(leader: int) -> None:
    """A process that was killed closes what it held, our pipes too, before it is counted out."""
    await eventually(lambda: in_group(leader), lambda found: not found)


async def test_what_outlives_its_leader_and_holds_our_pipe_ends_too() -> None:
    process = await start_group(
        sys.executable, "-c", LEAVES_A_CHILD, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    assert len(await in_group(process.pid)) == 2
    async with asyncio.timeout(20):
        await end_group(process, signal.SIGTERM, 10.0)
    await all_gone(process.pid)
    assert process.returncode == -signal.SIGTERM


async def test_a_program_that_ends_when_told_may_do_so_in_its_way() -> None:
    line = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done"
    process = await start_group("/bin/sh", "-c", line, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    async with asyncio.timeout(20):
        await end_group(process, signal.SIGTERM, 10.0)
    assert process.returncode == 7
    await all_gone(process.pid)


async def test_a_start_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    """At every moment of it, as far as chance finds them."""
    for number in range(40):
        mark = str(tmp_path / f"mark-{number}")
        starting = asyncio.create_task(
            start_group("/bin/sleep", "1000", env={**os.environ, "MARK": mark})
        )
        for _ in range(number % 8):
            await asyncio.sleep(0)
        if starting.cancel():
            with pytest.raises(asyncio.CancelledError):
                await starting
        else:
            await end_group(starting.result(), signal.SIGKILL, 0)
    marks = f"MARK={tmp_path}".encode()
    left = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if marks in environ.read_bytes():
                left.append(environ.parent.name)
        except OSError:
            continue
    assert left == []
