"""Bad input gives one clear error and leaves nothing behind."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.machine.conftest import Start, open_host
from tests.machine.small_disks import fill, fill_up
from torpor.images import boot_wanted
from torpor.vm import (
    SIZES,
    Boot,
    FreezeError,
    GuestAgent,
    Host,
    HostError,
    Identity,
    Machine,
    Shape,
    SnapshotError,
    VmError,
    Wanted,
)

pytestmark = pytest.mark.machine


def nothing_is_left(host: Host) -> None:
    assert host.machines == {}
    assert host.processes() == []
    assert list((host.home / "machines").iterdir()) == []
    assert list((host.home / "snapshots").iterdir()) == []
    assert list((host.home / "layers").iterdir()) == []
    assert list((host.home / "bases").iterdir()) == []


async def test_an_unknown_snapshot(host: Host) -> None:
    for unknown in ("nothing", "", ".", "..", "../snapshots", "a\nb"):
        with pytest.raises(SnapshotError, match="no snapshot"):
            await host.thaw(unknown)
    nothing_is_left(host)


async def test_a_size_beyond_the_host(start: Start, host: Host) -> None:
    for shape in (Shape(1, 1 << 19), Shape(2000, 1024), Shape(1, 1)):
        with pytest.raises(HostError, match=r"Nothing was started|not possible"):
            await host.boot(boot_wanted(start.maker, start.image, shape))
    nothing_is_left(host)


async def test_a_kernel_that_does_not_boot(start: Start, host: Host, tmp_path: Path) -> None:
    noise = tmp_path / "noise"
    noise.write_bytes(os.urandom(1 << 20))
    good = boot_wanted(start.maker, start.image, SIZES["mars-1vcpu-1gb"])
    bad = replace(good, boot=Boot(noise, start.maker.parts.initramfs), limits=(5.0, 15.0))
    with pytest.raises(VmError):
        await host.boot(bad)
    nothing_is_left(host)


async def test_a_kernel_that_panics_is_shown(start: Start, host: Host, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    good = boot_wanted(start.maker, start.image, SIZES["mars-1vcpu-1gb"])
    bad = replace(
        good, boot=Boot(start.maker.parts.kernel, start.maker.parts.kernel), limits=(60.0,)
    )
    with pytest.raises(VmError, match="panic"):
        await host.boot(bad)
    nothing_is_left(host)


async def test_two_programs_cannot_open_one_home(start: Start, home: Path, host: Host) -> None:
    with pytest.raises(HostError, match=f"process {os.getpid()}"):
        await open_host(start, home)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
async def test_a_full_disk_at_a_freeze(start: Start, small_disk: Path) -> None:
    host = await open_host(start, small_disk / "home")
    try:
        machine = await host.thaw(start.golden, Identity.of("full"))
        await machine.agent.shell(
            "echo before > /root/file; head -c 20000000 /dev/urandom > /dev/shm/much; sync"
        )
        ballast = fill(small_disk, leave=8 << 20)
        before = sorted(p.name for p in (small_disk / "home").rglob("*") if p.is_file())
        for wanted in (Wanted("stop", "delta"), Wanted("run", "delta"), Wanted("run", "base")):
            with pytest.raises(FreezeError, match="No space left"):
                await host.freeze(machine, wanted)
            assert (await machine.agent.run("/bin/true")).exit.ok
        after = sorted(p.name for p in (small_disk / "home").rglob("*") if p.is_file())
        assert after == before
        rest = fill_up(small_disk)
        with pytest.raises(HostError, match="No space left"):
            await host.thaw(start.golden, Identity.of("none"))
        assert list(host.machines) == [machine.id]
        assert host.processes() == [machine.pid]
        for file in (ballast, rest):
            file.unlink()
        frozen = await host.freeze(machine, Wanted("stop", "delta"))
        await host.durable(frozen.manifest.id)
        thawed = await host.thaw(frozen.manifest.id)
        assert await thawed.agent.read_file("/root/file") == b"before\n"
        await host.end(thawed)
    finally:
        for left in list(host.machines.values()):
            await host.end(left)
        await host.close()


async def test_a_freeze_of_an_ended_machine(host: Host, machine: Machine) -> None:
    await host.end(machine)
    with pytest.raises(VmError, match="ended"):
        await host.freeze(machine, Wanted("stop"))
    nothing_is_left(host)


@pytest.mark.parametrize("count", [-1, 0, 65])
async def test_a_number_of_children_that_is_none(host: Host, machine: Machine, count: int) -> None:
    with pytest.raises(HostError, match="1 to 64"):
        await host.fork(machine, count)
    assert host.store.ids() == []
    assert (await machine.agent.run("/bin/true")).exit.ok


async def test_a_boot_that_hangs_is_tried_again(
    start: Start, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that says nothing is ended, and the next one is given more time."""
    tried: list[int] = []
    attach = Machine.attach

    async def hanging(machine: Machine, limit: float) -> GuestAgent:
        tried.append(machine.pid)
        if len(tried) == 1:
            os.kill(machine.pid, signal.SIGSTOP)
        return await attach(machine, limit)

    monkeypatch.setattr(Machine, "attach", hanging)
    wanted = boot_wanted(start.maker, start.image, SIZES["mars-2vcpu-1gb"])
    machine = await host.boot(replace(wanted, limits=(2.0, 120.0)))
    assert (await machine.agent.run("/bin/true")).exit.ok
    assert len(tried) == 2
    assert host.processes() == [machine.pid]
