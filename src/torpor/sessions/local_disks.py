"""Disks on this computer that outlive machines."""

import contextlib
from collections.abc import Iterator
from datetime import datetime

from torpor.sessions.hosts import DiskState
from torpor.vm import Host, HostError
from torpor.vm.errors import disk_is_full, told
from torpor.vm.sizes import stored_bytes


@contextlib.contextmanager
def told_as_host_error(disk: str) -> Iterator[None]:
    """Tell what the system refuses as an error of the host's."""
    try:
        yield
    except OSError as error:
        raise HostError(
            f"Disk {disk}: {told(error)}",
            state="What it holds is as it was.",
            todo="Make space." if disk_is_full(error) else "",
        ) from error


def disk_state(host: Host, disk: str) -> DiskState:
    """Return what there is of a disk, with what a machine that has it has written. Raises
    :exc:`torpor.vm.SnapshotError`."""
    head = host.store.heads.read(disk)
    layers, files = head.now.layers, []
    holder = host.disks.holder(disk)
    if holder is not None:
        (attached,) = (each for each in holder.record.disks if each.disk == disk)
        layers = attached.layers
        files = [holder.directory / attached.top.file_name]
    files += [host.store.root / "layers" / layer.file_name for layer in layers]
    saved_at = head.now.saved_at
    return DiskState(
        disk,
        head.size_bytes,
        stored_bytes(files),
        datetime.fromisoformat(saved_at) if saved_at is not None else None,
        head.now.durable,
    )
