"""The frame of a backup: sections of chunks between a header and a trailer (docs/reference.md).

It is written and read in one go, from the front to the end, so that it can pass through a pipe or
a connection. Each chunk has a checksum, and the trailer a digest of all that stands before it.
"""

import contextlib
import hashlib
import io
import struct
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from torpor.backup.errors import BackupError, wrong

VERSION, WITH_DISKS = 1, 2
"""The version of a backup, and of one that has disks in it too."""
CHUNK = 1 << 20
"""Bytes of a chunk at most."""
HEAD = 64
"""Bytes of each header, checksum included."""
MAGIC, SECTION, END = b"TORPORBK", b"SECT", b"TORPORBE"
_HEADER = struct.Struct("<8sI48x")
_SECTION = struct.Struct("<4s4sI48x")
_TRAILER = struct.Struct("<8sI16x32s")
_CHUNK = struct.Struct("<II")
_CRC = struct.Struct("<I")


class FrameWriter:
    """Writes a backup to ``out``, one section after another; :meth:`close` ends it."""

    def __init__(self, out: BinaryIO, version: int = VERSION) -> None:
        self._out = out
        self._sha = hashlib.sha256()
        self._sections = 0
        self.size = 0
        self._write(_sealed(_HEADER.pack(MAGIC, version)))

    @contextlib.contextmanager
    def section(self, kind: str) -> Iterator[BinaryIO]:
        """Begin a section, and give what takes its content."""
        self._write(_sealed(_SECTION.pack(SECTION, kind.encode("ascii"), self._sections)))
        self._sections += 1
        content = _Chunks(self._write)
        yield cast("BinaryIO", content)
        content.end()

    def close(self) -> None:
        """Write the trailer."""
        self._write(_sealed(_TRAILER.pack(END, self._sections, self._sha.digest())))

    def _write(self, data: bytes) -> None:
        self._sha.update(data)
        self.size += len(data)
        self._out.write(data)


class _Chunks(io.RawIOBase):
    """What is written to a section, gathered to chunks."""

    def __init__(self, write: Any) -> None:
        self._write = write
        self._waiting = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._waiting += data
        while len(self._waiting) >= CHUNK:
            self._chunk(bytes(self._waiting[:CHUNK]))
            del self._waiting[:CHUNK]
        return len(data)

    def end(self) -> None:
        if self._waiting:
            self._chunk(bytes(self._waiting))
        self._write(_CHUNK.pack(0, 0))

    def _chunk(self, data: bytes) -> None:
        self._write(_CHUNK.pack(len(data), zlib.crc32(data)) + data)


class FrameReader:
    """Reads a backup from ``source``. Raises :exc:`BackupError` for whatever is wrong with it."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._sha = hashlib.sha256()
        head = self._unsealed("its header")
        magic, version = _HEADER.unpack_from(head)
        if magic != MAGIC:
            raise wrong("it does not begin as one")
        if version not in (VERSION, WITH_DISKS):
            raise BackupError(
                f"The backup has version {version}; this Torpor reads version {VERSION} and"
                f" {WITH_DISKS}.",
                state="Nothing was restored from it.",
                todo="Use the Torpor that wrote it, or a newer one.",
            )

    def sections(self) -> Iterator[tuple[str, BinaryIO]]:
        """Yield the kind and the content of each section. What is not read of one is passed over,
        and checked all the same. When this ends, the whole file was what it was written as."""
        number = 0
        while True:
            before = self._sha.copy()
            head = self._unsealed(f"section {number}")
            if head.startswith(END):
                _, count, digest = _TRAILER.unpack_from(head)
                if count != number or digest != before.digest():
                    raise wrong("its end does not fit the rest")
                if self._source.read(1):
                    raise wrong("something stands behind its end")
                return
            magic, kind, said = _SECTION.unpack_from(head)
            if magic != SECTION or said != number or not kind.isalpha():
                raise wrong(f"section {number} does not begin as one")
            content = _Section(self._chunk)
            yield kind.decode("ascii"), cast("BinaryIO", io.BufferedReader(content, CHUNK))
            content.skip()
            number += 1

    def _chunk(self) -> bytes:
        length, checksum = _CHUNK.unpack(self._exactly(_CHUNK.size, "a section"))
        if length > CHUNK:
            raise wrong("a chunk is out of bounds")
        data = self._exactly(length, "a section")
        if zlib.crc32(data) != checksum:
            raise wrong("a chunk is damaged")
        return data

    def _unsealed(self, what: str) -> bytes:
        head = self._exactly(HEAD, what)
        if _CRC.unpack_from(head, HEAD - _CRC.size)[0] != zlib.crc32(head[: HEAD - _CRC.size]):
            raise wrong(f"{what} is damaged" if self.begins(head) else "it does not begin as one")
        return head

    def begins(self, head: bytes) -> bool:
        """Whether a header may be one of a backup that has been damaged."""
        return head.startswith((MAGIC, SECTION, END))

    def _exactly(self, count: int, what: str) -> bytes:
        found = bytearray()
        while len(found) < count:
            more = self._source.read(count - len(found))
            if not more:
                raise wrong(f"it ends in {what}")
            found += more
        self._sha.update(found)
        return bytes(found)


class _Section(io.RawIOBase):
    """The content of a section, up to its end and no further."""

    def __init__(self, chunk: Any) -> None:
        self._next = chunk
        self._data = b""
        self._over = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._data and not self._over:
            self._data = self._next()
            self._over = not self._data
        count = min(len(buffer), len(self._data))
        buffer[:count] = self._data[:count]
        self._data = self._data[count:]
        return count

    def skip(self) -> None:
        while not self._over:
            self._over = not self._next()


def _sealed(head: bytes) -> bytes:
    return head + _CRC.pack(zlib.crc32(head))
