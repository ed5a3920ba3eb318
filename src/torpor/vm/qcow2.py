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
_END, _FEATURE_NAMES = 0, 0x6803F857
_LAZY_REFCOUNTS = 1
"""The only feature that a reader need not know and that QEMU sets by itself."""


def check_layer(file: Path, size: int) -> None:
    """Raise :exc:`SnapshotError` unless ``file`` is a qcow2 layer of ``size`` virtual bytes that
    stands for itself. Raises OSError."""
    with open(file, "rb", buffering=0) as opened:
        head = os.pread(opened.fileno(), 1 << 21, 0)
        length = os.fstat(opened.fileno()).st_size
    wrong = _wrong(head, length, size)
    if wrong:
        raise SnapshotError(
            f"The layer {file.name} is not one that Torpor takes: {wrong}.",
            state="Nothing was changed.",
            todo="Do not open it with other programs either.",
        )


def _wrong(head: bytes, length: int, wanted: int) -> str:
    """Return what is wrong with a header, or nothing."""
    if len(head) < _HEADER.size:
        return "it is too short"
    (
        magic, version, backing, backing_size, cluster_bits, size, encryption, l1_size, l1_offset,
        refcounts, refcount_clusters, snapshots, _, incompatible, compatible, autoclear,
        refcount_order, header_length,
    ) = _HEADER.unpack_from(head)  # fmt: skip
    cluster = 1 << cluster_bits if 9 <= cluster_bits <= 21 else 0
    l1_wanted = -(-size // (cluster * (cluster // 8))) if cluster else 0
    faults = {
        "it is no qcow2 image of version 3": magic != _MAGIC or version != 3,
        "it names a backing file": bool(backing or backing_size),
        "it is encrypted": encryption != 0,
        "it has snapshots of its own": snapshots != 0,
        f"it has features that are not known ({incompatible:#x}, {autoclear:#x})": bool(
            incompatible or autoclear or compatible & ~_LAZY_REFCOUNTS
        ),
        f"it has {size} virtual bytes, not {wanted}": size != wanted,
        "its clusters have an odd size": not cluster or refcount_order > 6,
        "its tables lie outside of it": not cluster
        or l1_size < l1_wanted
        or l1_size > l1_wanted + cluster
        or l1_offset + 8 * l1_size > length
        or refcounts + refcount_clusters * cluster > length + cluster
        or l1_offset % cluster != 0
        or refcounts % cluster != 0,
        "its header has an odd length": not _HEADER.size <= header_length <= 4096,
    }
    for fault, found in faults.items():
        if found:
            return fault
    return _wrong_extension(head[:cluster], header_length)


def _wrong_extension(head: bytes, position: int) -> str:
    while position + _EXTENSION.size <= len(head):
        kind, length = _EXTENSION.unpack_from(head, position)
        if kind == _END:
            return ""
        if kind != _FEATURE_NAMES:
            return f"its header has an extension that is not known ({kind:#x})"
        position += _EXTENSION.size + (length + 7) // 8 * 8
    return "its header has no end"
