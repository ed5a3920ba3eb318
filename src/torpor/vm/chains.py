"""The chains of disk layers of one store, kept short in the background, one at a time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from torpor.vm.disk import Layer
from torpor.vm.errors import VmError
from torpor.vm.flatten import shorten, use_chain
from torpor.vm.manifest import Manifest
from torpor.vm.new_snapshot import new_id
from torpor.vm.stoppable import to_the_end
from torpor.vm.store import Store


class Chains:
    """Shortens chains: of new snapshots when they are made durable, of others when it is started.

    Nobody waits for it who freezes or thaws. Killed at any moment it leaves a file that nothing
    reaches, and the chain as it was.
    """

    def __init__(self, store: Store, *, jailed: bool) -> None:
        self._store = store
        self._jailed = jailed
        self._merging = asyncio.Semaphore(1)
        self._task: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def shortened(
        self, found: Manifest, disk: tuple[Layer, ...]
    ) -> AsyncIterator[tuple[Layer, ...]]:
        """Give the shorter chain of a disk, which is kept for the length of the block.

        One that cannot be merged stays as it is: it is slower, and no reason for a snapshot not to
        become durable.
        """
        name = new_id()
        with self._store.pin(f"layers/{name}.qcow2"):
            async with self._merging:
                with contextlib.suppress(VmError, OSError):
                    disk = await shorten(self._store, found, disk, name, jailed=self._jailed)
            yield disk

    def start(self) -> None:
        """Begin to shorten deep chains of snapshots that are durable: imported, or from before."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._shorten_all(), name="shorten chains")

    async def done(self) -> None:
        """Return when what :meth:`start` began has been done."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def close(self) -> None:
        """Stop; what is half merged is removed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _shorten_all(self) -> None:
        for snapshot in self._store.ids():
            await asyncio.sleep(0)  # there may be thousands, of which each is looked at
            with contextlib.suppress(VmError, OSError):  # told when it is thawed
                found, sums = self._store.durable_parts(snapshot)
                async with self.shortened(found, sums.disk) as disk:
                    if disk != sums.disk:
                        await to_the_end(asyncio.to_thread(use_chain, self._store, snapshot, disk))
