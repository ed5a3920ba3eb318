"""What an exported snapshot may say of itself, judged before a byte of its content is read."""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from torpor.vm.base import BLOCK
from torpor.vm.canonical import canonical
from torpor.vm.disk import Layer
from torpor.vm.errors import SnapshotError
from torpor.vm.exported import File, Index, wrong
from torpor.vm.manifest import (
    DELTA,
    DEVICES,
    MANIFEST,
    VERSIONS,
    Manifest,
    Sums,
    file_names,
    version_with,
)
from torpor.vm.shape import MIB

MOST_LAYERS = 64
MOST_DISK = 64 << 40
MOST_DEVICES = 256 * MIB
MOST_TEXT = 1000
MOST_NUMBER = 1 << 53
MARKS, WHOSE = "torpor.", "torpor.session"
"""How the labels begin by which a server finds what it has left: the disk of a machine that ended,
what an operation was at. From somebody else they would put his snapshot in the place of that. The
one that says only whose a snapshot was is kept."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


def check_index(index: Index) -> None:
    """Raise :exc:`SnapshotError` unless an index names what its snapshot needs, and no more."""
    found = index.manifest
    if found.version not in VERSIONS:
        raise SnapshotError(
            f"The snapshot has version {found.version}; this Torpor reads version"
            f" {', '.join(map(str, VERSIONS))}.",
            state="Nothing was added to the store.",
            todo="Import it with the Torpor that wrote it, or with a newer one.",
        )
    for fault in _faults(index):
        raise wrong(fault)


def _faults(index: Index) -> Iterator[str]:
    found, files = index.manifest, index.files
    yield from _faults_of_manifest(found)
    names = [name for name in file_names(found, found.first) if name != MANIFEST]
    if [file.name for file in files] != names:
        yield "its files are not those that its snapshot needs"
    if not all(_DIGEST.fullmatch(file.sha256) for file in files):
        yield "a digest in its index is none"
    sums = Sums({file.name: file.sha256 for file in files}, found.disk, found.disks)
    if canonical(found, sums)[0] != found:
        yield "its files are not called by their digests"
    sizes = {file.name: file for file in files}
    if any(sizes[name].size != size for name, size in found.sizes.items() if name in sizes):
        yield "its manifest gives a file another size"
    for file in files:
        yield from _faults_of_file(file, found)


def _faults_of_manifest(found: Manifest) -> Iterator[str]:
    if not 1 <= found.shape.vcpus <= 255 or not 1 <= found.shape.memory_mib <= 1 << 20:
        yield "its machine has an impossible size"
    yield from _faults_of_disks(found)
    texts = [
        found.id, found.created_at, found.parent or "", found.accelerator, found.cpu,
        found.guest.kernel, found.guest.tools, found.guest_boot_id, *found.labels,
        *found.labels.values(), *(each.disk or "" for each in found.disks),
    ]  # fmt: skip
    numbers = [found.generation, found.stored_bytes, found.allocated_bytes, *found.qemu_version]
    if not all(0 <= number < MOST_NUMBER for number in (*numbers, *found.sizes.values())):
        yield "its manifest has an impossible number"
    # They are shown on terminals, which obey what does not print.
    if not all(len(text) <= MOST_TEXT and (text.isprintable() or not text) for text in texts):
        yield "its manifest has text that is too long or does not print"
    try:
        dated = datetime.fromisoformat(found.created_at).tzinfo is not None
    except ValueError:
        dated = False
    if not dated:
        yield "its time is none"


def _faults_of_disks(found: Manifest) -> Iterator[str]:
    for chain in found.first.chains():
        if not 1 <= len(chain) <= MOST_LAYERS:
            yield f"its disk has {len(chain)} layers"
        elif [layer.format for layer in chain] != ["raw", *["qcow2"] * (len(chain) - 1)]:
            yield "its layers have odd formats"
    if found.tools.format != "raw":
        yield "its layers have odd formats"
    layers = (*found.first.layers(), found.tools)
    if not all(0 < layer.size <= MOST_DISK and layer.size % 512 == 0 for layer in layers):
        yield "its disk has an impossible size"
    slots = [each.slot for each in found.disks]
    if len(set(slots)) != len(slots):
        yield "two of its disks are in one place"
    if found.version != version_with(found.disks, card=found.card):
        yield "its version does not go with its disks and its card"


def _faults_of_file(file: File, found: Manifest) -> Iterator[str]:
    memory = found.shape.memory_bytes
    layers: dict[str, Layer] = {
        f"layers/{layer.file_name}": layer for layer in (*found.first.layers(), found.tools)
    }
    if file.name == DEVICES:
        fits = 0 < file.size <= MOST_DEVICES
    elif file.name == DELTA:
        # All of it is data: an index of holes would cost memory that nobody has sent.
        fits = 0 < file.size <= 2 * memory + MIB and file.blocks == -(-file.size // BLOCK)
    elif file.name.startswith("bases/"):
        fits = file.size == memory
    elif layers[file.name].format == "raw":
        fits = file.size == layers[file.name].size
    else:
        fits = 0 < file.size <= 2 * layers[file.name].size + (1 << 30)
    if not fits or not 0 <= file.blocks <= -(-file.size // BLOCK):
        yield f"{file.name} has an impossible size"
    if file.left_out and "/" not in file.name:
        yield f"{file.name} is left out"


def renamed(index: Index, name: str | None) -> Index:
    """Return the index with its snapshot under another id, if one is given."""
    return index if name is None else replace(index, manifest=replace(index.manifest, id=name))


def without_marks(found: Manifest) -> Manifest:
    """Return a manifest without the labels of a server's own, and without the ids of disks: what
    comes with it is a copy, and no disk of this host is to take it for its own content."""
    labels = {
        name: value
        for name, value in found.labels.items()
        if name == WHOSE or not name.startswith(MARKS)
    }
    disks = tuple(replace(each, disk=None) for each in found.disks)
    return replace(found, labels=labels, disks=disks)
