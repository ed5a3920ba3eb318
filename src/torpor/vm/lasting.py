"""The disks of a host that outlive its machines: made, given to one machine at a time, taken back.

What each holds is in its head (:mod:`torpor.vm.heads`).
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping

from torpor.vm.chains import Chains
from torpor.vm.disks import make_disk
from torpor.vm.errors import HostError, VmError
from torpor.vm.handing_back import hand_back
from torpor.vm.machine import Machine
from torpor.vm.manifest import Manifest
from torpor.vm.settling import settle, settle_all
from torpor.vm.stoppable import to_the_end
from torpor.vm.store import Store

log = logging.getLogger(__name__)


class LastingDisks:
    """The disks of one host. ``machines`` are those that run, ``collect`` removes what nothing
    reaches any more."""

    def __init__(
        self,
        store: Store,
        chains: Chains,
        machines: Mapping[str, Machine],
        collect: Callable[[], object],
    ) -> None:
        self._store = store
        self._chains = chains
        self._machines = machines
        self._collect = collect
        self._giving: set[str] = set()

    async def make(self, disk: str, size: int) -> None:
        """Make a disk; see :func:`torpor.vm.disks.make_disk`."""
        await to_the_end(make_disk(self._store, disk, size))

    async def remove(self, disk: str) -> None:
        """Remove a disk, if there is one; snapshots keep what they have of it. Raises
        :exc:`HostError` if a machine has it, and OSError."""
        self._check_free(disk, "Nothing was changed.")
        await to_the_end(asyncio.to_thread(self._store.heads.remove, disk))
        self._collect()

    def holder(self, disk: str) -> Machine | None:
        """Return the machine that has a disk, or None."""
        return next((m for m in self._machines.values() if m.record.own_disk == disk), None)

    def _check_free(self, disk: str, state: str) -> None:
        if disk in self._giving or self.holder(disk) is not None:
            raise HostError(f"A machine has disk {disk}.", state=state)

    @contextlib.contextmanager
    def given(self, disk: str | None) -> Iterator[None]:
        """Keep a disk from being given to two machines, while one is started with it."""
        if disk is None:
            yield
            return
        self._check_free(disk, "Nothing was started.")
        self._giving.add(disk)
        try:
            yield
        finally:
            self._giving.discard(disk)

    async def note_start(self, machine: Machine) -> None:
        """Let the disk of a new machine hold what that was started with: it may be older than what
        it held. Raises OSError."""
        for each in machine.record.disks:
            if each.disk is not None:
                move = asyncio.to_thread(self._store.heads.move, each.disk, each.layers)
                await to_the_end(move)

    async def note_snapshot(self, made: Manifest) -> None:
        """Let disks hold what a snapshot says of a machine that runs on."""
        if not made.disks:
            return
        try:
            await to_the_end(asyncio.to_thread(self._store.heads.follow, made))
        except OSError as error:
            # The snapshot stands. The next freeze notes it, or whatever ends the machine.
            log.warning("what the disks of snapshot %s hold was not noted: %s", made.id, error)

    async def release(self, machine: Machine | None, disk: str) -> None:
        """Let a disk hold what a machine has made of it, and end the machine; the disk is durable
        then. Without a machine, or if it has ended, the disk holds what was kept of it.

        Raises :exc:`VmError` and OSError; a machine that runs then runs on.
        """
        if machine is not None and machine.running and machine.record.own_disk == disk:
            try:
                await hand_back(self._store, machine)
            except (VmError, OSError) as error:
                if isinstance(error, VmError):
                    await machine.explain(error)
                if machine.running:
                    raise
        await to_the_end(asyncio.to_thread(settle, self._store, disk))
        self._chains.start()
        self._collect()

    async def settle(self) -> None:
        """Make durable what disks hold that an earlier program has left. What cannot be is told
        when it is used."""
        self._store.heads.clean()
        records = [machine.record for machine in self._machines.values()]
        await asyncio.to_thread(settle_all, self._store, records)
