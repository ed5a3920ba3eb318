"""The host: all machines and snapshots under one directory, and the only thing that starts
machines.

What crosses this seam is plain data and handles: ids, manifests, machines. Machines outlive the
program; the next one that opens the directory adopts them.
"""

import asyncio
import contextlib
import fcntl
import functools
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torpor.vm import manifest as documents
from torpor.vm.accelerator import QEMU, Accelerator
from torpor.vm.agent import Identity
from torpor.vm.bases import OpenBases
from torpor.vm.cgroups import Group, find_groups
from torpor.vm.detach import detach_layer
from torpor.vm.disk import Layer, node_name
from torpor.vm.errors import HostError, VmError, told
from torpor.vm.flatten import DEPTH, shorten
from torpor.vm.freeze import Frozen, freeze
from torpor.vm.jail import Jail, end_all, pick_uid
from torpor.vm.launch import Boot
from torpor.vm.machine import RECORD, Machine
from torpor.vm.manifest import MachineRecord
from torpor.vm.new_snapshot import Wanted, new_id
from torpor.vm.processes import find_by_prefix
from torpor.vm.shape import check_fits, free_memory_bytes
from torpor.vm.store import Collected, Store
from torpor.vm.thaw import BootWanted, Site, boot, thaw

AT_ONCE = max(4, 2 * (os.cpu_count() or 1))
"""Machines of a fork that are started at the same time; more would only wait for each other."""
MOST_CHILDREN = 64
DEEPEST = DEPTH + 4
"""Layers of a disk from which on a thaw waits until the snapshot's chain has been shortened."""


@dataclass(frozen=True)
class Recovered:
    """What opening a host found and did with one machine that an earlier program had left."""

    machine: str
    outcome: Literal["adopted", "ended", "removed"]
    why: str


class Host:
    """A directory of machines and snapshots. Make it with :meth:`open`."""

    def __init__(self, home: Path, site: Site, lock: int) -> None:
        self.home = home
        self.store = site.store
        self.machines: dict[str, Machine] = {}
        self.recovered: tuple[Recovered, ...] = ()
        self._site = site
        self._lock = lock
        self._starting: set[int] = set()
        self._committing: dict[str, asyncio.Task[None]] = {}

    @classmethod
    async def open(
        cls,
        home: Path,
        accelerator: Accelerator,
        jail: Jail,
        *,
        golden: Store | None = None,
        clock: Callable[[], int] | None = None,
        wait: bool = False,
    ) -> "Host":
        """Open ``home``, adopt the machines that run there, and clean up after a crash.

        ``golden`` is another store to thaw from. Raises :exc:`HostError` if another program has it
        open, unless it is to ``wait`` for that.
        """
        home.mkdir(parents=True, exist_ok=True)
        lock = await _take_lock(home, wait=wait)
        try:
            store = Store(home, golden)
            machines = home / "machines"
            machines.mkdir(exist_ok=True)
            name = f"torpor-{_home_id(home)}-"
            bases = OpenBases(accelerator.qemu_version)
            site = Site(machines, name, store, accelerator, jail, bases)
            if clock is not None:
                site = Site(machines, name, store, accelerator, jail, bases, clock)
            host = cls(home, site, lock)
            await host._recover()
        except BaseException:
            os.close(lock)
            raise
        return host

    async def close(self) -> None:
        """Let go of all machines, which run on, after the snapshots under way are durable."""
        await asyncio.gather(*self._committing.values(), return_exceptions=True)
        for machine in self.machines.values():
            await machine.disconnect()
        self.machines.clear()
        await self._site.bases.close()
        os.close(self._lock)

    # Freeze and thaw

    async def boot(self, wanted: BootWanted, identity: Identity | None = None) -> Machine:
        """Start a machine from a disk. Raises :exc:`VmError`, and leaves nothing behind then."""
        check_fits(wanted.shape, free_bytes=_free_memory())
        with self._uid() as uid, self._cleaned():
            return self._enter(await boot(self._site, wanted, identity, uid))

    async def boot_files(
        self, snapshot: str, kernel: Boot, identity: Identity | None = None
    ) -> Machine:
        """Start a new machine from a snapshot's files alone, whatever made it."""
        found = await asyncio.to_thread(self.store.verify, snapshot)
        wanted = BootWanted(
            found.shape,
            self.store.disk(found),
            found.tools,
            found.guest,
            kernel,
            snapshot=snapshot,
            generation=found.generation,
        )
        return await self.boot(wanted, identity)

    async def thaw(self, snapshot: str, identity: Identity | None = None) -> Machine:
        """Start a machine from a snapshot, as it was, or as somebody else with ``identity``.

        Raises :exc:`VmError`, and leaves nothing behind then.
        """
        if snapshot in self._committing and len(self.store.manifest(snapshot).disk) > DEEPEST:
            await self.durable(snapshot)
        with self._uid() as uid, self._cleaned():
            return self._enter(await thaw(self._site, snapshot, identity, uid))

    async def freeze(self, machine: Machine, wanted: Wanted) -> Frozen:
        """Make a snapshot; it becomes durable in the background, see :meth:`durable`.

        Raises :exc:`FreezeError`, the machine running on as before.
        """
        frozen = await freeze(machine, self.store, wanted)
        if wanted.then == "stop":
            await machine.remove()
        snapshot = frozen.manifest.id
        task = asyncio.create_task(self._make_durable(snapshot), name=f"durable {snapshot}")
        self._committing[snapshot] = task
        task.add_done_callback(functools.partial(self._committed, snapshot))
        return frozen

    def _committed(self, snapshot: str, task: asyncio.Task[None]) -> None:
        self._committing.pop(snapshot, None)
        if not task.cancelled():
            task.exception()  # taken note of: it is not durable, and durable() tries again

    async def _make_durable(self, snapshot: str) -> None:
        found = self.store.manifest(snapshot)
        name = new_id()
        with self.store.pin(f"layers/{name}.qcow2"):
            disk = await shorten(self.store, found, name)
            await asyncio.to_thread(self.store.make_durable, snapshot, disk)

    async def durable(self, snapshot: str) -> None:
        """Return when a snapshot survives a power cut. Raises :exc:`SnapshotError` or OSError."""
        task = self._committing.get(snapshot)
        if task is not None:
            await asyncio.shield(task)
        elif not self.store.durable(snapshot):
            await self._make_durable(snapshot)

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
        frozen = await self.freeze(machine, Wanted("run", children=count))
        return Forked(frozen, await self.thaw_many(frozen.manifest.id, count))

    async def thaw_many(self, snapshot: str, count: int) -> list["Machine | VmError"]:
        """Start ``count`` machines with identities of their own from one snapshot."""

        at_once = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> Machine | VmError:
            try:
                async with at_once:
                    return await self.thaw(snapshot, Identity.of(f"{snapshot[-8:]}-{number}"))
            except VmError as error:
                return error

        return list(await asyncio.gather(*(one(number) for number in range(count))))

    # Snapshots

    async def remove(self, snapshot: str) -> Collected:
        """Remove a snapshot and what only it needed. Raises :exc:`SnapshotError`."""
        task = self._committing.get(snapshot)
        if task is not None:
            await asyncio.wait([task])
        self.store.remove(snapshot)
        return self.collect()

    def collect(self) -> Collected:
        """Remove what neither a snapshot nor a machine reaches."""
        return self.store.collect([name for record in self._records() for name in record.uses()])

    # Machines

    async def end(self, machine: Machine) -> None:
        """End a machine and forget it; its state since its last snapshot is lost."""
        await machine.remove()
        self.machines.pop(machine.id, None)
        self.collect()

    def _enter(self, machine: Machine) -> Machine:
        self.machines[machine.id] = machine
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
        uid = pick_uid({record.uid for record in self._records()} | self._starting)
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
        self.recovered = tuple([await self._recover_machine(each, groups) for each in left])
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
                    await self._make_durable(snapshot)

    async def _recover_machine(self, directory: Path, groups: dict[str, Group]) -> Recovered:
        try:
            record = documents.read(MachineRecord, directory / RECORD)
        except (VmError, OSError) as error:
            return await self._discard(directory, f"its record cannot be read: {error}")
        if record.name != f"{self._site.name}{directory.name}":
            # Of a home that this one was copied from: the process, if there is one, is that one's.
            return await self._discard(directory, "it belongs to another home")
        ending = record.ending is not None and record.ending in self.store.ids()
        if ending:
            return await self._discard(directory, f"its snapshot {record.ending} is complete")
        if record.process is None or not record.process.alive():
            return await self._discard(directory, "its process is gone")
        if not record.ready:
            return await self._discard(directory, "it had not been woken yet")
        machine = Machine(directory, record, group=groups.get(record.name))
        try:
            await machine.connect()
            await self._find_top(machine)
            await machine.qmp.cont()
            agent = await machine.attached()
            await agent.resume()
            machine.update(ending=None)
        except (VmError, OSError, TimeoutError) as error:
            await machine.remove()
            return Recovered(directory.name, "ended", f"it could not be adopted: {error}")
        self._enter(machine)
        return Recovered(directory.name, "adopted", "its process runs")

    async def _find_top(self, machine: Machine) -> None:
        """Note the top layer that QEMU really writes to, if a fork was cut off right after its
        change."""
        name = await machine.qmp.disk_top("root")
        for file in machine.directory.glob("*.qcow2"):
            new = Layer(file.stem, "qcow2", machine.record.top.size)
            if node_name(new) == name and new != machine.record.top:
                machine.promote_top(new)
        below = {layer.file_name: layer for layer in machine.record.layers}
        for file in machine.directory.glob("*.qcow2"):
            if file.name in below:  # the freeze was cut off before it was detached
                await asyncio.to_thread(detach_layer, self.store, below[file.name])
            if file.name != machine.record.top.file_name:
                file.unlink()

    async def _discard(self, directory: Path, why: str) -> Recovered:
        ended = await end_all(f"{self._site.name}{directory.name}")
        shutil.rmtree(directory, ignore_errors=True)
        return Recovered(directory.name, "ended" if ended else "removed", why)


@dataclass(frozen=True)
class Forked:
    """A fork: the snapshot it went through, and each child or why it did not come."""

    frozen: Frozen
    children: "list[Machine | VmError]"


def _home_id(home: Path) -> str:
    """Return a word that this directory has and no other on this computer, a copy of it neither.

    Not its path: several containers may have the same, and one sees the processes of the others.
    """
    file = home / "host.id"
    if not file.exists():
        new = home / f".host.id.{os.getpid()}"
        new.write_text(secrets.token_hex(16))
        new.rename(file)
    status = home.stat()
    words = f"{file.read_text()} {status.st_dev} {status.st_ino}"
    return hashlib.sha256(words.encode()).hexdigest()[:12]


async def _take_lock(home: Path, *, wait: bool) -> int:
    fd = os.open(home / "host.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    raise HostError(
                        f"Another program (process {_holder(fd)}) has {home} open.",
                        state="Nothing was changed.",
                        todo="End it, or set TORPOR_HOME to another directory.",
                    ) from None
                await asyncio.sleep(0.2)
                continue
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(os.getpid()).encode(), 0)
            return fd
    except BaseException:
        os.close(fd)
        raise


def _holder(fd: int) -> str:
    return os.pread(fd, 20, 0).decode("ascii", "replace") or "?"


def _free_memory() -> int:
    return free_memory_bytes(Path("/proc/meminfo").read_text())
