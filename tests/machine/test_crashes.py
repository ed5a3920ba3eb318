"""The program is killed at random moments, and nothing that it had said was done is lost."""

import shutil
from pathlib import Path

import pytest

from tests.machine.conftest import Start, open_host
from torpor.lab.kills import kills
from torpor.vm import Identity, Wanted
from torpor.vm.launch import MONITOR

pytestmark = pytest.mark.machine

REBOOT_KILLS = 5
DISK_KILLS = 12
KILLS = 30
"""In ``./dev soak``: 200."""


async def test_killed_at_random_moments_it_loses_nothing(start: Start, home: Path) -> None:
    faults = [c.seen async for c in kills(start.maker, home, KILLS, seed=2) if not c.ok]
    assert faults == []


async def test_killed_in_the_middle_of_reboots_it_loses_no_machine(
    start: Start, home: Path
) -> None:
    made = kills(start.maker, home, REBOOT_KILLS, seed=3, what="reboots")
    assert [check.seen async for check in made if not check.ok] == []


async def test_killed_while_a_disk_is_given_and_taken_it_loses_nothing_of_it(
    start: Start, home: Path
) -> None:
    made = kills(start.maker, home, DISK_KILLS, seed=4, what="disks")
    assert [check.seen async for check in made if not check.ok] == []


async def test_a_running_machine_is_adopted_by_the_next_program(start: Start, home: Path) -> None:
    host = await open_host(start, home)
    machine = await host.thaw(start.golden, Identity.of("kept"))
    await machine.agent.shell("echo kept > /root/file")
    await host.close()
    again = await open_host(start, home)
    try:
        assert [(r.machine, r.outcome) for r in again.recovered] == [(machine.id, "adopted")]
        adopted = again.machines[machine.id]
        assert adopted.pid == machine.pid
        assert await adopted.agent.read_file("/root/file") == b"kept\n"
        frozen = await again.freeze(adopted, Wanted("stop"))
        thawed = await again.thaw(frozen.manifest.id)
        assert await thawed.agent.read_file("/root/file") == b"kept\n"
        await again.end(thawed)
    finally:
        await again.close()


async def test_checkpoints_of_one_program_after_the_other_leave_the_disk_whole(
    start: Start, home: Path
) -> None:
    """A layer that comes over another one takes parts of clusters from it: from its file, and not
    from one that another program has handed over since."""
    machine = ""
    for _ in range(3):
        host = await open_host(start, home)
        if not machine:
            machine = (await host.thaw(start.golden, Identity.of("kept"))).id
        for _ in range(4):
            await (await host.machines[machine].attached()).shell("echo x >> /root/lines; sync")
        await host.freeze(host.machines[machine], Wanted("run"))
        await host.close()
    host = await open_host(start, home)
    try:
        await host.end(host.machines[machine])
        booted = await host.boot_files(host.store.ids()[-1], start.maker.kernel)
        assert await booted.agent.read_file("/root/lines") == 12 * b"x\n"
        assert b"error" not in (await booted.agent.shell("dmesg | grep -i ext4")).stdout
    finally:
        for left in list(host.machines.values()):
            await host.end(left)
        await host.close()


async def test_a_machine_left_stopped_and_resting_is_set_going_again(
    start: Start, home: Path
) -> None:
    host = await open_host(start, home)
    machine = await host.thaw(start.golden, Identity.of("left"))
    await machine.agent.shell("(while :; do date >> /root/beat; sleep 0.1; done) >/dev/null 2>&1 &")
    await machine.agent.quiesce(5000)
    await machine.qmp.stop()
    await host.close()
    again = await open_host(start, home)
    try:
        adopted = again.machines[machine.id]
        before = await adopted.agent.read_file("/root/beat")
        await adopted.agent.shell("sleep 0.5")
        assert len(await adopted.agent.read_file("/root/beat")) > len(before)
        await again.end(adopted)
    finally:
        await again.close()


async def test_a_copy_of_a_home_leaves_the_machines_of_the_first_alone(
    start: Start, home: Path
) -> None:
    host = await open_host(start, home / "first")
    machine = await host.thaw(start.golden, Identity.of("first"))
    try:
        shutil.copytree(home / "first" / "machines", home / "copy" / "machines", ignore=_no_files)
        shutil.copy2(home / "first" / "host.id", home / "copy" / "host.id")
        copy = await open_host(start, home / "copy")
        try:
            assert [each.outcome for each in copy.recovered] == ["removed"]
            assert copy.machines == {}
            assert copy.processes() == []
        finally:
            await copy.close()
        assert machine.running
        assert (await machine.agent.run("/bin/true")).exit.ok
    finally:
        await host.end(machine)
        await host.close()


def _no_files(directory: str, names: list[str]) -> list[str]:
    """Sockets and pipes, which cannot be copied."""
    paths = {name: Path(directory) / name for name in names}
    return [name for name, path in paths.items() if not path.is_file() and not path.is_dir()]


async def test_a_freeze_cut_off_after_its_layer_was_put_away_can_be_made_again(
    start: Start, home: Path
) -> None:
    """The machine runs on with the layer that the store has by now; nothing stands in the way."""
    host = await open_host(start, home)
    try:
        machine = await host.thaw(start.golden, Identity.of("again"))
        for then in ("run", "stop"):
            await machine.agent.shell("date >> /root/file; sync")
            top = machine.record.top.file_name
            host.store.put(machine.directory / top, f"layers/{top}")
            frozen = await host.freeze(machine, Wanted(then))
            assert frozen.manifest.disk[-1].file_name == top
        thawed = await host.thaw(host.store.ids()[-1])
        assert len((await thawed.agent.read_file("/root/file")).splitlines()) == 2
        await host.end(thawed)
    finally:
        await host.close()


async def test_a_machine_that_cannot_be_reached_any_more_leaves_its_disk(
    start: Start, home: Path
) -> None:
    host = await open_host(start, home)
    machine = await host.thaw(start.golden, Identity.of("cut-off"))
    await machine.agent.shell("echo kept > /root/file; sync")
    directory, process = machine.directory, machine.record.process
    assert process is not None
    await host.close()
    (directory / MONITOR).unlink()
    again = await open_host(start, home)
    try:
        found = again.recovered[0]
        assert (found.machine, found.outcome) == (machine.id, "kept")
        assert "could not be adopted" in found.why
        assert not process.alive()  # a zombie until this program, whose child it is, looks
        assert not directory.exists()
        assert found.snapshot is not None
        booted = await again.boot_files(found.snapshot, start.maker.kernel)
        assert await booted.agent.read_file("/root/file") == b"kept\n"
        await again.end(booted)
    finally:
        await again.close()
