"""The bases in use: opened for QEMU once, shared by all machines that map them."""

import asyncio
import os
from collections import OrderedDict
from pathlib import Path

from torpor.vm.base import seal_base
from torpor.vm.qemu import maps_read_only

KEPT = 8
"""Bases that stay open after their last use; those of running machines QEMU keeps open itself."""


class OpenBases:
    """Descriptors of memory bases that QEMU can map and nobody can write."""

    def __init__(self, qemu_version: tuple[int, int, int]) -> None:
        self._read_only = maps_read_only(qemu_version)
        self._open: OrderedDict[str, asyncio.Future[int]] = OrderedDict()

    async def get(self, base: str, file: Path) -> int:
        """Return a descriptor of the base; it belongs to this object. Raises OSError."""
        known = self._open.get(base)
        if known is None:
            known = asyncio.ensure_future(self._open_base(file))
            self._open[base] = known
        self._open.move_to_end(base)
        try:
            fd = await asyncio.shield(known)
        except OSError:
            self._open.pop(base, None)
            raise
        await self._trim()
        return fd

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

    async def _trim(self) -> None:
        while len(self._open) > KEPT:
            _, oldest = self._open.popitem(last=False)
            os.close(await oldest)

    async def close(self) -> None:
        """Close all descriptors; machines keep theirs."""
        while self._open:
            _, each = self._open.popitem()
            os.close(await each)
