"""The chains of disk layers of one store, kept short in the background, one at a time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from torpor.vm.disk import Layer
from torpor.vm.errors import VmError
from torpor.vm.flatten import shorten, use_chains
from torpor.vm.manifest import Disks
from torpor.vm.new_snapshot import new_id
from torpor.vm.settling import use_for_disk
from torpor.vm.stoppable import to_the_end
from torpor.vm.store import Store


class Chains:
    """Shortens chains: of new snapshots when they are made durable, of others when it is started.

    Nobody waits for it who freezes or thaws. Killed at any moment it leaves a file that nothing
    reaches, and the chain as it was. ``collect`` removes what nothing reaches any more.
    """

    def __init__(
        self, store: Store, collect: Callable[[], object] = lambda: None, *, jailed: bool
    ) -> None:
        self._store = store
        self._collect = collect
        self._jailed = jailed
        self._merging = asyncio.Semaphore(1)
        self._task: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def shortened(self, disks: Disks) -> AsyncIterator[Disks]:
        """Give the shorter chains of disks, which are kept for the length of the block.

        One that cannot be merged stays as it is: it is slower, and no reason for a snapshot not to
        become durable.
        """
        with contextlib.ExitStack() as pins:
            root = await self._shorter(disks.root, pins)
            slots = [
                replace(each, layers=await self._shorter(each.layers, pins)) for each in disks.slots
            ]
            yield Disks(root, tuple(slots))

    async def _shorter(
        self, chain: tuple[Layer, ...], pins: contextlib.ExitStack
    ) -> tuple[Layer, ...]:
        name = new_id()
        pins.enter_context(self._store.pin(f"layers/{name}.qcow2"))
        async with self._merging:
            with contextlib.suppress(VmError, OSError):
                chain = await shorten(self._store, chain, name, jailed=self._jailed)
        return chain

    def start(self) -> None:
        """Begin to shorten deep chains of what is durable: of snapshots that were imported or are
        from before, and of disks that outlive machines."""
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
        shortened = False
        for snapshot in self._store.ids():
            await asyncio.sleep(0)  # there may be thousands, of which each is looked at
            with contextlib.suppress(VmError, OSError):  # told when it is thawed
                _, sums = self._store.durable_parts(snapshot)
                async with self.shortened(sums.now) as disks:
                    if disks != sums.now:
                        use = asyncio.to_thread(use_chains, self._store, snapshot, disks)
                        await to_the_end(use)
                        shortened = True
        for disk in self._store.heads.ids():
            await asyncio.sleep(0)
            with contextlib.suppress(VmError, OSError):
                shortened |= await self._shorten_disk(disk)
        if shortened:
            self._collect()

    async def _shorten_disk(self, disk: str) -> bool:
        """Shorten the chain of a disk that outlives machines, and return whether that was done; a
        machine that has it goes on with the old one."""
        now = self._store.heads.read(disk).now
        if now.durable:
            async with self.shortened(Disks(now.layers)) as disks:
                if disks.root != now.layers:
                    use = asyncio.to_thread(use_for_disk, self._store, disk, now.layers, disks.root)
                    await to_the_end(use)
                    return True
        return False
