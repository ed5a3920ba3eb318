"""A machine that is held by a full disk: what is asked of it, and how it goes on."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.machine.conftest import Start, open_host
from tests.machine.small_disks import fill, fill_up
from torpor.vm import (
    Command,
    Exec,
    FreezeError,
    HeldError,
    HookLimits,
    Host,
    HostError,
    Identity,
    Machine,
    MachineDiedError,
    Output,
    Wanted,
    disk_is_full,
)

pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root"),
]

LIMIT = 180
"""Seconds for what happens in its own time, under emulation and on a busy host."""
TICKS = "n=0; while :; do n=$((n+1)); echo $n; sleep 0.1; done"
HOOK = b"""#!/bin/sh
echo begun >> /root/runs
[ -e /root/big ] || { head -c 60000000 /dev/urandom > /root/big; sync; sleep 2; }
echo ended >> /root/runs
"""
DIRTY = "head -c 60000000 /dev/urandom > /root/big; sha256sum /root/big"


class Place:
    """A host on a small disk, that can be closed and opened again."""

    def __init__(self, start: Start, disk: Path) -> None:
        self._start = start
        self._home = disk / "home"
        self._open: Host | None = None

    async def open(self) -> Host:
        await self.close()
        self._open = await open_host(self._start, self._home)
        return self._open

    async def close(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            await opened.close()


@pytest.fixture
async def place(start: Start, small_disk: Path) -> AsyncIterator[Place]:
    place = Place(start, small_disk)
    yield place
    for file in ("ballast", "rest"):
        (small_disk / file).unlink(missing_ok=True)
    opened = await place.open()
    for left in list(opened.machines.values()):
        await opened.end(left)
    assert opened.processes() == []
    await place.close()


@pytest.fixture
async def host(place: Place) -> Host:
    return await place.open()


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT):
        while not happened():  # noqa: ASYNC110 - as a user would look
            await asyncio.sleep(0.1)


async def ticks(running: Exec, count: int) -> list[int]:
    """Return the next numbers that the command counts."""
    said = b""
    async with asyncio.timeout(LIMIT):
        while said.count(b"\n") < count:
            item = await running.next_output()
            assert isinstance(item, Output)
            said += item.data
    return [int(word) for word in said[: said.rindex(b"\n")].split()]


async def held_by_a_freeze(host: Host, machine: Machine, disk: Path) -> tuple[Path, bytes]:
    """Have a freeze make a machine write what it has no room for; return what fills the disk, and
    what the machine says of the file that is being written."""
    ballast = fill(disk, leave=24 << 20)
    said = await machine.agent.shell(f"echo 300000 > /proc/sys/vm/dirty_expire_centisecs; {DIRTY}")
    for then in ("run", "stop"):
        with pytest.raises(FreezeError, match="disk is full") as caught:
            await host.freeze(machine, Wanted(then))  # type: ignore[arg-type]
        assert isinstance(caught.value.__cause__, HeldError)
    assert machine.held is not None
    assert list((host.home / "snapshots").iterdir()) == []
    assert [file.name for file in machine.directory.glob("*.qcow2")] == [
        machine.record.top.file_name
    ]
    return ballast, said.stdout


async def test_a_freeze_of_a_machine_that_it_holds_ends_and_leaves_nothing(
    start: Start, small_disk: Path, host: Host
) -> None:
    machine = await host.thaw(start.golden, Identity.of("held"))
    hooks = "/etc/torpor/hooks/before-freeze"
    await machine.agent.write_file(f"{hooks}/10", b"#!/bin/sh\n", mode=0o755, parents=True)
    running = await machine.agent.start(Command(["/bin/sh", "-c", TICKS]))
    await ticks(running, 3)
    ballast, said = await held_by_a_freeze(host, machine, small_disk)

    # What is asked says so; who follows waits.
    files = machine.agent.files
    asked: list[Awaitable[object]] = [
        files.write("/root/new", b"x"),
        files.read("/root/big"),
        files.make_directory("/root/directory"),
        files.unpack("/root"),
        machine.agent.run("/bin/true"),
        machine.agent.dial(80),
    ]
    for each in asked:
        with pytest.raises(HeldError):
            await each
    usage = await machine.statistics()
    assert usage.guest is None

    ballast.unlink()
    await until(lambda: machine.held is None)
    last = (await ticks(running, 3))[-1]
    assert (await ticks(running, 30))[-1] >= last + 30
    assert (await machine.agent.status())["resting"] is False
    assert (await machine.agent.shell("sync; sha256sum /root/big")).stdout == said
    frozen = await host.freeze(machine, Wanted("stop"))
    assert [each.ok for each in frozen.hooks] == [True]
    await host.durable(frozen.manifest.id)
    thawed = await host.thaw(frozen.manifest.id)
    assert (await thawed.agent.shell("sha256sum /root/big")).stdout == said


async def test_a_freeze_whose_hooks_are_held_ends_and_the_next_waits_for_them(
    start: Start, small_disk: Path, host: Host
) -> None:
    machine = await host.thaw(start.golden, Identity.of("held"))
    place = "/etc/torpor/hooks/before-freeze"
    await machine.agent.write_file(f"{place}/10", HOOK, mode=0o755, parents=True)
    wanted = Wanted("run", hooks=HookLimits(each=60, total=120))
    ballast = fill(small_disk, leave=24 << 20)
    with pytest.raises(FreezeError, match="disk is full") as caught:
        await host.freeze(machine, wanted)
    assert isinstance(caught.value.__cause__, HeldError)
    ballast.unlink()
    await until(lambda: machine.held is None)
    frozen = await host.freeze(machine, replace(wanted, id="again"))
    assert [each.ok for each in frozen.hooks] == [True]
    assert [each.ok for each in await machine.agent.hooks()] == [True, True]
    assert await machine.agent.read_file("/root/runs") == b"begun\nended\nbegun\nended\n"
    assert (await machine.agent.status())["resting"] is False


async def test_a_full_disk_holds_the_writer_until_there_is_space(
    start: Start, small_disk: Path, host: Host
) -> None:
    machine = await host.thaw(start.golden, Identity.of("held"))
    ballast = fill(small_disk, leave=24 << 20)
    writing = asyncio.create_task(machine.agent.shell(f"{DIRTY}; sync"))
    await until(lambda: machine.held is not None)
    assert not writing.done()
    ballast.unlink()
    async with asyncio.timeout(LIMIT):
        result = await writing
    assert result.exit.ok
    assert machine.held is None
    await machine.agent.shell("echo 3 > /proc/sys/vm/drop_caches")
    assert (await machine.agent.shell("sha256sum /root/big")).stdout == result.stdout


async def test_a_held_machine_outlives_its_program(
    start: Start, small_disk: Path, place: Place, host: Host
) -> None:
    machine = await host.thaw(start.golden, Identity.of("held"))
    running = await machine.agent.start(Command(["/bin/sh", "-c", TICKS]))
    seen = (await ticks(running, 3))[-1]
    ballast, said = await held_by_a_freeze(host, machine, small_disk)
    fill_up(small_disk)
    again = await place.open()
    (adopted,) = again.machines.values()
    assert (adopted.id, adopted.pid) == (machine.id, machine.pid)
    await until(lambda: adopted.held is not None)
    with pytest.raises(HeldError):
        await adopted.attached()
    for file in (ballast, small_disk / "rest"):
        file.unlink()
    await until(lambda: adopted.held is None)
    async with asyncio.timeout(LIMIT):
        agent = await adopted.attached()
        follows = await agent.attach(running.id, seq=running.received)
    counted = await ticks(follows, 30)
    assert counted[0] <= seen + 1 < counted[-1]
    assert (await agent.status())["resting"] is False
    assert (await agent.shell("sync; sha256sum /root/big")).stdout == said


async def test_the_disk_of_a_machine_that_dies_is_kept_when_there_is_space(
    start: Start, small_disk: Path, host: Host
) -> None:
    machine = await host.thaw(start.golden, Identity.of("dies"))
    await machine.agent.shell("echo kept > /root/file; sync")
    files = [fill(small_disk, leave=8 << 20), fill_up(small_disk)]
    os.kill(machine.pid, signal.SIGKILL)
    await until(lambda: machine.held is not None)
    with pytest.raises(HeldError):
        await machine.agent.run("/bin/true")
    assert machine.running
    for file in files:
        file.unlink()
    async with asyncio.timeout(LIMIT):
        end = await machine.wait_end()
    assert isinstance(end, MachineDiedError)
    assert end.snapshot is not None
    assert any(
        layer.file_name == machine.record.top.file_name
        for layer in host.store.manifest(end.snapshot).disk
    )


async def test_a_host_is_not_opened_that_would_lose_a_disk(
    start: Start, small_disk: Path, place: Place, host: Host
) -> None:
    machine = await host.thaw(start.golden, Identity.of("dies"))
    await machine.agent.shell("echo kept > /root/file; sync")
    await place.close()
    os.kill(machine.pid, signal.SIGKILL)
    files = [fill(small_disk, leave=8 << 20), fill_up(small_disk)]
    with pytest.raises(HostError, match="full") as caught:
        await place.open()
    assert disk_is_full(caught.value)
    for file in files:
        file.unlink()
    (found,) = (await place.open()).recovered
    assert found.outcome == "kept"
    assert found.snapshot is not None
