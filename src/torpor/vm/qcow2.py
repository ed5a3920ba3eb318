"""The header of a disk layer, looked at before a program outside the jail opens it.

A layer was written by a jailed QEMU, which may have been taken over. A qcow2 header can name other
files of the host, to be read (a backing file, external data) or written; inside a jail there are
none, but what reads layers outside (``qemu-img``) would follow. So only what QEMU itself makes for
Torpor passes. The format is in QEMU's ``docs/interop/qcow2.txt``.
"""

import struct
from pathlib import Path

from torpor.vm.errors import SnapshotError

_HEADER = struct.Struct(">4sIQIIQIIQQIIQQQQII")
_MAGIC = b"QFI\xfb"
_CLUSTER_BITS = 16
_REFCOUNT_ORDER = 4


def check_header(file: Path, size: int | None = None) -> None:
    """Raise :exc:`SnapshotError` if a layer is not of the form that we make, of ``size`` virtual
    bytes if that is given."""
    with open(file, "rb") as opened:
        start = opened.read(_HEADER.size)
    if len(start) < _HEADER.size:
        raise _refused(file, "is too short")
    (
        magic, version, backing_at, backing_size, cluster_bits, virtual_size, encryption, _l1_size,
        _l1_at, _refcounts_at, _refcounts_size, snapshots, _snapshots_at, incompatible,
        _compatible, autoclear, refcount_order, _header_size,
    ) = _HEADER.unpack(start)  # fmt: skip
    wanted = {
        "is no qcow2 file of version 3": (magic, version) == (_MAGIC, 3),
        "names a file below it": backing_at == backing_size == 0,
        "is encrypted": encryption == 0,
        "has snapshots of its own": snapshots == 0,
        # Bit 2 of the first: the data are in another file, which the header names.
        "has features that no layer has": incompatible == 0 and autoclear == 0,
        "has clusters of another size": (cluster_bits, refcount_order)
        == (_CLUSTER_BITS, _REFCOUNT_ORDER),
        "is of another size": size is None or virtual_size == size,
    }
    for what, good in wanted.items():
        if not good:
            raise _refused(file, what)


def _refused(file: Path, what: str) -> SnapshotError:
    return SnapshotError(
        f"The disk layer {file.name} {what}: the QEMU that wrote it may have been taken over.",
        state="It was not opened.",
        todo="Remove the snapshots that need it, and look into the machine that it comes from.",
    )
