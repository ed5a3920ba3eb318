"""Thaw: a snapshot -> a running machine. And boot: a disk -> a running machine.

The snapshot is only read. Until the guest has been woken the new machine counts for nothing: if any
step fails it is removed, and the snapshot is as it was.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from torpor.vm import compatibility, manifest
from torpor.vm.accelerator import Accelerator
from torpor.vm.agent import AgentCode, Identity
from torpor.vm.bases import OpenBases
from torpor.vm.delta import Delta
from torpor.vm.disk import Layer, create_layer
from torpor.vm.disks import Mount, attach, mounts_at_boot, new_top
from torpor.vm.errors import (
    ChannelLostError,
    HostError,
    LaunchError,
    SilentError,
    SnapshotError,
    VmError,
)
from torpor.vm.hooks import HookCall, HookLimits, HookResult
from torpor.vm.jail import Jail, end_all
from torpor.vm.launch import AGENT, CONSOLE, MONITOR, TRACE, Boot, DriveParts, Parts, launch
from torpor.vm.leftovers import Leftovers
from torpor.vm.machine import Machine
from torpor.vm.manifest import (
    DELTA,
    DEVICES,
    ROOT,
    AttachedDisk,
    Disks,
    GuestVersions,
    MachineRecord,
    Manifest,
    reachable,
    write_record,
)
from torpor.vm.new_snapshot import guest_mapping, new_id
from torpor.vm.pages import written_runs
from torpor.vm.shape import Shape
from torpor.vm.store import Store
from torpor.vm.thaw_times import ThawTimes
from torpor.vm.wire import Link, Links, Wired

WAKE_LIMIT = 30.0
LOAD_LIMIT = 30.0
BOOT_LIMITS = (60.0, 120.0, 180.0)
"""Seconds that each try of a cold boot may take: under emulation a kernel hangs now and then while
it finds out about its clocks (once in some 200 boots), and the next try goes well."""


@dataclass(frozen=True)
class Site:
    """Where machines are made: ``directory`` holds a directory for each; ``name`` goes before its
    id in its QEMU's ``-name``. ``clock`` is the wall clock that guests are set to, in ns; ``agent``
    is put in the place of another agent at a thaw. ``links`` makes what network cards are connected
    to; without it machines that are booted have none."""

    directory: Path
    name: str
    store: Store
    accelerator: Accelerator
    jail: Jail
    bases: OpenBases
    leftovers: Leftovers
    clock: Callable[[], int] = time.time_ns
    agent: AgentCode | None = None
    links: Links | None = None


@dataclass(frozen=True)
class BootWanted:
    """A cold boot: the chains of its disks, what boots it, and the seconds that each try may take.
    ``disk`` is the disk that outlives the machine and that it is to have."""

    shape: Shape
    disks: Disks
    tools: Layer
    guest: GuestVersions
    boot: Boot
    limits: tuple[float, ...] = BOOT_LIMITS
    snapshot: str | None = None
    generation: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    disk: str | None = None


Card = Literal["again", "another"]
ThawEvent = Literal["create", "resume", "fork", "rollback"]


async def thaw(
    site: Site,
    snapshot: str,
    identity: Identity | None,
    uid: int,
    event: ThawEvent | None = None,
    hooks: HookLimits | None = None,
    labels: Mapping[str, str] | None = None,
    disk: str | None = None,
    link: Link | None = None,
) -> Machine:
    """Start a machine from a snapshot with memory; it is ready when this returns.

    With ``identity`` it becomes another machine than the one that was frozen. ``event`` is what its
    hooks are told, ``hooks`` how long they may take, ``labels`` what its record says of whose it
    is, ``disk`` the disk that outlives it and that it is to have (:func:`torpor.vm.disks.attach`).
    ``link`` is what its network card is to be connected to, and stays the caller's; without it the
    machine gets one at which nobody listens. Raises :exc:`SnapshotError`, :exc:`LaunchError`,
    OSError.
    """
    moments = [time.monotonic()]
    found = site.store.manifest(snapshot)
    check_thaws_here(found, site.accelerator)
    assert found.memory is not None
    chains = site.store.disks(found)
    verified = asyncio.create_task(asyncio.to_thread(site.store.verify, snapshot, chains))
    base = found.memory.base
    async with _awaited(verified), site.bases.opened(base, site.store.base(base)) as base_fd:
        disks = site.store.disks(found)
        attached, mounts = attach(site.store, disks, disk, snapshot)
        record = replace(
            _record_of(found, disks.root, attached, site, uid, base_fd), labels=dict(labels or {})
        )
        # 1. QEMU, stopped: memory mapped from the base, an empty layer over each disk.
        async with _launched(site, record, base_fd, None, link) as machine:
            # From its record on, what the machine needs is kept. So it must still have been there.
            site.store.directory(snapshot)
            await asyncio.to_thread(site.store.keep, list(reachable(found, disks)))
            moments.append(time.monotonic())
            # 2. The pages in which the machine differed from its base.
            mapping = guest_mapping(machine)
            if written_runs(mapping):
                raise LaunchError("QEMU has written guest memory before it was told to.")
            if found.memory.delta:
                file = site.store.directory(snapshot) / DELTA
                await asyncio.to_thread(_inject, file, machine, base_fd)
            await verified
            if disks != chains:  # one was shortened in the background in between
                await asyncio.to_thread(site.store.verify, snapshot, disks)
            if mounts:
                await asyncio.to_thread(_check_new, site.store, attached, mounts)
            moments.append(time.monotonic())
            # 3. The state of devices and CPUs.
            with open(site.store.directory(snapshot) / DEVICES, "rb", buffering=0) as devices:
                await machine.qmp.load_devices(devices.fileno(), LOAD_LIMIT)
            # 4. The guest runs; its agent wakes the user's processes when all is right.
            await machine.qmp.cont()
            for mount in mounts:
                (new,) = (each for each in attached if each.slot == mount.slot)
                await machine.qmp.announce_size(new.top)
            moments.append(time.monotonic())
            told = _told(machine, found, event, identity)
            call = HookCall(told, hooks or HookLimits())
            # In a golden snapshot it is as the machine's boot has left it: nobody was there yet.
            card = None if site.store.is_golden(snapshot) else _card(machine, identity)
            ran = await _wake(machine, identity, site, WAKE_LIMIT, call, mounts, card)
            moments.append(time.monotonic())
            machine.thawed = ThawTimes.between(moments, ran)
            return machine


def _check_new(store: Store, attached: tuple[AttachedDisk, ...], mounts: tuple[Mount, ...]) -> None:
    """Check the disks that no snapshot answers for. Raises :exc:`SnapshotError`."""
    new = {mount.slot for mount in mounts}
    for each in attached:
        if each.slot in new and each.disk is not None:
            places = [store.layer(layer) for layer in each.layers]
            store.heads.check(each.disk, each.layers, places, store.digests)


def _told(
    machine: Machine, found: Manifest, event: ThawEvent | None, identity: Identity | None
) -> dict[str, str]:
    """Return what hooks are told of a thaw."""
    if event is None and identity is None:
        event = "resume"
    elif event is None:
        event = "create" if found.parent is None else "fork"
    return {"event": event, "machine": machine.id, "snapshot": found.id}


async def boot(
    site: Site,
    wanted: BootWanted,
    identity: Identity | None,
    uid: int,
    link: Link | None = None,
) -> Machine:
    """Start a machine from a disk; it is ready when this returns. ``link`` is as of :func:`thaw`,
    which this raises as too."""
    for limit in wanted.limits[:-1]:
        with contextlib.suppress(SilentError):
            return await _boot_once(site, wanted, identity, uid, limit, link)
    return await _boot_once(site, wanted, identity, uid, wanted.limits[-1], link)


async def _boot_once(
    site: Site,
    wanted: BootWanted,
    identity: Identity | None,
    uid: int,
    limit: float,
    link: Link | None,
) -> Machine:
    memory = site.bases.empty(wanted.shape.memory_bytes)
    try:
        status = os.fstat(memory)
        root = wanted.disks.root
        attached, mounts = attach(site.store, wanted.disks, wanted.disk, wanted.snapshot)
        card = link is not None or site.links is not None
        record = MachineRecord(
            version=manifest.version_with(attached, card=card),
            id=(machine := new_id()),
            name=f"{site.name}{machine}",
            process=None,
            uid=uid,
            shape=wanted.shape,
            accelerator=site.accelerator,
            guest=wanted.guest,
            base=None,
            memory_file=(status.st_dev, status.st_ino),
            layers=root,
            top=new_top(ROOT, root[-1].size),
            tools=wanted.tools,
            snapshot=wanted.snapshot,
            generation=wanted.generation,
            guest_boot_id="",
            labels=dict(wanted.labels),
            disks=attached,
            card=card,
        )
        async with _launched(site, record, memory, wanted.boot, link) as started:
            layers = [
                f"layers/{layer.file_name}" for layer in (*wanted.disks.layers(), wanted.tools)
            ]
            await asyncio.to_thread(site.store.keep, layers)
            if mounts:
                await asyncio.to_thread(_check_new, site.store, attached, mounts)
            mounting = mounts_at_boot(attached, mounts)
            await _wake(started, identity, site, limit, None, mounting, _card(started, None))
            return started
    finally:
        os.close(memory)


async def start_again(
    site: Site, machine: Machine, kernel: Boot, limits: tuple[float, ...] = BOOT_LIMITS
) -> None:
    """Boot a machine whose process has gone from its own disk: the same machine, with new memory.

    Its record says so from the first step on, so that the next program begins anew if this one
    ends. Raises as :func:`thaw`, with no process left.
    """
    try:
        for limit in limits[:-1]:
            with contextlib.suppress(SilentError):
                return await _start_again_once(site, machine, kernel, limit)
            await machine.end_process()
        await _start_again_once(site, machine, kernel, limits[-1])
    except BaseException:
        await asyncio.shield(machine.end_process())
        await asyncio.shield(end_all(machine.record.name))
        raise


async def _start_again_once(site: Site, machine: Machine, kernel: Boot, limit: float) -> None:
    memory = site.bases.empty(machine.record.shape.memory_bytes)
    try:
        status = os.fstat(memory)
        file = (status.st_dev, status.st_ino)
        machine.update(rebooting=True, process=None, base=None, memory_file=file)
        for name in (MONITOR, AGENT, CONSOLE, TRACE):
            (machine.directory / name).unlink(missing_ok=True)
        record = machine.record
        if machine.wired.link is None:  # it was adopted without a process
            machine.wired = await _wired(site, record, None)
        parts = _parts(site, record, machine.directory, memory, kernel, machine.wired)
        launching = asyncio.ensure_future(
            launch(machine.directory, record.name, parts, site.jail, record.uid)
        )
        try:
            started = await asyncio.shield(launching)
        except asyncio.CancelledError:
            with contextlib.suppress(VmError, OSError, TimeoutError):
                machine.have_process(await launching)  # so that it can be ended
            raise
        await machine.take_process(started)
        mounting = mounts_at_boot(record.disks)
        await _wake(machine, None, site, limit, None, mounting, _card(machine, None))
        machine.update(rebooting=False, boots=record.boots + 1)
    finally:
        os.close(memory)


def check_thaws_here(found: Manifest, accelerator: Accelerator) -> None:
    """Raise :exc:`SnapshotError` if a snapshot's memory cannot run under this accelerator."""
    verdict = compatibility.check(found, accelerator)
    if not verdict.thaws:
        raise SnapshotError(verdict.why, todo=verdict.todo)


async def _wired(site: Site, record: MachineRecord, link: Link | None) -> Wired:
    """Return what the network card of a machine is connected to: ``link``, or one of its own.
    Raises :exc:`HostError`."""
    if not record.card:
        return Wired()
    if link is not None:
        return Wired(link)
    if site.links is None:
        raise HostError(
            "The machine has a network card, and this host can connect none to anything.",
            state="Nothing was started.",
            todo="`torpor doctor` says why. Or boot its disk instead (files only).",
        )
    return Wired(await site.links.take(), site.links)


def _record_of(
    found: Manifest,
    root: tuple[Layer, ...],
    attached: tuple[AttachedDisk, ...],
    site: Site,
    uid: int,
    base_fd: int,
) -> MachineRecord:
    status = os.fstat(base_fd)
    machine = new_id()
    assert found.memory is not None
    return MachineRecord(
        version=manifest.version_with(attached, card=found.card),
        id=machine,
        name=f"{site.name}{machine}",
        process=None,
        uid=uid,
        shape=found.shape,
        accelerator=site.accelerator,
        guest=found.guest,
        base=found.memory.base,
        memory_file=(status.st_dev, status.st_ino),
        layers=root,
        top=new_top(ROOT, root[-1].size),
        tools=found.tools,
        snapshot=found.id,
        generation=found.generation,
        guest_boot_id=found.guest_boot_id,
        disks=attached,
        card=found.card,
    )


@asynccontextmanager
async def _launched(
    site: Site, record: MachineRecord, memory: int, boot: Boot | None, link: Link | None
) -> AsyncIterator[Machine]:
    """Start QEMU and connect; remove the machine again if the block fails."""
    directory = site.directory / record.id
    directory.mkdir(mode=0o700)
    machine: Machine | None = None
    wired = Wired()
    try:
        write_record(directory, record)
        wired = await _wired(site, record, link)
        for drive in record.drives:
            await create_layer(directory / drive.top.file_name, drive.top.size)
        parts = _parts(site, record, directory, memory, boot, wired)
        started = await launch(directory, record.name, parts, site.jail, record.uid)
        machine = Machine(directory, record, started, wired=wired)
        machine.update(process=started.process)
        await machine.connect()
        yield machine
    except BaseException:
        if machine is not None:
            with contextlib.suppress(VmError, OSError):  # it is ended by name
                await asyncio.shield(machine.remove())
        wired.let_go()
        # Also what had not come as far as QEMU.
        await asyncio.shield(site.leftovers.clean(record.name, directory))
        raise


def _parts(
    site: Site,
    record: MachineRecord,
    directory: Path,
    memory: int,
    boot: Boot | None,
    wired: Wired,
) -> Parts:
    return Parts(
        record.shape,
        record.accelerator,
        memory,
        tuple(
            DriveParts(
                drive,
                tuple(map(site.store.layer, drive.layers)),
                directory / drive.top.file_name,
            )
            for drive in record.drives
        ),
        site.store.layer(record.tools),
        boot,
        wired.wire,
    )


async def _wake(
    machine: Machine,
    identity: Identity | None,
    site: Site,
    limit: float,
    hooks: HookCall | None = None,
    mounts: tuple[Mount, ...] = (),
    card: Card | None = None,
) -> tuple[HookResult, ...]:
    try:
        agent = await machine.attach(limit)
    except ChannelLostError as error:
        state = "It was ended again."
        raise SilentError(error.happened, console=machine.console.tail(), state=state) from error
    if site.agent is not None:
        agent = await machine.replace_agent(site.agent, limit)
    wanted = [mount.wanted() for mount in mounts]
    woken = await agent.wake(identity, site.clock, hooks, wanted, card)
    machine.not_mounted = woken.not_mounted
    machine.no_card = woken.no_card
    machine.update(ready=True, guest_boot_id=agent.welcome.boot_id)
    return woken.hooks


def _card(machine: Machine, identity: Identity | None) -> Card | None:
    """Return what its agent is to do with a machine's network card."""
    if not machine.record.card:
        return None
    return "again" if identity is None else "another"


def _inject(file: Path, machine: Machine, base_fd: int) -> None:
    delta = Delta(file, machine.record.shape.memory_bytes)
    try:
        delta.inject(guest_mapping(machine), base_fd)
    finally:
        delta.close()


@asynccontextmanager
async def _awaited(task: asyncio.Task[Manifest]) -> AsyncIterator[None]:
    """Make sure that ``task`` has ended; if it failed, that is the reason to tell."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(asyncio.CancelledError):
            await task
        raise
    await task
