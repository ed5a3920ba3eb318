"""Deltas: the pages in which a machine's memory differs from its base (``docs/snapshots.md``).

header   64 bytes: magic "TORPORMD", u32 version, u32 page size, u64 memory bytes,
         u64 offset of the index, u64 count of index entries, zeros, u32 crc32 of the 60 bytes
         before
pages    from offset 4096, the pages of the data runs one after another
index    entries of u64 first page, u32 count, u32 kind (0: data, 1: zeros), u32 crc32 of all
entries
"""

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from torpor.vm.base import data_spans
from torpor.vm.errors import SnapshotError
from torpor.vm.pages import PAGE, Mapping, Run, batches, read_pages, write_all, write_pages

_HEADER = struct.Struct("<8sIIQQQ20x")
_CRC = struct.Struct("<I")
_ENTRY = struct.Struct("<QII")
_MAGIC = b"TORPORMD"
VERSION = 1
_DATA, _ZERO = 0, 1
_ENTRIES = 4096
BATCH = 1024
"""Pages copied at a time: 4 MiB, which stays in the last-level cache."""
_ZEROS = bytes(PAGE)


def write_delta(file: Path, mapping: Mapping, runs: list[Run]) -> int:
    """Write the pages of ``runs`` as a delta; return its size in bytes. Raises OSError.

    The process should be stopped. Nothing is forced to disk.
    """
    buffer = bytearray(BATCH * PAGE)
    view = memoryview(buffer)
    index: list[tuple[int, int, int]] = []
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        position = PAGE
        for batch in batches(runs, BATCH):
            read_pages(mapping, batch, buffer)
            position += _write_batch(fd, position, batch, buffer, view, index)
        entries = b"".join(_ENTRY.pack(*entry) for entry in index)
        write_all(fd, entries + _CRC.pack(zlib.crc32(entries)), position)
        header = _HEADER.pack(
            _MAGIC,
            VERSION,
            PAGE,
            mapping.end - mapping.start,
            position,
            len(entries) // _ENTRY.size,
        )
        write_all(fd, header + _CRC.pack(zlib.crc32(header)), 0)
        return position + len(entries) + _CRC.size
    finally:
        os.close(fd)


def _write_batch(
    fd: int,
    position: int,
    batch: list[Run],
    buffer: bytearray,
    view: memoryview,
    index: list[tuple[int, int, int]],
) -> int:
    """Write one batch's pages that are not zeros; note all in ``index``; return the bytes
    written."""
    pieces: list[memoryview] = []
    piece_start = offset = 0
    for first, count in batch:
        for page in range(first, first + count):
            zero = buffer.startswith(_ZEROS, offset)
            kind = _ZERO if zero else _DATA
            if index and index[-1][2] == kind and index[-1][0] + index[-1][1] == page:
                index[-1] = (index[-1][0], index[-1][1] + 1, kind)
            else:
                index.append((page, 1, kind))
            if zero:
                if piece_start < offset:
                    pieces.append(view[piece_start:offset])
                piece_start = offset + PAGE
            offset += PAGE
    if piece_start < offset:
        pieces.append(view[piece_start:offset])
    for piece in pieces:
        write_all(fd, piece, position)
        position += len(piece)
    return sum(map(len, pieces))


class Delta:
    """An open delta, its header and index checked."""

    def __init__(self, file: Path, memory_bytes: int, *, keep: bool = True) -> None:
        """Open ``file``; with ``keep`` false only to check it, in little memory.

        Raises :exc:`SnapshotError` if it is not a whole delta of this size.
        """
        try:
            self._fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _unreadable(file, error) from None
        try:
            self.data, self.zeros = self._read_index(file, memory_bytes, keep)
        except OSError as error:
            self.close()
            raise _unreadable(file, error) from None
        except BaseException:
            self.close()
            raise

    def _read_index(self, file: Path, memory_bytes: int, keep: bool) -> tuple[list[Run], list[Run]]:
        offset, count = self._read_header(file, memory_bytes)
        runs: tuple[list[Run], list[Run]] = ([], [])
        crc = end = pages = 0
        for entries in self._entries(offset, count):
            crc = zlib.crc32(entries, crc)
            for first, length, kind in _ENTRY.iter_unpack(entries):
                if kind not in (_DATA, _ZERO) or (first + length) * PAGE > memory_bytes:
                    raise _damaged(file, "its index points outside the memory")
                if first < end or not length:
                    raise _damaged(file, "its index is not in order")
                end = first + length
                pages += length if kind == _DATA else 0
                if keep:
                    runs[kind].append(Run(first, length))
        if os.pread(self._fd, _CRC.size, offset + count * _ENTRY.size) != _CRC.pack(crc):
            raise _damaged(file, "its index is wrong")
        if PAGE + pages * PAGE != offset:
            raise _damaged(file, "its pages do not fit its index")
        return runs

    def _read_header(self, file: Path, memory_bytes: int) -> tuple[int, int]:
        """Return where the index is, and its number of entries."""
        head = os.pread(self._fd, _HEADER.size + _CRC.size, 0)
        if len(head) < _HEADER.size + _CRC.size:
            raise _damaged(file, "it is too short")
        magic, version, page, size, offset, count = _HEADER.unpack_from(head)
        crc = _CRC.unpack_from(head, _HEADER.size)[0]
        if magic != _MAGIC or crc != zlib.crc32(head[: _HEADER.size]):
            raise _damaged(file, "its header is wrong")
        if version != VERSION:
            raise SnapshotError(
                f"The memory delta {file.name} has version {version}; this Torpor reads {VERSION}.",
                todo="Thaw it with the version that wrote it, or boot its disk.",
            )
        if page != PAGE or size != memory_bytes:
            raise _damaged(file, f"it is of {size} bytes of memory in pages of {page}")
        if os.fstat(self._fd).st_size != offset + count * _ENTRY.size + _CRC.size:
            raise _damaged(file, "it is not as long as its header says")
        return offset, count

    def _entries(self, offset: int, count: int) -> Iterator[bytes]:
        """Yield the entries of the index, some at a time: what says how many may be a lie."""
        end = offset + count * _ENTRY.size
        while offset < end:
            entries = os.pread(self._fd, min(_ENTRIES * _ENTRY.size, end - offset), offset)
            if not entries or len(entries) % _ENTRY.size:
                raise SnapshotError("The memory delta ended early.")
            yield entries
            offset += len(entries)

    def inject(self, mapping: Mapping, base: int) -> None:
        """Write the pages into a process that has not run yet, whose memory is ``base`` so far.

        Pages of zeros are written only where the base is not zero.
        """
        buffer = bytearray(BATCH * PAGE)
        view = memoryview(buffer)
        position = PAGE
        for batch in batches(self.data, BATCH):
            size = sum(run.length for run in batch) * PAGE
            if os.preadv(self._fd, [view[:size]], position) != size:
                raise SnapshotError("The memory delta ended early.")
            position += write_pages(mapping, batch, buffer)
        zeros = bytearray(BATCH * PAGE)
        for batch in batches(_not_holes(base, self.zeros), BATCH):
            write_pages(mapping, batch, zeros)

    def pages(self) -> Iterator[tuple[int, memoryview]]:
        """Yield (byte address, bytes) of the data runs in order; each view is valid until the
        next."""
        buffer = bytearray(BATCH * PAGE)
        view = memoryview(buffer)
        position = PAGE
        for first, count in self.data:
            for start in range(first, first + count, BATCH):
                size = min(BATCH, first + count - start) * PAGE
                if os.preadv(self._fd, [view[:size]], position) != size:
                    raise SnapshotError("The memory delta ended early.")
                position += size
                yield start * PAGE, view[:size]

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def check_delta(file: Path, memory_bytes: int) -> None:
    """Raise :exc:`SnapshotError` if ``file`` is not a whole delta of this size of memory."""
    Delta(file, memory_bytes, keep=False).close()


def _damaged(file: Path, what: str) -> SnapshotError:
    return SnapshotError(f"The memory delta {file.name} is damaged: {what}.")


def _unreadable(file: Path, error: OSError) -> SnapshotError:
    return SnapshotError(f"The memory delta {file.name} cannot be read: {error.strerror}.")


def _not_holes(base: int, runs: list[Run]) -> Iterator[Run]:
    for first, count in runs:
        start, end = first * PAGE, (first + count) * PAGE
        for data_start, data_end in data_spans(base, start, end):
            page = data_start // PAGE
            yield Run(page, -(-data_end // PAGE) - page)
