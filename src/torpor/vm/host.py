"""The host: all machines and snapshots under one directory, and the only thing that starts
machines.

What crosses this seam is plain data and handles: ids, manifests, machines. Machines outlive the
program; the next one that opens the directory adopts them.
"""

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torpor.vm import manifest as documents
from torpor.vm.accelerator import QEMU, Accelerator
from torpor.vm.aftermath import Aftermath, Kernels
from torpor.vm.agent import AgentCode, Identity
from torpor.vm.bases import OpenBases
from torpor.vm.cgroups import find_groups
from torpor.vm.chains import Chains
from torpor.vm.durability import Durability
from torpor.vm.errors import HostError, VmError, told
from torpor.vm.flatten import DEPTH
from torpor.vm.freeze import Frozen, freeze
from torpor.vm.home import home_id, take_lock
from torpor.vm.hooks import HookLimits
from torpor.vm.jail import Jail, end_all, pick_uid
from torpor.vm.lasting import LastingDisks
from torpor.vm.launch import Boot
from torpor.vm.leftovers import Leftovers
from torpor.vm.machine import Machine
from torpor.vm.manifest import RECORD, MachineRecord
from torpor.vm.new_snapshot import Wanted
from torpor.vm.processes import find_by_prefix, users_of_processes
from torpor.vm.recovery import Recovered, recover_machine
from torpor.vm.shape import check_fits, free_memory_bytes
from torpor.vm.store import Collected, Store
from torpor.vm.thaw import BootWanted, Site, ThawEvent, boot, thaw
from torpor.vm.wire import Link, Links

AT_ONCE = max(4, 2 * (os.cpu_count() or 1))
"""Machines of a fork that are started at the same time; more would only wait for each other."""
MOST_CHILDREN = 64
DEEPEST = DEPTH + 4
"""Layers of a disk from which on a thaw waits until the snapshot's chain has been shortened."""


class Host:
    """A directory of machines and snapshots. Make it with :meth:`open`."""

    def __init__(
        self, home: Path, site: Site, lock: int, kernels: Kernels | None, keep_disks: bool
    ) -> None:
        self.home = home
        self.store = site.store
        self.links = site.links
        """What network cards are connected to is made by it; None if they are to nothing."""
        self.machines: dict[str, Machine] = {}
        self.recovered: tuple[Recovered, ...] = ()
        self._site = site
        self._lock = lock
        self._starting: set[int] = set()
        self.chains = Chains(site.store, self.collect, jailed=site.jail.namespaces)
        self.disks = LastingDisks(site.store, self.chains, self.machines, self.collect)
        self._durability = Durability(site.store, self.chains)
        self._aftermath = Aftermath(site, kernels, keep_disks, self._durability.begin)

    @classmethod
    async def open(
        cls,
        home: Path,
        accelerator: Accelerator,
        jail: Jail,
        *,
        golden: Store | None = None,
        agent: AgentCode | None = None,
        clock: Callable[[], int] = time.time_ns,
        wait: bool = False,
        kernels: Kernels | None = None,
        keep_disks: bool = True,
        lock: int | None = None,
        links: Links | None = None,
    ) -> "Host":
        """Open ``home``, adopt the machines that run there, and clean up after a crash.

        ``golden`` is another store to thaw from, ``agent`` the guest agent that machines shall have
        after a thaw, whatever their snapshots have. ``kernels`` finds what boots a machine again
        that was rebooted from inside; without it a reboot is the end of a machine. ``keep_disks``
        says whether the disk of a machine that ends by itself is kept, as a snapshot of files.
        ``lock`` is the home's lock, if the caller holds it (:func:`torpor.vm.home.locked`).
        ``links`` makes what network cards are connected to, and is closed with the host; without it
        machines that are booted have no card. Raises :exc:`HostError` if another program has it
        open, unless it is to ``wait`` for that.
        """
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = await take_lock(home, wait=wait) if lock is None else os.dup(lock)
        try:
            store = Store(home, golden)
            machines = home / "machines"
            machines.mkdir(exist_ok=True)
            name = f"torpor-{home_id(home)}-"
            bases = OpenBases(accelerator.qemu_version)
            left = Leftovers(end_all)
            site = Site(machines, name, store, accelerator, jail, bases, left, clock, agent, links)
            host = cls(home, site, lock, kernels, keep_disks)
            try:
                await host._recover()
                host.chains.start()
            except BaseException:
                for machine in host.machines.values():  # those that were adopted run on
                    await machine.disconnect()
                raise
        except BaseException:
            if links is not None:
                await links.close()
            os.close(lock)
            raise
        return host

    async def close(self) -> None:
        """Let go of all machines, which run on, after the snapshots under way are durable."""
        await self._durability.close()
        await self.chains.close()
        for machine in self.machines.values():
            await machine.disconnect()
        self.machines.clear()
        await self._site.leftovers.close()
        await self._site.bases.close()
        if self._site.links is not None:
            await self._site.links.close()
        os.close(self._lock)

    # Freeze and thaw

    async def boot(
        self, wanted: BootWanted, identity: Identity | None = None, *, link: Link | None = None
    ) -> Machine:
        """Start a machine from a disk. ``link`` is as of :meth:`thaw`. Raises :exc:`VmError`, and
        leaves nothing behind then."""
        check_fits(wanted.shape, free_bytes=_free_memory())
        with self._uid() as uid, self._cleaned():
            return self._enter(await boot(self._site, wanted, identity, uid, link))

    async def boot_files(
        self,
        snapshot: str,
        kernel: Boot,
        identity: Identity | None = None,
        labels: Mapping[str, str] | None = None,
        disk: str | None = None,
        link: Link | None = None,
    ) -> Machine:
        """Start a new machine from a snapshot's files alone, whatever made it. ``labels``, ``disk``
        and ``link`` are as of :meth:`thaw`."""
        found = await asyncio.to_thread(self.store.verify, snapshot)
        wanted = BootWanted(
            found.shape,
            self.store.disks(found),
            found.tools,
            found.guest,
            kernel,
            snapshot=snapshot,
            generation=found.generation,
            labels=labels or {},
            disk=disk,
        )
        with self.disks.given(disk):
            return await self._started(await self.boot(wanted, identity, link=link))

    async def thaw(
        self,
        snapshot: str,
        identity: Identity | None = None,
        *,
        event: ThawEvent | None = None,
        hooks: HookLimits | None = None,
        labels: Mapping[str, str] | None = None,
        disk: str | None = None,
        link: Link | None = None,
    ) -> Machine:
        """Start a machine from a snapshot, as it was, or as somebody else with ``identity``.

        ``event`` is what its hooks are told, ``hooks`` how long they may take. ``labels`` say whose
        machine it is; they are kept with it as long as it runs, over restarts of the program.
        ``disk`` is the disk that outlives it and that it is to have: one machine at a time has one
        (:func:`torpor.vm.disks.attach`). ``link`` is what its network card is to be connected to;
        it stays the caller's, to be closed after the machine has ended, or used for the next.
        Without it the machine has one of its own, at which nobody listens
        (:attr:`Machine.wired`). Raises :exc:`VmError`, and leaves nothing behind then.
        """
        if (
            self._durability.under_way(snapshot)
            and self.store.manifest(snapshot).first.depth > DEEPEST
        ):
            await self.durable(snapshot)
        with self.disks.given(disk), self._uid() as uid, self._cleaned():
            machine = await thaw(
                self._site, snapshot, identity, uid, event, hooks, labels, disk, link
            )
            return await self._started(self._enter(machine))

    async def _started(self, machine: Machine) -> Machine:
        try:
            await self.disks.note_start(machine)
        except BaseException:
            await asyncio.shield(self.end(machine))
            raise
        return machine

    async def freeze(self, machine: Machine, wanted: Wanted) -> Frozen:
        """Make a snapshot; it becomes durable in the background, see :meth:`durable`.

        Raises :exc:`FreezeError`, the machine running on as before.
        """
        frozen = await freeze(machine, self.store, wanted)
        if wanted.then == "stop":
            await machine.remove()
        else:
            await self.disks.note_snapshot(frozen.manifest)
        self._durability.begin(frozen.manifest.id)
        return frozen

    async def durable(self, snapshot: str, *, hurry: bool = True) -> None:
        """Return when a snapshot survives a power cut; ``hurry`` as in :meth:`Durability.reached`.
        Raises :exc:`SnapshotError` or OSError."""
        await self._durability.reached(snapshot, hurry=hurry)

    async def fork(self, machine: Machine, count: int) -> "Forked":
        """Make ``count`` new machines out of one that runs on.

        A child that could not be started is an error in its place; the others live. The snapshot
        that they come from stays. Raises :exc:`HostError` if ``count`` is not 1 to 64.
        """
        if not 1 <= count <= MOST_CHILDREN:
            raise HostError(
                f"A machine cannot be forked into {count}.",
                state="Nothing was changed.",
                todo=f"Ask for 1 to {MOST_CHILDREN} children at a time.",
            )
        frozen = await self.freeze(machine, Wanted("run", children=count, event="fork"))
        return Forked(frozen, await self.thaw_many(frozen.manifest.id, count))

    async def thaw_many(self, snapshot: str, count: int) -> list["Machine | VmError"]:
        """Start ``count`` machines with identities of their own from one snapshot."""

        at_once = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> Machine | VmError:
            try:
                async with at_once:
                    name = f"{snapshot[-8:]}-{number}"
                    return await self.thaw(snapshot, Identity.of(name), event="fork")
            except VmError as error:
                return error

        return list(await asyncio.gather(*(one(number) for number in range(count))))

    # Snapshots

    async def remove(self, snapshot: str) -> Collected:
        """Remove a snapshot and what only it needed. Raises :exc:`SnapshotError`."""
        await self.settled(snapshot)
        self.store.remove(snapshot)
        return self.collect()

    async def settled(self, snapshot: str) -> None:
        """Return when nothing is at work on a snapshot in the background."""
        await self._durability.settled(snapshot)

    async def forget_base(self, base: str) -> None:
        """Let go of a base: no copy of it is left in this program."""
        await self._site.bases.forget(base)

    def collect(self) -> Collected:
        """Remove what neither a snapshot nor a machine reaches."""
        return self.store.collect(self.used())

    def used(self) -> list[str]:
        """Return the store paths that machines need. (The store knows what disks that outlive
        machines do.)"""
        return [name for record in self._records() for name in record.uses()]

    # Machines

    async def end(self, machine: Machine) -> None:
        """End a machine and forget it; its state since its last snapshot is lost. Raises
        :exc:`VmError` and OSError if it cannot be ended now: it is still this host's then."""
        await machine.remove()
        self.machines.pop(machine.id, None)
        self.collect()

    def _enter(self, machine: Machine) -> Machine:
        self.machines[machine.id] = machine
        machine.succeed_with(self._aftermath.decide)
        machine.on_end(self._forget)
        return machine

    def _forget(self, machine: Machine, _reason: VmError) -> None:
        self.machines.pop(machine.id, None)
        shutil.rmtree(machine.directory, ignore_errors=True)
        self.collect()

    @contextlib.contextmanager
    def _cleaned(self) -> Iterator[None]:
        """Leave nothing of a machine that cannot be started; tell the system's refusal as ours."""
        try:
            yield
        except BaseException as error:
            self.collect()
            if isinstance(error, OSError):
                raise HostError(
                    f"A machine could not be started: {told(error)}", state="Nothing of it is left."
                ) from error
            raise

    @contextlib.contextmanager
    def _uid(self) -> Iterator[int]:
        """Pick a user id that no machine has, not even one that is only being started."""
        given = {record.uid for record in self._records()} | self._starting
        # Those of other homes' machines too: the limits of a user would be shared with them.
        uid = pick_uid(given | users_of_processes(), home_id(self.home))
        self._starting.add(uid)
        try:
            yield uid
        finally:
            self._starting.discard(uid)

    def _records(self) -> Iterator[MachineRecord]:
        """Yield the records of all machines, those that are only being started too."""
        for entry in self._site.directory.iterdir():
            with contextlib.suppress(VmError, OSError):
                yield documents.read(MachineRecord, entry / RECORD)

    def processes(self) -> list[int]:
        """Return the QEMU processes of this host's directory, found by name, known or not."""
        return [process.pid for process in find_by_prefix(self._site.name, (QEMU,))]

    # After a crash

    async def _recover(self) -> None:
        left = sorted(self._site.directory.iterdir())
        groups = await asyncio.to_thread(find_groups, self._site.name)
        recovered = []
        for directory in left:
            done, machine = await recover_machine(self._site, self._aftermath, directory, groups)
            recovered.append(done)
            if machine is not None:
                self._enter(machine)
        self.recovered = tuple(recovered)
        if not self.machines:
            await end_all(self._site.name)  # started by a program killed before it noted them
        for name in groups.keys() - {machine.record.name for machine in self.machines.values()}:
            with contextlib.suppress(OSError):  # a process that cannot be ended: tried again then
                await groups[name].remove()
        self.collect()
        for snapshot in self.store.ids():
            if not self.store.durable(snapshot):
                with contextlib.suppress(
                    VmError, OSError
                ):  # it is as it was, and is told at a thaw
                    await asyncio.to_thread(self.store.verify, snapshot)
                    await self._durability.make(snapshot)
        await self.disks.settle()
        self.collect()  # what is superfluous now that this is durable


@dataclass(frozen=True)
class Forked:
    """A fork: the snapshot it went through, and each child or why it did not come."""

    frozen: Frozen
    children: "list[Machine | VmError]"


def _free_memory() -> int:
    return free_memory_bytes(Path("/proc/meminfo").read_text())
