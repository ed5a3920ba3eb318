"""Making snapshots durable in the background."""

import asyncio
import contextlib
import functools

from torpor.vm.chains import Chains
from torpor.vm.manifest import Disks, Manifest
from torpor.vm.settling import settle_with
from torpor.vm.stoppable import to_the_end
from torpor.vm.store import Store

FIRST_OTHERS = 0.1
"""Seconds for which a new snapshot is left alone if nobody waits for it. Whoever asked for it has
something to note then, and children to start; forcing and reading files would be in their way."""


class Durability:
    """The snapshots that are visible, and are being made durable."""

    def __init__(self, store: Store, chains: Chains) -> None:
        self._store = store
        self._chains = chains
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._hurry: dict[str, asyncio.Event] = {}

    def begin(self, snapshot: str) -> None:
        """Begin to make a new snapshot durable."""
        self._hurry[snapshot] = hurry = asyncio.Event()
        task = asyncio.create_task(self._soon(snapshot, hurry), name=f"durable {snapshot}")
        self._tasks[snapshot] = task
        task.add_done_callback(functools.partial(self._done, snapshot))

    def under_way(self, snapshot: str) -> bool:
        """Say whether that is not done yet."""
        return snapshot in self._tasks

    async def reached(self, snapshot: str, *, hurry: bool = True) -> None:
        """Return when a snapshot is durable; without ``hurry`` whatever is in its way goes first.
        Raises :exc:`SnapshotError` or OSError."""
        task = self._tasks.get(snapshot)
        if task is not None:
            if hurry:
                self._hurry[snapshot].set()
            await asyncio.shield(task)
        elif not self._store.durable(snapshot):
            await self.make(snapshot)

    async def settled(self, snapshot: str) -> None:
        """Return when nothing is at work on a snapshot, be it durable or not."""
        task = self._tasks.get(snapshot)
        if task is not None:
            self._hurry[snapshot].set()
            await asyncio.wait([task])

    async def close(self) -> None:
        """Return when nothing is at work any more."""
        for hurry in self._hurry.values():
            hurry.set()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def make(self, snapshot: str) -> None:
        """Make a snapshot durable now. Raises :exc:`SnapshotError` or OSError."""
        found = self._store.manifest(snapshot)
        async with self._chains.shortened(found.first) as disks:
            await to_the_end(asyncio.to_thread(self._make, found, disks))

    def _make(self, found: Manifest, disks: Disks) -> None:
        sums = self._store.make_durable(found.id, disks)
        settle_with(self._store, found, sums)

    async def _soon(self, snapshot: str, hurry: asyncio.Event) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_OTHERS):
                await hurry.wait()
        await self.make(snapshot)

    def _done(self, snapshot: str, task: asyncio.Task[None]) -> None:
        del self._tasks[snapshot], self._hurry[snapshot]
        if not task.cancelled():
            task.exception()  # taken note of: it is not durable, and whoever asks tries again
