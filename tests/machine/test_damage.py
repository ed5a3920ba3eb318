"""A damaged snapshot is refused with what is wrong, and harms nothing else."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from torpor.vm import Host, Machine, SnapshotError, Wanted

pytestmark = pytest.mark.machine


def truncate(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size // 2)


def flip_a_bit(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size // 3)
        byte = opened.read(1)[0]
        opened.seek(-1, 1)
        opened.write(bytes([byte ^ 4]))


def remove(file: Path) -> None:
    file.unlink()


def of_another_version(file: Path) -> None:
    content = json.loads(file.read_text())
    content["version"] = 99
    file.write_text(json.dumps(content))


async def test_each_damage_to_each_file_is_refused(host: Host, machine: Machine) -> None:
    await machine.agent.shell("echo here > /root/file")
    good = (await host.freeze(machine, Wanted("run", "base"))).manifest
    bad = (await host.freeze(machine, Wanted("stop"))).manifest
    for snapshot in (good.id, bad.id):
        await host.durable(snapshot)
    directory = host.home / "snapshots" / bad.id
    own = [host.home / "layers" / bad.disk[-1].file_name]
    files = [*directory.iterdir(), *own]
    assert {file.name for file in files} >= {"manifest.json", "devices", "memory.delta"}
    damages: list[tuple[Path, Callable[[Path], None]]] = [
        (file, damage) for file in files for damage in (truncate, flip_a_bit, remove)
    ]
    # Without its sums a snapshot counts as not yet durable, which is no damage.
    damages = [(f, d) for f, d in damages if (f.name, d) != ("sums.json", remove)]
    damages.append((directory / "manifest.json", of_another_version))
    for file, damage in damages:
        kept = host.home / "kept"
        shutil.copy2(file, kept)
        damage(file)
        with pytest.raises(SnapshotError) as caught:
            await host.thaw(bad.id)
        assert bad.id in str(caught.value) or file.name in str(caught.value), (file, damage)
        assert host.machines == {}
        assert host.processes() == []
        kept.replace(file)
    thawed = await host.thaw(good.id)
    assert await thawed.agent.read_file("/root/file") == b"here\n"
    await host.end(thawed)
    thawed = await host.thaw(bad.id)
    assert await thawed.agent.read_file("/root/file") == b"here\n"


async def test_a_damaged_base_is_refused_too(host: Host, machine: Machine) -> None:
    made = (await host.freeze(machine, Wanted("stop", "base"))).manifest
    await host.durable(made.id)
    assert made.memory is not None
    base = host.home / "bases" / f"{made.memory.base}.mem"
    base.chmod(0o600)
    with base.open("r+b") as opened:
        opened.seek(64 << 20)
        opened.write(b"?")
    with pytest.raises(SnapshotError, match=made.memory.base):
        await host.thaw(made.id)
    assert host.processes() == []
