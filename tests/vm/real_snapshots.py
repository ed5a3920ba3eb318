"""Snapshots of no machine whose files are in the real formats: what export and import check."""

import random
import struct
import subprocess
import zlib
from dataclasses import replace
from pathlib import Path

from torpor.vm.accelerator import host_boot_id
from torpor.vm.base import create_base
from torpor.vm.disk import Layer
from torpor.vm.manifest import (
    DELTA,
    DEVICES,
    GuestVersions,
    KeptDisk,
    Manifest,
    Memory,
    version_with,
)
from torpor.vm.shape import MIB, Shape
from torpor.vm.store import Store

SHAPE = Shape(1, 32)
DISK = 16 * MIB
PAGE = 4096


def a_manifest() -> Manifest:
    """A manifest with something in each field."""
    root, top = Layer("r" * 16, "raw", 1 << 20), Layer("t" * 16, "qcow2", 1 << 20)
    return Manifest(
        version=1,
        id="snapshot-1",
        created_at="2026-03-01T08:05:42.000+00:00",
        parent="snapshot-0",
        generation=3,
        shape=Shape(2, 64),
        accelerator="tcg",
        qemu_version=(7, 2, 0),
        cpu="qemu-max",
        guest=GuestVersions("6.1.0", "d" * 8),
        guest_boot_id="11111111-2222-3333-4444-555555555555",
        host_boot_id=host_boot_id(),
        memory=Memory("base-1", delta=True),
        disk=(root, top),
        tools=Layer("tools-1", "raw", 4096),
        sizes={"devices": 10},
        stored_bytes=20,
        allocated_bytes=30,
        labels={"image": "default"},
    )


def write_base(file: Path, seed: int, count: int = 60) -> None:
    """A base with ``count`` scattered pages of noise, and one of 5 MiB in a row."""
    chance = random.Random(seed)
    create_base(file, SHAPE.memory_bytes)
    with open(file, "r+b") as opened:
        for _ in range(count):
            opened.seek(chance.randrange(SHAPE.memory_bytes // PAGE) * PAGE)
            opened.write(chance.randbytes(PAGE))
        opened.seek(8 * MIB)
        opened.write(chance.randbytes(5 * MIB))


def delta_of(pages: dict[int, bytes], memory_bytes: int = SHAPE.memory_bytes) -> bytes:
    """A delta that holds these pages."""
    entries = b"".join(struct.pack("<QII", page, 1, 0) for page in sorted(pages))
    offset = PAGE * (1 + len(pages))
    head = struct.pack("<8sIIQQQ20x", b"TORPORMD", 1, PAGE, memory_bytes, offset, len(pages))
    head += struct.pack("<I", zlib.crc32(head))
    content = b"".join(pages[page] for page in sorted(pages))
    return head.ljust(PAGE, b"\0") + content + entries + struct.pack("<I", zlib.crc32(entries))


def write_layer(file: Path, seed: int, size: int = DISK) -> None:
    """A qcow2 layer with some noise, some zeros and much nothing."""
    chance = random.Random(seed)
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", file, str(size)], check=True)
    places = (chance.randrange(0, size - 65536, 65536) for _ in range(6))
    lines = [f"write -q -P {chance.randrange(1, 256)} {place} 65536" for place in places]
    lines.append("write -q -z 131072 65536")
    command = ["qemu-io", "-f", "qcow2", str(file)]
    text = "\n".join(lines) + "\n"
    subprocess.run(command, input=text, text=True, check=True, stdout=subprocess.DEVNULL)


def make_snapshot(
    store: Store,
    template: Manifest,
    name: str,
    *,
    base: str = "base",
    layers: tuple[str, ...] = ("first", "second"),
    delta: bool = True,
    parent: str | None = None,
    durable: bool = True,
    disks: tuple[KeptDisk, ...] = (),
) -> Manifest:
    """A durable snapshot with memory; bases and layers of the same names are shared. The layers of
    ``disks`` are there already."""
    root, tools = Layer("root", "raw", DISK), Layer("tools", "raw", 256 * 1024)
    for layer in (root, tools):
        file = store.root / "layers" / layer.file_name
        if not file.exists():
            with open(file, "wb") as new:
                new.truncate(layer.size)
                new.seek(65536)
                new.write(f"the file system of {layer.id}".encode() * 500)
    chain = tuple(Layer(each, "qcow2", DISK) for each in layers)
    for layer in chain:
        if not (store.root / "layers" / layer.file_name).exists():
            write_layer(store.root / "layers" / layer.file_name, zlib.crc32(layer.id.encode()))
    file = store.root / "bases" / f"{base}.mem"
    if not file.exists():
        write_base(file, zlib.crc32(base.encode()))
    partial = store.begin(name)
    (partial / DEVICES).write_bytes(random.Random(name).randbytes(15000))
    if delta:
        chance = random.Random(name)
        pages = {chance.randrange(SHAPE.memory_bytes // PAGE): chance.randbytes(PAGE)
                 for _ in range(300)}  # fmt: skip
        (partial / DELTA).write_bytes(delta_of(pages))
    sizes = {each.name: each.stat().st_size for each in partial.iterdir()}
    if chain:
        top = f"layers/{chain[-1].file_name}"
        sizes[top] = (store.root / top).stat().st_size
    made = replace(
        template,
        id=name,
        parent=parent,
        shape=SHAPE,
        memory=Memory(base, delta),
        disk=(root, *chain),
        tools=tools,
        sizes=sizes,
        version=version_with(disks, card=False),
        disks=disks,
    )
    store.commit(partial, made, {})
    if durable:
        store.make_durable(name)
    return made


def tree(root: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below a directory: mode and content, but for imports under way."""
    return {
        str(path.relative_to(root)): (path.stat().st_mode, path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.relative_to(root).parts[0] != "imports"
    }


def allocated(path: Path) -> int:
    """The bytes that a file takes."""
    return path.stat().st_blocks * 512
