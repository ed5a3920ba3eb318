"""Merging disk layers: several neighbours of a chain become one, beside them.

No layer is ever written in place (``qemu-img commit`` and ``rebase`` would): others may be using
it. The merged layer must say of every cluster what the old ones together said: these data, these
zeros, or nothing, so that what lies below shows through. QEMU's own tools do the work; ``qemu-img
convert`` alone would lose the difference between zeros and nothing, so that is put back afterwards.

What the layers say was written by guests: their headers are read first, and the tools run in a
jail.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torpor.vm.disk import Layer
from torpor.vm.errors import VmError
from torpor.vm.image_tools import Bench
from torpor.vm.manifest import Disks, Sums
from torpor.vm.qcow2 import check_header
from torpor.vm.sizes import stored_bytes
from torpor.vm.store import Store
from torpor.vm.syncing import fsync

DEPTH = 8
"""Layers over the image up to which a chain is left as it is."""


@dataclass(frozen=True)
class Extent:
    """Bytes ``start`` to ``end`` of a disk that a layer says something about."""

    start: int
    end: int


def mergeable(sizes: Sequence[int]) -> int:
    """Return how many layers at the top of a chain are to be merged; 0 if it is short enough.

    ``sizes`` are the stored bytes of the layers over the image, bottom first. Small ones on top are
    merged into the first that is larger than all of them together, as in a log-structured merge
    tree: so a chain stays about as deep as the logarithm of its size, and each byte is copied as
    rarely.
    """
    if len(sizes) <= DEPTH:
        return 0
    count, total = 1, sizes[-1]
    while count < len(sizes) and (sizes[-count - 1] <= 2 * total or len(sizes) - count >= DEPTH):
        total += sizes[-count - 1]
        count += 1
    return count


async def shorten(
    store: Store, disk: tuple[Layer, ...], name: str, *, jailed: bool
) -> tuple[Layer, ...]:
    """Return the chain ``disk`` with its top layers merged, if it has become deep.

    The merged layer, if there is one, is the layer ``name`` of the store; the caller has pinned it.
    Raises :exc:`VmError` and OSError.
    """
    files = [store.layer(layer) for layer in disk[1:]]
    count = mergeable([stored_bytes([file]) for file in files])
    if not count:
        return disk
    merged = Layer(name, "qcow2", disk[-1].size)
    target = store.root / "layers" / merged.file_name
    try:
        await merge(files[-count:], target, jailed=jailed)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return (*disk[:-count], merged)


def use_chains(store: Store, snapshot: str, disks: Disks) -> None:
    """Let a durable snapshot use other chains from now on, which must read the same. Blocks.

    The sums of the old layers stay, for a thaw that has begun with them. Raises
    :exc:`SnapshotError` and OSError; the snapshot is then as it was.
    """
    found, old = store.durable_parts(snapshot)
    sums = dict(old.files)
    for name, file in store.files(found, disks):
        if name in sums:
            continue
        sums[name] = store.forced(file)
    fsync(store.root / "layers")
    store.write_sums(snapshot, Sums(sums, disks.root, disks.slots))


async def merge(layers: Sequence[Path], target: Path, *, jailed: bool = False) -> None:
    """Merge qcow2 ``layers``, bottom first, into the new file ``target``.

    Raises :exc:`VmError`; a layer whose header asks for more than a layer may is not opened.
    """
    for layer in layers:
        check_header(layer)
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    bench = Bench(tuple(layers), target, jailed)
    source = "json:" + json.dumps(_chain(bench.seen))
    said = await _extents(bench, source)
    await bench.run("qemu-img", "convert", "-q", "-O", "qcow2", source, bench.seen_target)
    zeros = list(subtract(said, await _extents(bench, bench.seen_target)))
    if zeros:
        lines = "".join(f"write -q -z {zero.start} {zero.end - zero.start}\n" for zero in zeros)
        await bench.run("qemu-io", "-f", "qcow2", bench.seen_target, stdin=lines)
    missing = list(subtract(said, await _extents(bench, bench.seen_target)))
    if missing:
        raise VmError(f"The merged layer {target.name} lacks {len(missing)} extents.")


def _chain(layers: Sequence[str]) -> dict[str, Any]:
    node: dict[str, Any] | None = None
    for layer in layers:
        node = {
            "driver": "qcow2",
            "file": {"driver": "file", "filename": layer},
            "backing": node,
        }
    assert node is not None, "at least one layer"
    return node


async def _extents(bench: Bench, image: str) -> list[Extent]:
    form = [] if image.startswith("json:") else ["-f", "qcow2"]
    found = json.loads(await bench.run("qemu-img", "map", "--output=json", *form, image))
    return [Extent(e["start"], e["start"] + e["length"]) for e in found if e["present"]]


def subtract(wanted: Sequence[Extent], present: Sequence[Extent]) -> Iterator[Extent]:
    """Yield what of ``wanted`` is not in ``present``; both in order."""
    remaining = iter(present)
    other = next(remaining, None)
    for start, end in ((extent.start, extent.end) for extent in wanted):
        while other is not None and other.start < end:
            if other.start > start:
                yield Extent(start, other.start)
            start = max(start, other.end)
            if other.end > end:
                break
            other = next(remaining, None)
        if start < end:
            yield Extent(start, end)
