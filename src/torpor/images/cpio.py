"""Writing cpio archives of the "newc" form, as the kernel reads an initramfs.

The form: Documentation/driver-api/early-userspace/buffer-format.rst in the kernel source. Each
entry is a header of 110 ASCII bytes ("070701" and 13 fields of 8 hex digits), the name with a
NUL, padding to 4, the content, padding to 4; the last entry is named "TRAILER!!!".
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One entry: `mode` has the file type too; `content` of a link is its target."""

    name: str
    mode: int
    content: bytes = b""
    device: tuple[int, int] = (0, 0)


def directory(name: str, permissions: int = 0o755) -> Entry:
    return Entry(name, stat.S_IFDIR | permissions)


def regular(name: str, content: bytes, permissions: int = 0o644) -> Entry:
    return Entry(name, stat.S_IFREG | permissions, content)


def symlink(name: str, target: str) -> Entry:
    return Entry(name, stat.S_IFLNK | 0o777, target.encode())


def character_device(name: str, major: int, minor: int, permissions: int = 0o600) -> Entry:
    return Entry(name, stat.S_IFCHR | permissions, device=(major, minor))


def archive(entries: Iterable[Entry]) -> bytes:
    """The archive of these entries; the same entries give the same bytes.

    Sorted by name (so a directory comes before what it holds), owner 0, time 0.
    """
    parts: list[bytes] = []
    for number, entry in enumerate(sorted(entries, key=lambda e: e.name), start=1):
        parts.append(_record(entry, number))
    parts.append(_record(Entry("TRAILER!!!", 0), 0))
    return b"".join(parts)


def _record(entry: Entry, inode: int) -> bytes:
    name = entry.name.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    fields = (
        inode,
        entry.mode,
        0,  # uid
        0,  # gid
        links,
        0,  # mtime
        len(entry.content),
        0,  # major and minor of the file system
        0,
        *entry.device,
        len(name),
        0,  # checksum, used by "070702" only
    )
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name
    return _padded(head) + _padded(entry.content)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
