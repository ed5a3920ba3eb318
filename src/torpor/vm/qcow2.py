"""What the header of a qcow2 layer says, read without QEMU: it may ask QEMU to open other files.

A layer is data that a guest, through its QEMU, or a stranger has written. Its header can name a
backing file and an external data file, and QEMU opens them. So before a layer is read outside of a
machine's jail, its header must be one that Torpor's own layers have: no other files, nothing
unknown.
The format is that of QEMU's ``docs/interop/qcow2.txt``.
"""

import os
import struct
from pathlib import Path

from torpor.vm.errors import SnapshotError

_HEADER = struct.Struct(">4sIQIIQIIQQIIQQQQII")
"""Magic, version, backing offset and size, cluster bits, size, encryption, L1 size and offset,
refcount table offset and clusters, snapshots and their offset, incompatible, compatible and
autoclear features, refcount order, header length."""
_MAGIC = b"QFI\xfb"
_EXTENSION = struct.Struct(">II")
CLUSTER = 1 << 16
"""Bytes in a cluster of each layer, as QEMU makes them unless told otherwise."""
_END, _FEATURE_NAMES = 0, 0x6803F857
_LAZY_REFCOUNTS = 1
"""The only feature that a reader need not know and that QEMU sets by itself."""


def check_header(file: Path, size: int | None = None) -> None:
    """Raise :exc:`SnapshotError` unless ``file`` is a qcow2 layer that stands for itself, of
    ``size`` virtual bytes if that is given. Raises OSError."""
    with open(file, "rb", buffering=0) as opened:
        head = os.pread(opened.fileno(), CLUSTER, 0)
        length = os.fstat(opened.fileno()).st_size
    wrong = _wrong(head, length, size)
    if wrong:
        raise SnapshotError(
            f"The disk layer {file.name} {wrong}: the QEMU that wrote it may have been taken over,"
            " or it comes from somebody who means no good.",
            state="It was not opened.",
            todo="Remove what needs it, and do not open it with other programs either.",
        )


def _wrong(head: bytes, length: int, wanted: int | None) -> str:
    """Return what is wrong with a header, or nothing."""
    if len(head) < _HEADER.size:
        return "is too short"
    (
        magic, version, backing, backing_size, cluster_bits, size, encryption, l1_size, l1_offset,
        refcounts, refcount_clusters, snapshots, _, incompatible, compatible, autoclear,
        refcount_order, header_length,
    ) = _HEADER.unpack_from(head)  # fmt: skip
    l1_wanted = -(-size // (CLUSTER * CLUSTER // 8))
    faults = {
        "is no qcow2 file of version 3": magic != _MAGIC or version != 3,
        "names a file below it": bool(backing or backing_size),
        "is encrypted": encryption != 0,
        "has snapshots of its own": snapshots != 0,
        # Bit 2 of the first: the data are in another file, which the header names.
        "has features that no layer has": bool(
            incompatible or autoclear or compatible & ~_LAZY_REFCOUNTS
        ),
        "has clusters of another size": (cluster_bits, refcount_order) != (16, 4),
        f"is of another size: {size} bytes, not {wanted}": wanted is not None and size != wanted,
        "has tables outside of itself": l1_size < l1_wanted
        or l1_size > l1_wanted + CLUSTER
        or l1_offset + 8 * l1_size > length
        or refcounts + refcount_clusters * CLUSTER > length + CLUSTER
        or l1_offset % CLUSTER != 0
        or refcounts % CLUSTER != 0,
        "has a header of an odd length": not _HEADER.size <= header_length <= 4096,
    }
    for fault, found in faults.items():
        if found:
            return fault
    return _wrong_extension(head[:CLUSTER], header_length)


def _wrong_extension(head: bytes, position: int) -> str:
    while position + _EXTENSION.size <= len(head):
        kind, length = _EXTENSION.unpack_from(head, position)
        if kind == _END:
            return ""
        if kind != _FEATURE_NAMES:
            return f"has a header with an extension that is not known ({kind:#x})"
        position += _EXTENSION.size + (length + 7) // 8 * 8
    return "has a header without an end"
