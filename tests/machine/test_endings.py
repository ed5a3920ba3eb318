"""The end of a machine is noticed at once, and told with its reason."""

import asyncio
import os
import signal

import pytest

from torpor.vm import (
    Command,
    HookLimits,
    Host,
    Machine,
    MachineDiedError,
    VmError,
    Wanted,
    agent,
    freeze,
    hooks,
    qmp,
)

pytestmark = pytest.mark.machine


async def end_of(machine: Machine) -> str:
    async with asyncio.timeout(30):
        return str(await machine.wait_end())


async def test_a_killed_qemu_is_reported_with_the_console(host: Host, machine: Machine) -> None:
    await machine.agent.shell("echo the last words > /dev/console")
    running = await machine.agent.start(Command(["/bin/sleep", "600"]))
    os.kill(machine.pid, signal.SIGKILL)
    with pytest.raises(MachineDiedError, match="the last words") as caught:
        async with asyncio.timeout(30):
            await running.wait()
    assert "died" in caught.value.happened
    assert machine.id not in host.machines
    with pytest.raises(MachineDiedError):
        await machine.agent.run("/bin/true")


async def test_a_power_off_from_inside_is_told_as_such(machine: Machine) -> None:
    await machine.agent.start(Command(["/run/torpor/tools/bin/busybox", "poweroff", "-f"]))
    assert "powered off from inside" in await end_of(machine)


async def test_a_kernel_panic_is_told_with_its_message(machine: Machine) -> None:
    await machine.agent.start(Command(["/bin/sh", "-c", "echo c > /proc/sysrq-trigger"]))
    said = await end_of(machine)
    assert "panicked" in said
    assert "sysrq triggered crash" in said


async def test_a_machine_that_dies_during_a_freeze_leaves_its_files_only(
    host: Host, machine: Machine
) -> None:
    freezing = asyncio.create_task(host.freeze(machine, Wanted("stop")))
    await asyncio.sleep(0.02)
    os.kill(machine.pid, signal.SIGKILL)
    with pytest.raises(VmError):
        await freezing
    await machine.wait_end()
    [kept] = host.store.ids()
    assert [e.name for e in (host.home / "snapshots").iterdir()] == [kept]
    assert host.store.manifest(kept).memory is None
    assert host.store.manifest(kept).labels["torpor.ended"] == "crash"


async def test_a_qemu_that_does_not_answer_is_told_and_not_waited_for(
    host: Host, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qmp, "ANSWER_LIMIT", 1.0)
    monkeypatch.setattr(agent, "ANSWER_LIMIT", 1.0)
    monkeypatch.setattr(agent, "WAKE_LIMIT_MS", 1000)
    monkeypatch.setattr(hooks, "ANSWER_LIMIT", 1.0)
    monkeypatch.setattr(freeze, "QUIESCE_LIMIT_MS", 1000)
    os.kill(machine.pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(60):
            with pytest.raises(VmError, match="did not answer"):
                await host.freeze(machine, Wanted("run", hooks=HookLimits(1.0, 1.0)))
    finally:
        os.kill(machine.pid, signal.SIGCONT)
    assert host.store.ids() == []
    assert (await (await machine.attached()).run("/bin/true")).exit.ok
    frozen = await host.freeze(machine, Wanted("stop"))
    assert host.store.ids() == [frozen.manifest.id]
