"""Snapshots that leave their home: to another one, with the counter going on, and for good."""

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.machine.conftest import Start, open_host
from torpor.vm import Command, Host, Identity, Machine, Wanted
from torpor.vm.keeping import erase_from, export_from, import_into

pytestmark = pytest.mark.machine

COUNTER = "n=0; while :; do n=$((n + 1)); echo $n $$ >>/root/log; sleep 0.1; done"
SECRET = "a-password-" + "that-nobody-is-to-find-again"


async def counted(machine: Machine) -> list[str]:
    """The last line of the counter's log: the number and the process."""
    return (await machine.agent.shell("tail -n 1 /root/log")).stdout.decode().split()


async def test_exported_deleted_and_imported_elsewhere_the_counter_goes_on(
    start: Start, home: Path
) -> None:
    """Also where there is no golden snapshot to fall back on: the file has all that it needs."""
    first = await open_host(start, home / "first")
    machine = await first.thaw(start.golden, Identity.of("traveller"))
    await machine.agent.start(Command(("/bin/sh", "-c", COUNTER)))
    await machine.agent.shell("until test -s /root/log; do sleep 0.1; done")
    made = (await first.freeze(machine, Wanted("stop"))).manifest
    told = await export_from(first, made.id, home / "file")
    assert told.left_out == ()
    await first.remove(made.id)
    assert first.store.ids() == []
    await first.close()
    shutil.rmtree(home / "first")

    maker = start.maker
    second = await Host.open(home / "second", maker.accelerator, maker.jail, links=maker.links(0))
    try:
        with open(home / "file", "rb") as file:
            arrived = await import_into(second, file)
        assert arrived.manifest.id == made.id
        assert second.store.durable(made.id)
        thawed = await second.thaw(made.id)
        before = await counted(thawed)
        await asyncio.sleep(0.5)
        after = await counted(thawed)
        assert int(after[0]) > int(before[0]) > 0
        assert after[1] == before[1], "the same process"
        lines = (await thawed.agent.read_file("/root/log")).decode().splitlines()
        assert [int(line.split()[0]) for line in lines] == list(range(1, len(lines) + 1))
        await second.end(thawed)
    finally:
        for left in list(second.machines.values()):
            await second.end(left)
        await second.close()


async def test_without_what_golden_snapshots_have_it_is_small(start: Start, home: Path) -> None:
    host = await open_host(start, home / "first")
    other = await open_host(start, home / "second")
    try:
        machine = await host.thaw(start.golden, Identity.of("small"))
        await machine.agent.shell("echo here > /root/file")
        made = (await host.freeze(machine, Wanted("stop"))).manifest
        whole = await export_from(host, made.id, home / "whole")
        small = await export_from(host, made.id, home / "small", shared=False)
        assert len(small.left_out) >= 3, "base, image and tools"
        assert small.size < whole.size / 3
        with open(home / "small", "rb") as file:
            arrived = await import_into(other, file)
        assert set(small.left_out) <= set(arrived.shared)
        thawed = await other.thaw(arrived.manifest.id)
        assert await thawed.agent.read_file("/root/file") == b"here\n"
        # It maps the very base that machines of the golden snapshot map.
        memory = start.maker.store().manifest(start.golden).memory
        assert memory is not None
        assert arrived.manifest.memory is not None
        golden = start.maker.store().base(memory.base).stat()
        base = other.store.base(arrived.manifest.memory.base).stat()
        assert base.st_ino == golden.st_ino or base.st_dev != golden.st_dev
        await other.end(thawed)
    finally:
        for each in (host, other):
            for left in list(each.machines.values()):
                await each.end(left)
            await each.close()


def holding(root: Path, secret: bytes) -> list[str]:
    """The files below a directory in which the bytes are."""
    found = []
    for file in root.rglob("*"):
        if file.is_file() and not file.is_symlink():
            tail = b""
            with open(file, "rb") as opened:
                while piece := opened.read(1 << 24):
                    if secret in tail + piece:
                        found.append(str(file.relative_to(root)))
                        break
                    tail = piece[-len(secret) :]
    return found


async def test_a_secret_in_memory_and_on_disk_is_nowhere_after_erasure(
    start: Start, host: Host, machine: Machine, home: Path
) -> None:
    secret = SECRET.encode()
    hold = f"import time; x = bytearray(b'{SECRET}'); open('/root/ready', 'w').close();"
    await machine.agent.start(Command(("/usr/bin/python3", "-c", f"{hold} time.sleep(9999)")))
    await machine.agent.shell(f"printf %s {SECRET} > /root/secret; sync; "
                              "until test -e /root/ready; do sleep 0.1; done")  # fmt: skip
    kept = (await host.freeze(machine, Wanted("run", "base"))).manifest
    made = (await host.freeze(machine, Wanted("stop"))).manifest
    for snapshot in (kept.id, made.id):
        await host.durable(snapshot)
    assert holding(home / "bases", secret), "it is in memory"
    assert holding(home / "layers", secret), "and on the disk"

    report = await erase_from(host, kept.id)
    assert not report.complete, "the other one came from the same machine and shares its disk"
    shared = {file.name for file in report.files if file.what == "kept"}
    left = set(holding(home, secret))
    assert any(name.startswith("layers/") and name.endswith(".qcow2") for name in shared & left)
    assert left <= shared | {f"snapshots/{made.id}/memory.delta"} | {
        f"layers/{layer.file_name}" for layer in made.disk
    }

    last = await erase_from(host, made.id)
    assert last.complete
    assert holding(home, secret) == []
    assert host.store.ids() == []
