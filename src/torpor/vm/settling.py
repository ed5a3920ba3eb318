"""What disks that outlive machines hold, forced to the host's disk (:mod:`torpor.vm.heads`)."""

import contextlib
from collections.abc import Iterable

from torpor.vm.disk import Layer
from torpor.vm.errors import VmError
from torpor.vm.manifest import MachineRecord, Manifest, Sums
from torpor.vm.store import Store
from torpor.vm.syncing import fsync


def settle_with(store: Store, found: Manifest, sums: Sums) -> None:
    """Note that disks which hold what a durable snapshot was taken with are durable too. Blocks;
    raises :exc:`SnapshotError` and OSError."""
    for old, now in zip(found.disks, sums.disks, strict=True):
        if old.disk is not None:
            store.heads.settled(old.disk, (old.layers, now.layers), now.layers, sums.files)


def settle(store: Store, disk: str) -> None:
    """Make what a disk holds durable. Blocks; raises :exc:`SnapshotError` and OSError."""
    layers = store.heads.read(disk).now.layers
    use_for_disk(store, disk, layers, layers)


def settle_all(store: Store, machines: Iterable[MachineRecord]) -> None:
    """Make durable what all disks hold, as far as that can be done; ``machines`` are those that
    run. Blocks.

    A program that was killed while a machine gave its disk back may have noted that the disk holds
    a layer which that machine goes on writing; that is left alone until it is done.
    """
    written = {drive.top for record in machines for drive in record.drives}
    for disk in store.heads.ids():
        with contextlib.suppress(VmError, OSError):
            if written.isdisjoint(store.heads.read(disk).now.layers):
                settle(store, disk)


def use_for_disk(
    store: Store, disk: str, old: tuple[Layer, ...], layers: tuple[Layer, ...]
) -> None:
    """Let a disk that holds the chain ``old`` use another one, which must read the same, and is
    durable then. Blocks; raises :exc:`SnapshotError` and OSError."""
    known: dict[str, str] = {}
    for content in store.heads.read(disk).contents():
        known |= content.sums
    sums = {}
    for layer in layers:
        name = f"layers/{layer.file_name}"
        sums[name] = known.get(name) or store.forced(store.layer(layer))
    fsync(store.root / "layers")
    store.heads.settled(disk, (old,), layers, sums)
