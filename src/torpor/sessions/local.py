"""The host that is this computer: machines of :mod:`torpor.vm`, images of :mod:`torpor.images`."""

import asyncio
import contextlib
import os
import platform
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torpor.images import Maker, maker
from torpor.images.progress import Step
from torpor.images.references import Reference
from torpor.network.decisions import Decision
from torpor.network.link import Link, Links, Probed, probe
from torpor.sessions.hosts import (
    PUBLIC,
    SESSION,
    Built,
    Counted,
    DiskState,
    End,
    Facts,
    Inventory,
    Kept,
    Running,
    Start,
    StartEvent,
    Wall,
)
from torpor.sessions.local_disks import disk_state, told_as_host_error
from torpor.sessions.local_images import LocalImages
from torpor.sessions.local_walls import LocalWalls, Parts
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

    def __init__(
        self,
        maker: Maker,
        host: Host,
        insecure: Collection[str] = (),
        parts: Parts | None = None,
        linked: Probed | None = None,
    ) -> None:
        """``linked`` says why no wall can be built, if ``host`` has no links."""
        self._maker = maker
        self._host = host
        links = host.links if isinstance(host.links, Links) else None
        self._walls = LocalWalls(links, linked, parts)
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
        authorities: Callable[[], Sequence[Mapping[str, str]]] = tuple,
        parts: Parts | None = None,
    ) -> "LocalHost":
        """Open the host whose machines are below ``home``, and adopt those that run. ``lock`` is
        the home's, if the caller holds it; ``insecure`` are registries that need not prove who they
        are; ``authorities`` are those that machines are told to trust when they wake; ``parts``
        stand behind the walls of its machines.

        Raises :exc:`torpor.vm.VmError` and :exc:`torpor.images.ImageError`.
        """
        made = await maker(cache, report)
        links = made.links()
        linked = None
        if links is None:
            linked = await probe()
        else:
            links.prepare()  # nor is the first machine to wait for one
        host = await made.open_host(home, lock=lock, links=links, authorities=authorities)
        return cls(made, host, insecure, parts, linked)

    @property
    def store(self) -> Store:
        """The snapshots of this host, for who copies them on this computer."""
        return self._host.store

    async def close(self) -> None:
        """Let go of the machines, which run on, and reach nothing until they are adopted."""
        await self._walls.close_all()
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
        wall: Wall = PUBLIC,
    ) -> Running:
        async with self._walls.opened(labels, wall, snapshot, event) as opened:
            machine = await self._started(snapshot, labels, event, hostname, disk, opened.link)
            opened.machine = machine
        self._follow(machine)
        return self._running(machine)

    async def _started(
        self,
        snapshot: str,
        labels: Mapping[str, str],
        event: StartEvent,
        hostname: str | None,
        disk: str | None,
        link: Link | None,
    ) -> Machine:
        identity = None if hostname is None else Identity.of(hostname)
        manifest = self._host.store.manifest(snapshot)
        if manifest.memory is not None:
            return await self._host.thaw(
                snapshot, identity, event=event, labels=labels, disk=disk, link=link
            )
        else:
            kernel = self._maker.kernels(manifest.guest)
            if kernel is None:
                raise HostError(
                    f"Snapshot {snapshot} has files alone and needs kernel"
                    f" {manifest.guest.kernel} to boot, which this host does not have.",
                    state="Nothing was started.",
                )
            return await self._host.boot_files(snapshot, kernel, identity, labels, disk, link)

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
            async with self._walls.frozen(found, snapshot, stop=stop) as names:
                frozen = await self._host.freeze(found, wanted)
        except MachineDiedError as error:
            self._tell_end(found, error)  # its end came before the freeze
            raise
        finally:
            self._asked.discard(machine)
        return replace(self._kept(Entry.of(frozen.manifest)), names=names())

    async def end(self, machine: str) -> None:
        found = self._host.machines.get(machine)
        if found is not None:
            self._asked.add(machine)
            try:
                await self._host.end(found)
            finally:
                self._asked.discard(machine)

    def running(self) -> dict[str, Running]:
        return {key: self._running(machine) for key, machine in self._host.machines.items()}

    def _running(self, machine: Machine) -> Running:
        record = machine.record
        return Running(
            machine.id,
            record.guest_boot_id,
            record.snapshot,
            record.labels,
            machine.not_mounted,
            machine.no_card or self._walls.why_none(machine),
        )

    async def agent(self, machine: str) -> GuestAgent:
        return await self._machine(machine).attached()

    def held(self, machine: str) -> str | None:
        return self._machine(machine).held

    def _machine(self, machine: str) -> Machine:
        found = self._host.machines.get(machine)
        if found is None:
            raise MachineDiedError(f"There is no machine {machine}.")
        return found

    # What they may reach

    def check_wall(self, egress: str | dict[str, Any] | None) -> str | None:
        return self._walls.check(egress)

    async def set_wall(self, machine: str, wall: Wall) -> int:
        return await self._walls.set(self._machine(machine), wall)

    def names(self, machine: str) -> str | None:
        return self._walls.names(machine)

    def traffic(self) -> list[Counted]:
        return self._walls.traffic()

    def on_decision(self, call: Callable[[str, Decision], None]) -> None:
        self._walls.on_decision(call)

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
        self._walls.ended(machine.id)
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
            call(self._running(machine))

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
        self._walls.forget(snapshot)
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
            wall_missing=self._walls.missing,
            memory=_total_memory(),
            free_memory=self.free_memory(),
            free_disk=disk.f_bavail * disk.f_frsize,
            stored=await asyncio.to_thread(self._host.store.stored_bytes),
        )


def _total_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
