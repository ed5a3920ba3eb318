"""A machine that is rebooted from inside goes on from its disk; one that ends leaves its disk."""

import asyncio
import os
import signal
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.machine.conftest import Start, open_host
from torpor.vm import (
    Command,
    Host,
    Identity,
    Machine,
    MachineDiedError,
    RebootedError,
    VmError,
    Wanted,
    aftermath,
)

pytestmark = pytest.mark.machine

BUSYBOX = "/run/torpor/tools/bin/busybox"
LIMIT = 400.0
"""Seconds after which a test gives up on a busy host."""
WRITE = "echo kept > /root/file"


async def reboot(machine: Machine, *argv: str) -> None:
    """Ask for a reboot from inside, and wait until the machine runs again."""
    again = asyncio.Event()
    machine.on_reboot(lambda _machine: again.set())
    await machine.agent.start(Command(argv or (BUSYBOX, "reboot")))
    async with asyncio.timeout(LIMIT):
        await again.wait()


async def until(true: Callable[[], bool]) -> None:
    """Wait for something that nobody tells."""
    async with asyncio.timeout(LIMIT):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def end_of(machine: Machine) -> MachineDiedError:
    async with asyncio.timeout(LIMIT):
        end = await machine.wait_end()
    assert isinstance(end, MachineDiedError)
    return end


async def files_of(host: Host, start: Start, snapshot: str | None) -> bytes:
    """Boot a files-only snapshot and return what is in the file that was written."""
    assert snapshot is not None
    assert host.store.manifest(snapshot).memory is None
    booted = await host.boot_files(snapshot, start.maker.kernel)
    try:
        return await booted.agent.read_file("/root/file")
    finally:
        await host.end(booted)


async def test_a_reboot_goes_on_from_the_disk_as_the_same_machine(
    host: Host, machine: Machine
) -> None:
    record, before = machine.record, machine.agent.welcome.boot_id
    await machine.agent.shell(f"{WRITE}; (trap '' TERM; exec sleep 600) >/dev/null 2>&1 &")
    followed = await machine.agent.start(Command(["/bin/sleep", "600"]))
    await reboot(machine)
    with pytest.raises(RebootedError, match="its commands ended with it"):
        await followed.wait()
    assert host.machines[machine.id] is machine
    assert machine.running
    assert machine.boots == 1
    assert machine.agent.welcome.boot_id != before
    assert (machine.record.uid, machine.record.top) == (record.uid, record.top)
    assert machine.record.process != record.process
    agent = await machine.attached()
    assert await agent.read_file("/root/file") == b"kept\n"
    assert (await agent.run("/bin/hostname")).stdout == b"test\n"
    # Its programs had been ended and its disk was unmounted: nothing had to be repaired.
    said = (await agent.run(BUSYBOX, "dmesg")).stdout.decode()
    assert [line for line in said.splitlines() if "vda): recover" in line] == []
    frozen = await host.freeze(machine, Wanted("stop"))
    thawed = await host.thaw(frozen.manifest.id)
    assert await thawed.agent.read_file("/root/file") == b"kept\n"


async def test_a_reboot_in_the_middle_of_a_freeze_fails_the_freeze_only(
    host: Host, machine: Machine
) -> None:
    await machine.agent.shell(
        "mkdir -p /etc/torpor/hooks/before-freeze && cd /etc/torpor/hooks/before-freeze &&"
        f" printf '#!/bin/sh\\nexec {BUSYBOX} reboot -f\\n' > reboot && chmod +x reboot"
    )
    await machine.agent.shell("sync")
    with pytest.raises(RebootedError):
        await host.freeze(machine, Wanted("run"))
    agent = await machine.attached()  # waits for the boot
    await agent.run("/bin/rm", "/etc/torpor/hooks/before-freeze/reboot")
    assert host.store.ids() == []
    frozen = await host.freeze(machine, Wanted("stop"))
    assert host.store.ids() == [frozen.manifest.id]


async def test_too_many_reboots_end_the_machine_and_keep_its_disk(
    host: Host, machine: Machine, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aftermath, "REBOOTS", 1)
    host._aftermath._rebooted.default_factory = lambda: aftermath.deque(maxlen=1)
    await machine.agent.shell(WRITE)
    await reboot(machine)
    await machine.agent.start(Command([BUSYBOX, "reboot"]))
    end = await end_of(machine)
    assert "was rebooted from inside" in str(end)
    assert "rebooted 1 times within 60 s before that" in str(end)
    assert end.cause == "reboot"
    assert await files_of(host, start, end.snapshot) == b"kept\n"


@pytest.mark.parametrize("how", ["poweroff", "halt"])
async def test_a_power_off_keeps_what_was_written(
    host: Host, machine: Machine, start: Start, how: str
) -> None:
    await machine.agent.shell(WRITE)  # nothing syncs it but the power-off
    await machine.agent.start(Command([BUSYBOX, how]))
    end = await end_of(machine)
    assert end.cause == "power-off"
    assert "powered off from inside" in str(end)
    assert f"kept as snapshot {end.snapshot} (files only)" in str(end)
    assert machine.id not in host.machines
    assert not machine.directory.exists()
    await host.durable(str(end.snapshot))
    assert await files_of(host, start, end.snapshot) == b"kept\n"


@pytest.mark.parametrize(("key", "cause"), [("o", "power-off"), ("c", "panic")])
async def test_the_magic_key_does_what_it_says(machine: Machine, key: str, cause: str) -> None:
    # What is on the console from before does not count.
    await machine.agent.shell("echo 'Kernel panic - not syncing: no' > /dev/console")
    await machine.agent.start(Command(["/bin/sh", "-c", f"echo {key} > /proc/sysrq-trigger"]))
    assert (await end_of(machine)).cause == cause


async def test_a_reset_by_the_magic_key_is_a_reboot(machine: Machine) -> None:
    await machine.agent.shell("echo 'Kernel panic - not syncing: no' > /dev/console; sync")
    await reboot(machine, "/bin/sh", "-c", "echo b > /proc/sysrq-trigger")
    assert machine.boots == 1


async def test_init_takes_no_signal_but_those_for_its_end(machine: Machine) -> None:
    # PID 1 takes no signal that it has no handler for, not even this one.
    await machine.agent.shell("kill -9 1; kill -SEGV 1")
    assert (await machine.agent.run("/bin/true")).exit.ok
    await reboot(machine, "/bin/sh", "-c", "kill -TERM 1")
    assert machine.boots == 1


async def test_programs_of_other_inits_find_ours(machine: Machine) -> None:
    """What systemd's and sysvinit's ``reboot`` write to /run/initctl, byte by byte."""
    record = struct.pack("<iii372x", 0x03091969, 1, ord("6"))
    text = "".join(f"\\x{byte:02x}" for byte in record)
    await reboot(machine, "/bin/bash", "-c", f"printf '{text}' > /run/initctl")
    assert machine.boots == 1


async def test_a_killed_qemu_leaves_what_was_synced(
    host: Host, machine: Machine, start: Start
) -> None:
    await machine.agent.shell(f"{WRITE}; sync")
    os.kill(machine.pid, signal.SIGKILL)
    end = await end_of(machine)
    assert end.cause == "crash"
    assert await files_of(host, start, end.snapshot) == b"kept\n"


async def test_a_host_without_the_kernel_says_so_and_keeps_the_disk(
    start: Start, home: Path
) -> None:
    made = start.maker
    host = await Host.open(
        home, made.accelerator, made.jail, golden=made.store(), links=made.links(0)
    )
    try:
        machine = await host.thaw(start.golden, Identity.of("test"))
        await machine.agent.shell(WRITE)
        await machine.agent.start(Command([BUSYBOX, "reboot"]))
        end = await end_of(machine)
        assert "there is no kernel" in str(end)
        assert await files_of(host, start, end.snapshot) == b"kept\n"
    finally:
        await host.close()


@pytest.mark.parametrize("how", ["reboot", "poweroff"])
async def test_what_happened_while_no_program_was_there_is_found_out(
    start: Start, home: Path, how: str
) -> None:
    host = await open_host(start, home)
    machine = await host.thaw(start.golden, Identity.of("test"))
    process = machine.record.process
    assert process is not None
    command = f"{WRITE}; (sleep 1; exec {BUSYBOX} {how}) >/dev/null 2>&1 &"
    await machine.agent.shell(command)
    await host.close()
    await until(lambda: not process.alive())
    again = await open_host(start, home)
    try:
        [found] = again.recovered
        if how == "reboot":
            assert found.outcome == "rebooted"
            adopted = again.machines[machine.id]
            assert adopted.boots == 1
            assert await adopted.agent.read_file("/root/file") == b"kept\n"
            await again.end(adopted)
        else:
            assert found.outcome == "kept"
            assert "powered off from inside" in found.why
            assert await files_of(again, start, found.snapshot) == b"kept\n"
    finally:
        await again.close()


async def test_a_program_that_ends_in_the_middle_of_a_reboot_leaves_it_to_the_next(
    start: Start, home: Path
) -> None:
    host = await open_host(start, home)
    machine = await host.thaw(start.golden, Identity.of("test"))
    process = machine.record.process
    await machine.agent.shell(WRITE)
    await machine.agent.start(Command([BUSYBOX, "reboot"]))
    await until(lambda: machine.record.rebooting and machine.record.process not in (None, process))
    await host.close()
    assert host.processes() == []
    again = await open_host(start, home)
    try:
        assert [each.outcome for each in again.recovered] == ["rebooted"]
        adopted = again.machines[machine.id]
        assert await adopted.agent.read_file("/root/file") == b"kept\n"
        assert not adopted.record.rebooting
        await again.end(adopted)
        assert again.processes() == []
    finally:
        await again.close()


async def test_a_machine_that_is_ended_while_it_reboots_is_gone(
    host: Host, machine: Machine
) -> None:
    await machine.agent.start(Command([BUSYBOX, "reboot", "-f"]))
    await until(lambda: machine.record.rebooting)
    await host.end(machine)
    assert host.processes() == []
    assert host.machines == {}
    assert host.store.ids() == []
    with pytest.raises(VmError, match="was ended"):
        await machine.attached()
