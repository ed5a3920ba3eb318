"""Disks in a machine's slots: how one is made, and what goes into the slots of a new machine.

A disk that outlives machines is made here, an empty file system; a guest writes it from then on,
and nobody on the host mounts it or looks into it.
"""

import asyncio
import errno
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from torpor.vm.disk import Layer
from torpor.vm.errors import HostError, SnapshotError, VmError
from torpor.vm.heads import Content
from torpor.vm.manifest import ROOT, AttachedDisk, Disks, Slot
from torpor.vm.qemu import SLOTS
from torpor.vm.shape import MIB
from torpor.vm.sizes import free_bytes
from torpor.vm.store import Store
from torpor.vm.syncing import fsync

WORKSPACE: Slot = "workspace"
MOUNTED_AT = "/workspace"
"""The directory that every golden machine has, and that a disk in the slot covers."""
LEAST, MOST = 16 * MIB, 16 << 40
"""Bytes that a disk may have: ext4 with blocks of 4 KiB and no more than 32 bits of them."""
RESERVE = 64 * MIB
"""Bytes that must be free before a disk is made; it takes 5 MiB, whatever its size."""

# Spelled out, so that the host's mke2fs.conf does not decide what a guest's kernel has to read.
FEATURES = (
    "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,"
    "large_file,huge_file,dir_nlink,extra_isize,metadata_csum"
)
# What is not written reads as zeros already, so nothing has to be cleared: not by mkfs, nor by the
# guest's kernel in the background after the first mount (e2fsprogs 1.47.0).
MKFS = (
    "mkfs.ext4", "-q", "-F", "-b", "4096", "-I", "256", "-m", "0", "-e", "remount-ro",
    "-O", FEATURES,
    "-E", "assume_storage_prezeroed=1,nodiscard,root_owner=0:0", "-L", "workspace",
)  # fmt: skip


@dataclass(frozen=True)
class Mount:
    """What a guest is told to mount: the disk in a slot, of ``size`` bytes, at ``path``.

    A ``fresh`` disk was never mounted: its root gets the owner of the directory that it covers.
    """

    slot: str
    size: int
    fresh: bool
    path: str = MOUNTED_AT

    def wanted(self) -> dict[str, object]:
        """Return it as the guest agent wants it."""
        return {
            "serial": f"torpor-{self.slot}",
            "path": self.path,
            "size": self.size,
            "fresh": self.fresh,
        }


def new_top(slot: str, size: int) -> Layer:
    """Return a new writable layer of ``size`` virtual bytes for the disk in a slot.

    Its name says whose it is to who finds the file and nothing else (:func:`slot_of`), also in the
    24 characters that QEMU's name for it has (:func:`torpor.vm.disk.node_name`).
    """
    chance = secrets.token_hex(7)
    return Layer(chance if slot == ROOT else f"{slot}-{chance}", "qcow2", size)


def slot_of(file: Path) -> str:
    """Return the slot of the disk that a writable layer was made for, by its file in a machine's
    directory."""
    return next((slot for slot in SLOTS if file.name.startswith(f"{slot}-")), ROOT)


async def make_disk(store: Store, disk: str, size: int) -> None:
    """Make a disk of ``size`` bytes with an empty file system; it is durable then.

    One of this id and size that is there already is left as it is. Raises :exc:`HostError`,
    :exc:`SnapshotError` and OSError, with nothing left.
    """
    found = store.heads.find(disk)
    if found is not None and found.size_bytes == size:
        return
    if found is not None:
        raise HostError(f"There is a disk {disk} of another size.", state="Nothing was changed.")
    if not LEAST <= size <= MOST or size % 4096:
        raise HostError(
            f"A disk of {size} bytes is not possible.",
            todo="Ask for 16 MiB to 16 TiB, in whole blocks of 4 KiB.",
        )
    bottom = Layer(f"{WORKSPACE}-{secrets.token_hex(12)}", "raw", size)
    place = store.root / "layers" / bottom.file_name
    with store.pin(f"layers/{place.name}"):
        try:
            await _format(store, place, size)
            await asyncio.to_thread(_keep, store, disk, bottom, place)
        except BaseException:
            if store.heads.find(disk) is None:
                place.unlink(missing_ok=True)
            raise


async def _format(store: Store, place: Path, size: int) -> None:
    if free_bytes(store.root) < RESERVE:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise HostError(
            "The host's disk is full.", state="No disk was made.", todo="Make space."
        ) from full
    fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, size)
    finally:
        os.close(fd)
    # It reads nothing that anybody else has made, so it needs no room of its own.
    try:
        process = await asyncio.create_subprocess_exec(
            *MKFS,
            str(place),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
        )
    except FileNotFoundError:
        raise HostError(
            "mkfs.ext4 is not installed.", todo="Install the package e2fsprogs (`./dev setup`)."
        ) from None
    try:
        said, _ = await process.communicate()
    except BaseException:
        process.kill()
        await asyncio.shield(process.wait())
        raise
    if process.returncode != 0:
        raise VmError(f"mkfs.ext4 failed: {said.decode('utf-8', 'replace').strip()[-500:]}")


def _keep(store: Store, disk: str, bottom: Layer, place: Path) -> None:
    digest = store.forced(place)
    fsync(place.parent)
    store.heads.put(disk, Content((bottom,), None, {f"layers/{bottom.file_name}": digest}))


def attach(
    store: Store, kept: Disks, disk: str | None, snapshot: str | None
) -> tuple[tuple[AttachedDisk, ...], tuple[Mount, ...]]:
    """Return what goes into the slots of a machine that starts from a snapshot with disks
    ``kept``, and what of that its guest has not mounted.

    What the snapshot was taken with goes in as it was then. ``disk`` is the disk that outlives the
    machine and that it is to have; without it the machine gets a copy of its own of what the
    snapshot has. Raises :exc:`SnapshotError` if the snapshot was taken with another disk, or the
    disk is gone.
    """
    attached = []
    for each in kept.slots:
        own = disk if each.slot == WORKSPACE else None
        if own is not None and each.disk != own:
            raise SnapshotError(
                f"Snapshot {snapshot} was not taken with disk {own}.", state="Nothing was started."
            )
        top = new_top(each.slot, each.layers[-1].size)
        attached.append(AttachedDisk(each.slot, own, each.layers, top))
    if disk is None:
        return tuple(attached), ()
    head = store.heads.read(disk)
    if any(each.slot == WORKSPACE for each in attached):
        return tuple(attached), ()
    top = new_top(WORKSPACE, head.size_bytes)
    attached.append(AttachedDisk(WORKSPACE, disk, head.now.layers, top))
    return tuple(attached), (Mount(WORKSPACE, head.size_bytes, head.now.saved_at is None),)


def mounts_at_boot(
    disks: tuple[AttachedDisk, ...], mounts: tuple[Mount, ...] = ()
) -> tuple[Mount, ...]:
    """Return what a machine with these disks mounts when it is booted, ``mounts`` among it."""
    new = {mount.slot: mount for mount in mounts}
    return tuple(
        new.get(each.slot) or Mount(each.slot, each.top.size, fresh=False) for each in disks
    )
