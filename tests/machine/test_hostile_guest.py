"""Root inside a machine does its worst: the host and the other machines go on, and the host's
process stays small."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.machine.conftest import Start
from torpor.guest import wire
from torpor.guest.wire import Kind
from torpor.vm import Command, Host, Identity, Machine, VmError
from torpor.vm.console import KEEP
from torpor.vm.shape import MIB

pytestmark = pytest.mark.machine

LIMIT = 240.0
FLOOD = """
port=$(ls /dev/vport*p* | head -n 1)
while :; do
    pkill -9 -f torpor/tools/site
    { while cat /root/flood; do :; done; } >"$port"
done 2>/dev/null
"""


@pytest.fixture
async def neighbour(start: Start, host: Host) -> Machine:
    """Another machine of the same host."""
    return await host.thaw(start.golden, Identity.of("neighbour"))


async def well(machine: Machine) -> None:
    """A machine works."""
    async with asyncio.timeout(LIMIT):
        agent = await machine.attached()
        assert (await agent.run("/bin/echo", "well")).stdout == b"well\n"


def resident() -> int:
    """This process's memory in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_it_cannot_write_beyond_its_disk(
    host: Host, machine: Machine, neighbour: Machine
) -> None:
    size = machine.record.top.size
    line = (
        f"dd if=/dev/zero of=/dev/vda bs=1M seek={size // MIB - 1} count=50 conv=notrunc"
        " oflag=direct; dd if=/dev/urandom of=/root/fill bs=1M count=64 oflag=direct"
    )
    said = await machine.agent.shell(line)
    assert b"o space left" in said.stderr
    top = machine.directory / machine.record.top.file_name
    assert top.stat().st_size < size + size // 1024 + 64 * MIB
    assert top.stat().st_blocks * 512 < 256 * MIB
    await well(neighbour)
    await host.end(machine)


async def test_it_takes_no_more_memory_than_it_has(machine: Machine, neighbour: Machine) -> None:
    hog = await machine.agent.start(Command(["/usr/bin/tail", "/dev/zero"]))
    async with asyncio.timeout(LIMIT):
        assert (await hog.wait()).signal == 9  # by the guest's own kernel
    await well(machine)
    await well(neighbour)
    assert machine.group is not None or os.geteuid() != 0
    if machine.group is not None:
        assert not machine.group.out_of_memory()


async def test_a_flood_of_its_console_is_kept_short(machine: Machine, neighbour: Machine) -> None:
    before = resident()
    flood = await machine.agent.start(
        Command(["/bin/sh", "-c", "yes 'all work and no play' >/dev/console"])
    )
    await asyncio.sleep(3)
    await well(neighbour)
    assert (machine.directory / "console.log").stat().st_size <= KEEP
    assert resident() - before < 32 * MIB
    await machine.agent.signal(flood.id, 9)
    await well(machine)


async def test_a_full_process_table_is_its_own(
    host: Host, machine: Machine, neighbour: Machine
) -> None:
    bomb = "f() { while :; do sleep 1000 & done; }; f & f"
    await machine.agent.start(Command(["/bin/sh", "-c", bomb]))
    await asyncio.sleep(3)
    await well(neighbour)
    await host.end(machine)
    await well(neighbour)


@pytest.mark.parametrize("kind", ["garbage", "frames"])
async def test_a_flood_of_the_channel_ends_it_and_is_told(
    host: Host, machine: Machine, neighbour: Machine, kind: str
) -> None:
    flood = (
        os.urandom(MIB)
        if kind == "garbage"
        else (wire.encode(Kind.REPLY, 1 << 30, wire.document({"a": "b" * 1000})) * 1000)
    )
    await machine.agent.write_file("/root/flood", flood)
    await machine.agent.write_file("/root/attack", FLOOD.encode())
    await machine.agent.start(Command(["/bin/sh", "/root/attack"]))
    before = resident()
    async with asyncio.timeout(LIMIT):
        lost = await until_lost(machine)
    assert "channel" in str(lost) or "agent" in str(lost)
    with pytest.raises(VmError):  # the agent is kept from coming back
        await machine.attach(5.0)
    assert resident() - before < 128 * MIB
    await well(neighbour)
    assert machine.running
    await host.end(machine)
    await well(neighbour)


async def until_lost(machine: Machine) -> VmError:
    while True:
        try:
            await machine.agent.channel.request("status", limit=5.0)
        except VmError as error:
            return error
        await asyncio.sleep(0.1)
