"""The pages that a guest has written, found and copied from outside its process.

Guest memory is a private mapping (MAP_PRIVATE) of an immutable base. A page that the guest has not
written is a page of the base, shared with everyone who maps it; one that it has written is an
anonymous copy. So the written pages are those that the process's page map shows as present or
swapped and not as file pages. No dirty logging is involved, and reading costs the machine nothing.
"""

import array
import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torpor.vm.errors import HostError

PAGE = 4096
"""Bytes in a page; Torpor runs on x86-64 only."""


class Run(NamedTuple):
    """``length`` pages in a row from page number ``first`` of the guest's memory."""

    first: int
    length: int


class Mapping(NamedTuple):
    """Where a process maps guest memory: addresses in bytes, as in ``/proc/<pid>/maps``."""

    pid: int
    start: int
    end: int


def find_mapping(pid: int, file: tuple[int, int], size: int) -> Mapping:
    """Find the private mapping of ``size`` bytes of a file.

    ``file`` is its device and inode: its path is the jail's.

    Raises :exc:`HostError` if there is none.
    """
    device = f"{os.major(file[0]):02x}:{os.minor(file[0]):02x}"
    with open(f"/proc/{pid}/maps", errors="replace") as maps:  # names of files may be any bytes
        for line in maps:
            span, mode, offset, dev, inode = line.split(maxsplit=5)[:5]
            if dev != device or int(inode) != file[1] or int(offset, 16) or mode[3] != "p":
                continue
            start, end = (int(address, 16) for address in span.split("-"))
            if end - start == size:
                return Mapping(pid, start, end)
    raise HostError(
        f"The guest memory of process {pid} was not found.", todo="Run `torpor doctor`."
    )


# Finding


def written_runs(mapping: Mapping) -> list[Run]:
    """Return the runs of pages that the guest has written, in order. Raises OSError."""
    try:
        spans = list(_scan_ioctl(mapping))
    except OSError:  # Linux before 6.7
        spans = list(_scan_words(mapping))
    return [Run((s - mapping.start) // PAGE, (e - s) // PAGE) for s, e in spans]


# struct pm_scan_arg and PAGEMAP_SCAN, Documentation/admin-guide/mm/pagemap.rst
_SCAN_ARG = struct.Struct("=12Q")
_PAGEMAP_SCAN = 0xC0606610
_IS_FILE, _IS_PRESENT, _IS_SWAPPED = 1 << 2, 1 << 3, 1 << 4
_REGIONS = 512
"""Regions asked for at a time. The kernel collects them 512 at a time (``fs/proc/task_mmu.c``);
asked for more, Linux 6.18 says that it stopped where the first 512 ended, and gives the others
twice."""


def _scan_ioctl(mapping: Mapping) -> Iterator[tuple[int, int]]:
    regions = (ctypes.c_uint64 * (3 * _REGIONS))()
    position = mapping.start
    last: tuple[int, int] | None = None
    fd = os.open(f"/proc/{mapping.pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        while position < mapping.end:
            argument = bytearray(
                _SCAN_ARG.pack(
                    _SCAN_ARG.size,
                    0,
                    position,
                    mapping.end,
                    0,  # walk_end, written by the kernel
                    ctypes.addressof(regions),
                    _REGIONS,
                    0,  # no limit of pages
                    _IS_FILE,  # inverted: wanted are pages that are not file pages
                    _IS_FILE,
                    _IS_PRESENT | _IS_SWAPPED,  # any of these
                    0,  # nothing of it returned, so that neighbours merge
                )
            )
            count = fcntl.ioctl(fd, _PAGEMAP_SCAN, argument)
            for i in range(count):
                start, end = regions[3 * i], regions[3 * i + 1]
                if last is not None and start < last[1]:
                    raise HostError("The kernel lists the pages of a process out of order.")
                if last is not None and last[1] == start:
                    last = (last[0], end)
                    continue
                if last is not None:
                    yield last
                last = (start, end)
            position = _SCAN_ARG.unpack(argument)[4]
    finally:
        os.close(fd)
    if last is not None:
        yield last


_PRESENT, _SWAPPED, _FILE = 1 << 63, 1 << 62, 1 << 61


def _scan_words(mapping: Mapping) -> Iterator[tuple[int, int]]:
    start: int | None = None
    address = mapping.start
    with open(f"/proc/{mapping.pid}/pagemap", "rb", buffering=0) as pagemap:
        pagemap.seek(address // PAGE * 8)
        while address < mapping.end:
            words = array.array(
                "Q", pagemap.read(min(1 << 20, (mapping.end - address) // PAGE * 8))
            )
            if not words:  # its memory is gone: what was found so far is not all
                raise ProcessLookupError(errno.ESRCH, "the process has ended", pagemap.name)
            for word in words:
                written = word & (_PRESENT | _SWAPPED) and not word & _FILE
                if written and start is None:
                    start = address
                elif not written and start is not None:
                    yield start, address
                    start = None
                address += PAGE
    if start is not None:
        yield start, address


# Copying

_libc = ctypes.CDLL(None, use_errno=True)
_IOV_MAX = 1024


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def batches(runs: Iterable[Run], pages: int) -> Iterator[list[Run]]:
    """Group runs into batches of at most ``pages`` pages, splitting long ones."""
    batch: list[Run] = []
    room = pages
    for first, length in runs:
        while length:
            take = min(length, room)
            batch.append(Run(first, take))
            first, length, room = first + take, length - take, room - take
            if not room or len(batch) == _IOV_MAX:
                yield batch
                batch, room = [], pages
    if batch:
        yield batch


def read_pages(mapping: Mapping, batch: list[Run], buffer: bytearray) -> int:
    """Copy a batch of runs out of the process into ``buffer``; return the bytes. Raises OSError."""
    return _transfer(_libc.process_vm_readv, mapping, batch, buffer)


def write_pages(mapping: Mapping, batch: list[Run], buffer: bytearray) -> int:
    """Copy ``buffer`` into a batch of runs of the process; return the bytes. Raises OSError."""
    return _transfer(_libc.process_vm_writev, mapping, batch, buffer)


def _transfer(call: object, mapping: Mapping, batch: list[Run], buffer: bytearray) -> int:
    # One system call for up to 1,024 runs, one copy a page. /proc/<pid>/mem takes one call a run
    # and copies each page twice (mm/memory.c, __access_remote_vm through a bounce page).
    remote = (_Iovec * len(batch))()
    for i, (first, length) in enumerate(batch):
        remote[i].base = mapping.start + first * PAGE
        remote[i].length = length * PAGE
    wanted = sum(run.length for run in batch) * PAGE
    if wanted > len(buffer):
        raise ValueError(f"{wanted} bytes do not fit a buffer of {len(buffer)}")
    with _address(buffer) as base:
        done = 0
        index = 0
        while done < wanted:
            local = _Iovec(base + done, wanted - done)
            moved = call(  # type: ignore[operator]
                mapping.pid,
                ctypes.byref(local),
                ctypes.c_ulong(1),
                ctypes.byref(remote, index * ctypes.sizeof(_Iovec)),
                ctypes.c_ulong(len(batch) - index),
                ctypes.c_ulong(0),
            )
            if moved <= 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), "guest memory")
            done += moved
            while index < len(batch) and moved >= remote[index].length:
                moved -= remote[index].length
                index += 1
            if moved:
                remote[index].base += moved
                remote[index].length -= moved
    return done


@contextmanager
def _address(buffer: bytearray) -> Iterator[int]:
    exported = (ctypes.c_char * len(buffer)).from_buffer(buffer)
    try:
        yield ctypes.addressof(exported)
    finally:
        del exported


def write_all(fd: int, data: bytes | memoryview, position: int) -> None:
    """Write all of ``data`` at ``position`` of a file. Raises OSError."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, position)
        view = view[written:]
        position += written
