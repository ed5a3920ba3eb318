"""The host that is this computer: machines of :mod:`torpor.vm`, images of :mod:`torpor.images`."""

import asyncio
import contextlib
import os
import platform
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path

from torpor.images import Maker, maker
from torpor.images.progress import Step
from torpor.images.references import Reference
from torpor.sessions.hosts import (
    SESSION,
    Built,
    DiskState,
    End,
    Facts,
    Inventory,
    Kept,
    Running,
    Start,
    StartEvent,
)
from torpor.sessions.local_disks import disk_state, told_as_host_error
from torpor.sessions.local_images import LocalImages
from torpor.vm import (
    GuestAgent,
    Host,
    HostError,
    Identity,
    Machine,
    MachineDiedError,
    SnapshotError,
    Statistics,
    Store,
    VmError,
    Wanted,
)
from torpor.vm.manifest import DELTA, Entry
from torpor.vm.rescue import ENDED, MACHINE
from torpor.vm.shape import free_memory_bytes
from torpor.vm.sizes import stored_bytes
from torpor.vm.usage import Usage, outer_threads, take_usage


class LocalHost:
    """A :class:`torpor.sessions.hosts.MachineHost` in this process."""

    def __init__(self, maker: Maker, host: Host, insecure: Collection[str] = ()) -> None:
        self._maker = maker
        self._host = host
        self._images = LocalImages(maker, host, insecure)
        self._vcpus: dict[str, tuple[int, frozenset[int]]] = {}
        """The process of a machine, and its vCPUs' threads."""
        self._asked: set[str] = set()
        """Machines that are being ended because somebody asked for it."""
        self._end_calls: list[Callable[[End], None]] = []
        self._reboot_calls: list[Callable[[Running], None]] = []
        for machine in host.machines.values():
            self._follow(machine)

    @classmethod
    async def open(
        cls,
        home: Path,
        cache: Path,
        report: Callable[[Step], None],
        lock: int | None = None,
        insecure: Collection[str] = (),
    ) -> "LocalHost":
        """Open the host whose machines are below ``home``, and adopt those that run. ``lock`` is
        the home's, if the caller holds it; ``insecure`` are registries that need not prove who they
        are.

        Raises :exc:`torpor.vm.VmError` and :exc:`torpor.images.ImageError`.
        """
        made = await maker(cache, report)
        links = made.links()
        if links is not None:
            links.prepare()  # nor is the first machine to wait for one
        return cls(made, await made.open_host(home, lock=lock, links=links), insecure)

    @property
    def store(self) -> Store:
        """The snapshots of this host, for who copies them on this computer."""
        return self._host.store

    async def close(self) -> None:
        """Let go of the machines, which run on."""
        await self._host.close()

    # Images

    async def image_start(
        self, image: str, size: str, report: Callable[[str], Awaitable[None]]
    ) -> Start:
        return await self._images.start(image, size, report)

    def check_image(self, image: str) -> None:
        self._images.check(image)

    async def build_image(
        self, source: Reference, name: str, size: str, report: Callable[[str], Awaitable[None]]
    ) -> Built:
        return await self._images.build(source, name, size, report)

    async def image_names(self) -> list[str]:
        return await self._images.names()

    async def forget_image(self, name: str) -> None:
        await self._images.forget(name)

    # Machines

    async def start(
        self,
        snapshot: str,
        labels: Mapping[str, str],
        event: StartEvent,
        hostname: str | None = None,
        disk: str | None = None,
    ) -> Running:
        identity = None if hostname is None else Identity.of(hostname)
        manifest = self._host.store.manifest(snapshot)
        if manifest.memory is not None:
            machine = await self._host.thaw(
                snapshot, identity, event=event, labels=labels, disk=disk
            )
        else:
            kernel = self._maker.kernels(manifest.guest)
            if kernel is None:
                raise HostError(
                    f"Snapshot {snapshot} has files alone and needs kernel"
                    f" {manifest.guest.kernel} to boot, which this host does not have.",
                    state="Nothing was started.",
                )
            machine = await self._host.boot_files(snapshot, kernel, identity, labels, disk)
        self._follow(machine)
        return _running(machine)

    async def freeze(
        self,
        machine: str,
        snapshot: str,
        labels: Mapping[str, str],
        *,
        stop: bool,
        children: int = 1,
    ) -> Kept:
        wanted = Wanted(
            "stop" if stop else "run",
            children=children,
            id=snapshot,
            labels=dict(labels),
            event="pause" if stop else "fork" if children > 1 else "checkpoint",
        )
        found = self._machine(machine)
        if stop:
            self._asked.add(machine)
        try:
            frozen = await self._host.freeze(found, wanted)
        except MachineDiedError as error:
            self._tell_end(found, error)  # its end came before the freeze
            raise
        finally:
            self._asked.discard(machine)
        return self._kept(Entry.of(frozen.manifest))

    async def end(self, machine: str) -> None:
        found = self._host.machines.get(machine)
        if found is not None:
            self._asked.add(machine)
            try:
                await self._host.end(found)
            finally:
                self._asked.discard(machine)

    def running(self) -> dict[str, Running]:
        return {key: _running(machine) for key, machine in self._host.machines.items()}

    async def agent(self, machine: str) -> GuestAgent:
        return await self._machine(machine).attached()

    def held(self, machine: str) -> str | None:
        return self._machine(machine).held

    def _machine(self, machine: str) -> Machine:
        found = self._host.machines.get(machine)
        if found is None:
            raise MachineDiedError(f"There is no machine {machine}.")
        return found

    # What they use

    async def usage(self, machine: str) -> Usage:
        found = self._machine(machine)
        known = self._vcpus.get(machine)
        if known is None or known[0] != found.pid:
            inner = await found.qmp.vcpu_threads()
            known = found.pid, await asyncio.to_thread(outer_threads, found.pid, inner)
            self._vcpus[machine] = known
        return take_usage(*known)

    async def statistics(self, machine: str) -> Statistics:
        return await self._machine(machine).statistics()

    def disk_bytes(self, machine: str) -> int:
        found = self._machine(machine)
        return stored_bytes([found.top_file(drive) for drive in found.record.drives])

    # Disks that outlive them

    async def make_disk(self, disk: str, size_bytes: int) -> DiskState:
        with told_as_host_error(disk):
            await self._host.disks.make(disk, size_bytes)
        return disk_state(self._host, disk)

    async def remove_disk(self, disk: str) -> None:
        with told_as_host_error(disk):
            await self._host.disks.remove(disk)

    def disk(self, disk: str) -> DiskState | None:
        try:
            return disk_state(self._host, disk)
        except SnapshotError:
            return None

    async def release_disk(self, machine: str, disk: str) -> DiskState:
        self._asked.add(machine)
        try:
            with told_as_host_error(disk):
                await self._host.disks.release(self._host.machines.get(machine), disk)
        finally:
            self._asked.discard(machine)
        return disk_state(self._host, disk)

    # Their ends

    def on_end(self, call: Callable[[End], None]) -> None:
        self._end_calls.append(call)

    def on_reboot(self, call: Callable[[Running], None]) -> None:
        self._reboot_calls.append(call)

    def _follow(self, machine: Machine) -> None:
        machine.on_end(self._ended)
        machine.on_reboot(self._rebooted)

    def _ended(self, machine: Machine, why: VmError) -> None:
        self._vcpus.pop(machine.id, None)
        if machine.id not in self._asked:
            self._tell_end(machine, why)

    def _tell_end(self, machine: Machine, why: VmError) -> None:
        died = why if isinstance(why, MachineDiedError) else None
        end = End(
            machine.id,
            died.cause if died is not None else "",
            str(why),
            died.snapshot if died is not None else None,
        )
        for call in self._end_calls:
            call(end)

    def _rebooted(self, machine: Machine) -> None:
        for call in self._reboot_calls:
            call(_running(machine))

    # Snapshots

    def inventory(self) -> Inventory:
        kept: dict[str, Kept] = {}
        unreadable = []
        for snapshot in self._host.store.ids():
            found = self.found(snapshot)
            if found is None:
                if not self._host.store.durable(snapshot):
                    unreadable.append(snapshot)
            elif SESSION in found.labels:
                kept[snapshot] = found
        # A program before this one may have kept a disk, and been gone before it could tell.
        ended = {
            each.labels[MACHINE]: End(
                each.labels[MACHINE],
                each.labels.get(ENDED, ""),
                "its process is gone, and its disk was kept",
                each.id,
            )
            for each in kept.values()
            if MACHINE in each.labels
        }
        for each in self._host.recovered:
            if each.outcome not in ("adopted", "rebooted"):
                disk = kept.get(each.snapshot or "")
                cause = disk.labels.get(ENDED, "") if disk is not None else ""
                ended[each.machine] = End(each.machine, cause, each.why, each.snapshot)
        return Inventory(kept, unreadable, ended)

    def found(self, snapshot: str) -> Kept | None:
        with contextlib.suppress(VmError, OSError):
            return self._kept(self._host.store.entry(snapshot))
        return None

    def _kept(self, found: Entry) -> Kept:
        return Kept(
            found.id,
            found.labels,
            found.parent,
            found.stored_bytes,
            self._host.store.durable(found.id),
            found.memory,
            found.disk,
        )

    async def durable(self, snapshot: str, *, hurry: bool = True) -> None:
        await self._host.durable(snapshot, hurry=hurry)

    async def verify(self, snapshot: str) -> None:
        await asyncio.to_thread(self._host.store.verify, snapshot)

    async def remove(self, snapshot: str) -> None:
        with contextlib.suppress(SnapshotError):  # it is gone already
            await self._host.remove(snapshot)

    # Room

    def memory_needed(self, snapshot: str) -> int:
        found = self._host.store.manifest(snapshot)
        return found.sizes.get(DELTA, 0) if found.memory is not None else 0

    def free_memory(self) -> int:
        return free_memory_bytes(Path("/proc/meminfo").read_text())

    async def facts(self) -> Facts:
        accelerator = self._maker.accelerator
        disk = os.statvfs(self._host.home)
        return Facts(
            name=platform.node(),
            accelerator=accelerator.name,
            why=accelerator.why,
            qemu=".".join(map(str, accelerator.qemu_version)),
            jail_missing=self._maker.jail.missing,
            memory=_total_memory(),
            free_memory=self.free_memory(),
            free_disk=disk.f_bavail * disk.f_frsize,
            stored=await asyncio.to_thread(self._host.store.stored_bytes),
        )


def _running(machine: Machine) -> Running:
    record = machine.record
    return Running(
        machine.id, record.guest_boot_id, record.snapshot, record.labels, machine.not_mounted
    )


def _total_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
