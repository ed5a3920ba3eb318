"""Disks that outlive machines, in a backup: what each held, and the files of its layers.

They are called by their digests there, as those of exported snapshots are, and lie under these
names in a home that was restored.
"""

import os
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from torpor.backup.contents import SavedDisk
from torpor.backup.errors import wrong
from torpor.vm import SnapshotError
from torpor.vm.base import BLOCK, count_and_digest
from torpor.vm.disk import Layer
from torpor.vm.exported import File, object_name
from torpor.vm.heads import Content, Head, check_id, damaged
from torpor.vm.imported import MOST_DISK, MOST_LAYERS
from torpor.vm.qcow2 import check_header
from torpor.vm.store import Store

TRIES = 5
"""How often a disk is looked at whose layers go while they are opened: it holds others by then."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


def opened_disk(
    store: Store, disk: str, there: Mapping[str, int], stack: ExitStack
) -> tuple[SavedDisk, list[int]]:
    """Return what a disk holds, durably, and the descriptors of its layers, which ``stack`` closes.

    Objects that are ``there`` already, with so many blocks, are left out. Raises
    :exc:`torpor.vm.SnapshotError` and OSError.
    """
    for _ in range(TRIES):
        head = store.heads.read(disk)
        content = _durable(head)
        fds: list[int] = []
        opened = ExitStack()
        try:
            for layer in content.layers:
                fds.append(os.open(store.layer(layer), os.O_RDONLY | os.O_CLOEXEC))
                opened.callback(os.close, fds[-1])
        except (SnapshotError, FileNotFoundError):
            opened.close()
            if store.heads.read(disk) == head:
                raise
            continue
        stack.enter_context(opened)
        return _described(head, content, fds, there), fds
    raise SnapshotError(f"What disk {disk} holds changes all the time.")


def _durable(head: Head) -> Content:
    for content in head.contents():
        if content.durable:
            return content
    raise SnapshotError(f"Nothing that disk {head.id} holds is durable yet.")


def _described(head: Head, content: Content, fds: list[int], there: Mapping[str, int]) -> SavedDisk:
    layers, files = [], []
    seen: Counter[str] = Counter()
    for layer, fd in zip(content.layers, fds, strict=True):
        blocks, digest = count_and_digest(fd)
        old = f"layers/{layer.file_name}"
        if content.sums.get(old) != digest:
            raise damaged(head.id, f"{old} does not have the content that was saved")
        seen[digest] += 1
        new = Layer(_name(digest, seen[digest]), layer.format, layer.size)
        layers.append(new)
        left_out = object_name(old, digest) in there or seen[digest] > 1
        size = os.fstat(fd).st_size
        files.append(File(f"layers/{new.file_name}", size, blocks, digest, left_out))
    return SavedDisk(head.id, head.size_bytes, content.saved_at, tuple(layers), tuple(files))


def _name(digest: str, times: int) -> str:
    """Return what the id of a layer is that has a digest for so many times in its chain."""
    return digest if times == 1 else f"{times}-{digest}"


def check_disk(found: SavedDisk) -> None:
    """Raise :exc:`BackupError` or :exc:`torpor.vm.SnapshotError` unless a disk is what one can
    be."""
    check_id(found.id)
    seen: Counter[str] = Counter()
    named = len(found.layers) == len(found.files)
    for layer, file in zip(found.layers, found.files, strict=False):
        seen[file.sha256] += 1
        named = (
            named
            and _DIGEST.fullmatch(file.sha256) is not None
            and layer.id == _name(file.sha256, seen[file.sha256])
            and file.name == f"layers/{layer.file_name}"
        )
    if not named:
        raise wrong(f"the layers of disk {found.id} are not called by their digests")
    formats = [layer.format for layer in found.layers]
    if not 1 <= len(formats) <= MOST_LAYERS or formats != ["raw", *["qcow2"] * (len(formats) - 1)]:
        raise wrong(f"disk {found.id} has odd layers")
    for layer, file in zip(found.layers, found.files, strict=True):
        whole = layer.format == "raw"
        least, most = (layer.size, layer.size) if whole else (1, 2 * layer.size + (1 << 30))
        if (
            layer.size != found.size_bytes
            or not 0 < layer.size <= MOST_DISK
            or not least <= file.size <= most
            or not 0 <= file.blocks <= -(-file.size // BLOCK)
        ):
            raise wrong(f"{file.name} of disk {found.id} has an impossible size")


def place_disk(store: Store, found: SavedDisk, places: Mapping[int, Path]) -> None:
    """Add a disk to a store that is being put together. ``places`` are the files that came with
    it, by number; the others are in the store. Raises :exc:`BackupError`,
    :exc:`torpor.vm.SnapshotError` and OSError."""
    sums = {}
    for number, (layer, file) in enumerate(zip(found.layers, found.files, strict=True)):
        place = places.get(number, store.root / object_name(file.name, file.sha256))
        try:
            with open(place, "rb", buffering=0) as opened:
                if count_and_digest(opened.fileno()) != (file.blocks, file.sha256):
                    raise wrong(f"{file.name} of disk {found.id} is not what was saved")
        except FileNotFoundError:
            raise wrong(f"{file.name} of disk {found.id} does not stand before it") from None
        if layer.format == "qcow2":
            check_header(place, layer.size)
        place.chmod(0o600)
        if not (store.root / file.name).exists():
            store.take(place, file.name)
        if number in places:
            place.unlink()
        sums[file.name] = file.sha256
    store.heads.put(found.id, Content(found.layers, found.saved_at, sums))
