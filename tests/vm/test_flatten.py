"""Merged layers say exactly what the layers that they replace said."""

import asyncio
import json
import random
import subprocess
from pathlib import Path

import pytest

from torpor.vm.disk import create_layer
from torpor.vm.flatten import DEPTH, Extent, merge, mergeable, subtract

MIB = 1 << 20
SIZE = 16 * MIB


def node(layers: list[Path], bottom: Path) -> str:
    chain: dict[str, object] = {
        "driver": "raw",
        "file": {"driver": "file", "filename": str(bottom)},
    }
    for layer in layers:
        file = {"driver": "file", "filename": str(layer)}
        chain = {"driver": "qcow2", "file": file, "backing": chain}
    return "json:" + json.dumps(chain)


def content(layers: list[Path], bottom: Path, into: Path) -> bytes:
    command = ["qemu-img", "convert", "-O", "raw", node(layers, bottom), into]
    subprocess.run(command, check=True)
    return into.read_bytes()


def write(layer: Path, below: list[Path], bottom: Path, commands: list[str]) -> None:
    subprocess.run(
        ["qemu-io", node([*below, layer], bottom)],
        input="\n".join(commands) + "\n",
        text=True,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def some_commands(chance: random.Random) -> list[str]:
    commands = []
    for _ in range(chance.randrange(1, 12)):
        length = chance.choice((4096, 65536, 200704, MIB))
        start = chance.randrange(0, SIZE - length, 4096)
        verb = chance.choice(
            (f"write -P {chance.randrange(1, 256)}", "write -P 0", "write -z", "write -z -u")
        )
        commands.append(f"{verb} {start} {length}")
    commands.append(f"discard 0 {65536 * chance.randrange(1, 8)}")
    return commands


@pytest.mark.parametrize("seed", range(6))
async def test_a_chain_reads_the_same_with_its_top_layers_merged(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    bottom = tmp_path / "bottom.raw"
    bottom.write_bytes(chance.randbytes(SIZE))
    layers: list[Path] = []
    for number in range(5):
        layer = tmp_path / f"{number}.qcow2"
        await create_layer(layer, SIZE)
        await asyncio.to_thread(write, layer, layers, bottom, some_commands(chance))
        layers.append(layer)
    before = content(layers, bottom, tmp_path / "before")
    sums = [layer.read_bytes() for layer in layers]
    for count in (5, 3, 2):
        merged = tmp_path / f"merged-{count}.qcow2"
        await merge(layers[-count:], merged)
        after = content([*layers[:-count], merged], bottom, tmp_path / "after")
        assert after == before, f"the top {count} layers"
        await asyncio.to_thread(subprocess.run, ["qemu-img", "check", "-q", merged], check=True)
    assert [layer.read_bytes() for layer in layers] == sums


def test_extents_are_subtracted() -> None:
    wanted = [Extent(0, 10), Extent(20, 30), Extent(30, 40)]
    present = [Extent(2, 4), Extent(8, 22), Extent(25, 35), Extent(38, 50)]
    left = [Extent(0, 2), Extent(4, 8), Extent(22, 25), Extent(35, 38)]
    assert list(subtract(wanted, present)) == left
    assert list(subtract(wanted, [])) == wanted
    assert list(subtract([], present)) == []


def test_a_chain_stays_short_however_long_it_lives() -> None:
    chance = random.Random(1)
    sizes: list[int] = []
    copied = added = 0
    for _ in range(1000):
        new = chance.choice((1, 1, 2, 100))
        added += new
        sizes.append(new)
        count = mergeable(sizes)
        if count:
            merged = sum(sizes[-count:])
            copied += merged
            sizes[-count:] = [merged]
        assert len(sizes) <= DEPTH + 1
    assert copied < 12 * added
