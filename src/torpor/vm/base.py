"""Bases: guest memory as it is, in a sparse file that machines map and nobody ever writes.

All machines that come from one base share its pages through the page cache.
"""

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from torpor.vm.pages import PAGE, Mapping, Run, batches, read_pages, write_all

BLOCK = 64 << 10
"""The unit of a base's digest, in bytes."""
BATCH = 1024
_ZEROS = bytes(PAGE)
_ZERO_BLOCK = bytes(BLOCK)
_NOT_COPIED = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_SEALS = 0x0008 | 0x0004 | 0x0002 | 0x0001  # WRITE, GROW, SHRINK, SEAL: linux/fcntl.h


def data_spans(fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the (start, end) byte spans of ``fd`` between ``start`` and ``end`` that are not
    holes."""
    while start < end:
        try:
            data = os.lseek(fd, start, os.SEEK_DATA)
        except OSError:  # ENXIO: only a hole is left
            return
        if data >= end:
            return
        hole = min(os.lseek(fd, data, os.SEEK_HOLE), end)
        yield data, hole
        start = hole


def create_base(file: Path, size: int) -> None:
    """Make a base of ``size`` bytes of zeros."""
    with open(file, "xb") as new:
        os.ftruncate(new.fileno(), size)
    file.chmod(0o600)


def copy_base(source: Path, target: Path) -> None:
    """Copy a base, holes kept, without reading it through this process where the kernel can."""
    with open(source, "rb", buffering=0) as old, open(target, "xb", buffering=0) as new:
        size = os.fstat(old.fileno()).st_size
        os.ftruncate(new.fileno(), size)
        for start, end in data_spans(old.fileno(), 0, size):
            while start < end:
                start += _copy(old.fileno(), new.fileno(), start, end)
    target.chmod(0o600)


def link_or_copy(source: Path, target: Path) -> None:
    """Make ``target`` a hard link to ``source``; on another file system a copy of the same mode."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy_base(source, target)
        target.chmod(source.stat().st_mode & 0o777)


def _copy(old: int, new: int, start: int, end: int) -> int:
    """Copy some of the bytes from ``start`` to ``end``, at least one; return how many."""
    try:
        copied = os.copy_file_range(old, new, end - start, start, start)
    except OSError as error:
        if error.errno not in _NOT_COPIED:  # between two file systems, for example
            raise
        copied = _send(old, new, start, end)
    if copied == 0:
        raise OSError(errno.EIO, "a base became shorter while it was copied")
    return copied


def _send(old: int, new: int, start: int, end: int) -> int:
    os.lseek(new, start, os.SEEK_SET)
    return os.sendfile(new, old, start, min(end - start, 1 << 30))


def write_into_base(file: Path, mapping: Mapping, runs: list[Run]) -> None:
    """Write the pages of ``runs`` at their places into the base ``file``, zeros as holes if they
    are new."""
    buffer = bytearray(BATCH * PAGE)
    view = memoryview(buffer)
    fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        for batch in batches(runs, BATCH):
            read_pages(mapping, batch, buffer)
            offset = 0
            for first, count in batch:
                size = count * PAGE
                _write_span(fd, first * PAGE, view[offset : offset + size])
                offset += size
    finally:
        os.close(fd)


def _write_span(fd: int, address: int, span: memoryview) -> None:
    start = 0
    for offset in range(0, len(span), PAGE):
        page = span[offset : offset + PAGE]
        if (
            bytes(page[:16]) == _ZEROS[:16]
            and page == _ZEROS
            and not _holds_data(fd, address + offset)
        ):
            if start < offset:
                write_all(fd, span[start:offset], address + start)
            start = offset + PAGE
    if start < len(span):
        write_all(fd, span[start:], address + start)


def _holds_data(fd: int, address: int) -> bool:
    return next(data_spans(fd, address, address + PAGE), None) is not None


def data_blocks(fd: int, first: int = 0) -> Iterator[tuple[int, bytearray]]:
    """Yield number and content of each block of ``fd`` from ``first`` on that is not all zeros.

    A block has 64 KiB, the last one filled up with zeros; the buffer is valid until the next.
    """
    size = os.fstat(fd).st_size
    buffer = bytearray(BLOCK)
    done = first
    for start, end in data_spans(fd, first * BLOCK, size):
        last = -(-end // BLOCK)
        for block in range(max(done, start // BLOCK), last):
            length = os.preadv(fd, [buffer], block * BLOCK)
            if length < BLOCK:
                buffer[length:] = bytes(BLOCK - length)
            if buffer != _ZERO_BLOCK:
                yield block, buffer
        done = max(done, last)


def digest_base(fd: int) -> str:
    """Return the SHA-256 of a base, the same however its zeros are stored.

    It is over (u64 block number, block) for each block of 64 KiB that is not all zeros, then the
    size.
    """
    return count_and_digest(fd)[1]


def count_and_digest(fd: int) -> tuple[int, str]:
    """Return how many blocks of ``fd`` are not all zeros, and its digest."""
    sha = hashlib.sha256()
    count = 0
    for block, content in data_blocks(fd):
        sha.update(block.to_bytes(8, "little"))
        sha.update(content)
        count += 1
    sha.update(os.fstat(fd).st_size.to_bytes(8, "little"))
    return count, sha.hexdigest()


def seal_base(source: int) -> int:
    """Return a descriptor of a sealed in-memory copy of the base behind ``source``.

    For QEMU before 8.2, which opens a privately mapped file for writing and may punch holes into
    it: with F_SEAL_WRITE, SHRINK and GROW nobody can (memfd_create(2)). Costs the base's size in
    shared memory, once for all machines that map it.
    """
    size = os.fstat(source).st_size
    fd = os.memfd_create("torpor-base", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        for start, end in data_spans(source, 0, size):
            while start < end:
                sent = _send(source, fd, start, end)
                if sent == 0:
                    raise OSError(errno.EIO, "a base became shorter while it was copied")
                start += sent
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd
