"""Reading the files of a root disk without mounting it: what :mod:`torpor.images.ext4` makes.

The form is that of the kernel's Documentation/filesystems/ext4. Only what our own mkfs options
give is read; a disk with other features is refused. The disk must not have been written since.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torpor.images.errors import ImageError

MAGIC, EXTENTS_MAGIC, XATTR_MAGIC = 0xEF53, 0xF30A, 0xEA020000
ROOT = 2
KNOWN = 0x0002 | 0x0040 | 0x0080 | 0x0200
"""filetype, extents, 64bit, flex_bg: the incompatible features that are understood."""
HAS_EXTENTS = 0x80000
UNWRITTEN = 0x8000
PREFIXES = {
    1: "user.",
    2: "system.posix_acl_access",
    3: "system.posix_acl_default",
    4: "trusted.",
    6: "security.",
    7: "system.",
}
ACLS = (2, 3)
ACL_WITH_ID = (0x02, 0x08)
PIECE = 1 << 20


@dataclass(frozen=True)
class File:
    """One inode. ``mode`` has the type too; ``links`` counts its names; ``device`` is major and
    minor number."""

    number: int
    mode: int
    uid: int
    gid: int
    size: int
    mtime: int
    links: int
    flags: int
    block: bytes
    device: tuple[int, int]
    xattrs: dict[str, bytes]


class Disk:
    """An ext4 file system in a file. Raises ImageError if it is none, or one of another kind."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            head = os.pread(self._fd, 1024, 1024)
            fields = struct.unpack_from("<H", head, 0x38)
            if fields[0] != MAGIC:
                raise _strange("it has no ext4 superblock")
            (incompatible,) = struct.unpack_from("<I", head, 0x60)
            if incompatible & ~KNOWN:
                raise _strange(f"it has the features {incompatible & ~KNOWN:#x}")
            self._block = 1024 << struct.unpack_from("<I", head, 0x18)[0]
            (self._per_group,) = struct.unpack_from("<I", head, 0x28)
            (self._inode_size,) = struct.unpack_from("<H", head, 0x58)
            (self._group_size,) = struct.unpack_from("<H", head, 0xFE)
            (self._first,) = struct.unpack_from("<I", head, 0x14)
        except BaseException:
            os.close(self._fd)
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def __enter__(self) -> Disk:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def file(self, number: int) -> File:
        """Return the inode of a number."""
        group, index = divmod(number - 1, self._per_group)
        place = (self._first + 1) * self._block + group * self._group_size
        described = os.pread(self._fd, 64, place)
        table = struct.unpack_from("<I", described, 8)[0]
        if self._group_size >= 64:
            table |= struct.unpack_from("<I", described, 0x28)[0] << 32
        raw = os.pread(self._fd, self._inode_size, table * self._block + index * self._inode_size)
        mode, uid, size, _, _, mtime = struct.unpack_from("<HHIIIi", raw, 0)
        gid, links = struct.unpack_from("<HH", raw, 0x18)
        (flags,) = struct.unpack_from("<I", raw, 0x20)
        size |= struct.unpack_from("<I", raw, 0x6C)[0] << 32
        uid_high, gid_high = struct.unpack_from("<HH", raw, 0x78)
        block = raw[0x28 : 0x28 + 60]
        return File(
            number, mode, uid | uid_high << 16, gid | gid_high << 16, size, mtime, links, flags,
            block, _device(block) if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else (0, 0),
            self._xattrs(raw),
        )  # fmt: skip

    def walk(self, *, lost_and_found: bool = False) -> Iterator[tuple[bytes, File]]:
        """Yield each path with its file, the root's as an empty one, directories first.

        ``lost+found``, which mkfs makes, is left out if it is empty and is not asked for.
        """
        stack = [(b"", self.file(ROOT))]
        while stack:
            path, file = stack.pop()
            yield path, file
            if not stat.S_ISDIR(file.mode):
                continue
            for name, number in sorted(self._entries(file), reverse=True):
                below = self.file(number)
                mkfs_made = not path and name == b"lost+found" and not self._entries(below)
                if mkfs_made and not lost_and_found:
                    continue
                stack.append((path + b"/" + name if path else name, below))

    def target(self, file: File) -> bytes:
        """Return where a symbolic link leads."""
        if not file.flags & HAS_EXTENTS:
            return file.block[: file.size]
        return b"".join(self.read(file))

    def read(self, file: File) -> Iterator[bytes]:
        """Yield a file's content in pieces, holes as zeros."""
        at = 0
        for start, count, place in self._extents(file.block):
            yield from _zeros(min(start * self._block, file.size) - at)
            at = max(at, min(start * self._block, file.size))
            end = min((start + count) * self._block, file.size)
            while at < end:
                offset = place * self._block + at - start * self._block
                piece = os.pread(self._fd, min(PIECE, end - at), offset)
                if not piece:
                    raise _strange("it ends too early")
                at += len(piece)
                yield piece
        yield from _zeros(file.size - at)

    def _extents(self, raw: bytes) -> Iterator[tuple[int, int, int]]:
        """Yield first block, number of blocks and place of each extent, in order."""
        magic, entries, _, depth = struct.unpack_from("<HHHH", raw, 0)
        if magic != EXTENTS_MAGIC:
            raise _strange("a file has no extents")
        for number in range(entries):
            at = 12 + 12 * number
            if depth:
                _, low, high = struct.unpack_from("<IIH", raw, at)
                place = (low | high << 32) * self._block
                yield from self._extents(os.pread(self._fd, self._block, place))
                continue
            start, count, high, low = struct.unpack_from("<IHHI", raw, at)
            if count <= UNWRITTEN:  # else it was only reserved, and reads as zeros
                yield start, count, low | high << 32

    def _entries(self, directory: File) -> list[tuple[bytes, int]]:
        content = b"".join(self.read(directory))
        found = []
        at = 0
        while at < len(content):
            number, length, name_length = struct.unpack_from("<IHB", content, at)
            if length < 8:
                raise _strange("a directory is damaged")
            name = content[at + 8 : at + 8 + name_length]
            if number and name not in (b".", b".."):
                found.append((name, number))
            at += length
        return found

    def _xattrs(self, raw: bytes) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        (extra,) = struct.unpack_from("<H", raw, 0x80)
        at = 128 + extra
        if at + 4 <= len(raw) and struct.unpack_from("<I", raw, at)[0] == XATTR_MAGIC:
            _read_xattrs(raw, at + 4, at + 4, found)
        block = (
            struct.unpack_from("<I", raw, 0x68)[0] | struct.unpack_from("<H", raw, 0x76)[0] << 32
        )
        if block:
            content = os.pread(self._fd, self._block, block * self._block)
            _read_xattrs(content, 32, 0, found)
        return found


def _read_xattrs(raw: bytes, at: int, base: int, found: dict[str, bytes]) -> None:
    while at + 16 <= len(raw) and raw[at : at + 4] != bytes(4):
        length, index, offset, inode, size = struct.unpack_from("<BBHII", raw, at)
        name = PREFIXES.get(index)
        if name is None or inode:
            raise _strange("an extended attribute is of a kind that it should not have")
        value = raw[base + offset : base + offset + size]
        text = raw[at + 16 : at + 16 + length].decode("utf-8", "surrogateescape")
        found[name + text] = _acl(value) if index in ACLS else value
        at += 16 + -(-length // 4) * 4


def _acl(stored: bytes) -> bytes:
    """An access control list as system calls have it (linux/posix_acl_xattr.h)."""
    entries = [struct.pack("<I", 2)]
    at = 4
    while at < len(stored):
        tag, permissions = struct.unpack_from("<HH", stored, at)
        at += 4
        identity = 0xFFFFFFFF
        if tag in ACL_WITH_ID:
            (identity,) = struct.unpack_from("<I", stored, at)
            at += 4
        entries.append(struct.pack("<HHI", tag, permissions, identity))
    return b"".join(entries)


def _device(block: bytes) -> tuple[int, int]:
    old, new = struct.unpack_from("<II", block, 0)
    if old:
        return old >> 8 & 0xFF, old & 0xFF
    return (new & 0xFFF00) >> 8, (new & 0xFF) | (new >> 12 & 0xFFF00)


def _zeros(count: int) -> Iterator[bytes]:
    while count > 0:
        piece = min(count, PIECE)
        yield bytes(piece)
        count -= piece


def _strange(why: str) -> ImageError:
    return ImageError(
        f"This is not a root disk as Torpor makes them: {why}.",
        "Nothing was changed.",
        "Make the image again.",
    )
