"""The bases in use: opened for QEMU once, shared by all machines that map them."""

import asyncio
import os
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from torpor.vm.base import seal_base
from torpor.vm.qemu import maps_read_only

KEEP_BYTES = max(1 << 30, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4)
"""Bytes of sealed copies that are kept for the next use: a quarter of the host's memory. What
running machines map, they keep themselves. A copy grows up to the size of a machine's memory: a
hole is filled when a machine first touches it."""
KEEP_OPEN = 32
"""Bases that are kept open, where that costs no memory."""


class OpenBases:
    """Descriptors of memory bases that QEMU can map and nobody can write."""

    def __init__(self, qemu_version: tuple[int, int, int]) -> None:
        self._read_only = maps_read_only(qemu_version)
        self._open: OrderedDict[str, asyncio.Future[int]] = OrderedDict()
        self._awaited: Counter[str] = Counter()

    @asynccontextmanager
    async def opened(self, base: str, file: Path) -> AsyncIterator[int]:
        """Open the base ``base``, kept in ``file``, for the length of the block. Raises OSError."""
        known = self._open.get(base)
        if known is None:
            known = asyncio.ensure_future(self._open_base(file))
            self._open[base] = known
        self._open.move_to_end(base)
        self._awaited[base] += 1
        try:
            fd = os.dup(await asyncio.shield(known))
        except OSError:
            self._open.pop(base, None)
            raise
        finally:
            self._awaited[base] -= 1
        self._trim()
        try:
            yield fd
        finally:
            os.close(fd)

    def empty(self, size: int) -> int:
        """Return a descriptor of ``size`` bytes of zeros, for a cold boot; it is the caller's."""
        source = os.memfd_create("torpor-empty", os.MFD_CLOEXEC)
        try:
            os.ftruncate(source, size)
            return seal_base(source)
        finally:
            os.close(source)

    async def _open_base(self, file: Path) -> int:
        source = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        if self._read_only:
            return source
        try:
            return await asyncio.to_thread(seal_base, source)
        finally:
            os.close(source)

    def _trim(self) -> None:
        """Close what has not been used for longest; whoever uses it has a descriptor of its own."""
        done = [
            (base, each.result())
            for base, each in self._open.items()
            if _opened(each) and not self._awaited[base]
        ]
        kept = sum(self._cost(fd) for _, fd in done)
        for base, fd in done[:-1]:
            if kept <= KEEP_BYTES and len(self._open) <= KEEP_OPEN:
                return
            kept -= self._cost(fd)
            del self._open[base]
            os.close(fd)

    def _cost(self, fd: int) -> int:
        return 0 if self._read_only else os.fstat(fd).st_blocks * 512

    async def forget(self, base: str) -> None:
        """Let go of a base: no copy of it is left here; machines keep theirs."""
        known = self._open.pop(base, None)
        if known is not None:
            with suppress(OSError):
                os.close(await known)

    async def close(self) -> None:
        """Close all descriptors; machines keep theirs."""
        while self._open:
            _, each = self._open.popitem()
            with suppress(OSError):
                os.close(await each)


def _opened(future: asyncio.Future[int]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
