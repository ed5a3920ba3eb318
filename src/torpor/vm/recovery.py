"""What an earlier program has left in a host's directory: adopted, started again, kept or ended."""

import asyncio
import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from torpor.vm import manifest as documents
from torpor.vm.aftermath import Aftermath
from torpor.vm.cgroups import Group, renew_limits
from torpor.vm.detach import detach_layer
from torpor.vm.disk import Layer, node_name
from torpor.vm.endings import Cause, cause_of, explain_end, read_log
from torpor.vm.errors import (
    HeldError,
    HostError,
    MachineDiedError,
    VmError,
    disk_is_full,
    told,
)
from torpor.vm.jail import end_all
from torpor.vm.launch import TRACE
from torpor.vm.limits import limits_for
from torpor.vm.machine import Machine
from torpor.vm.manifest import RECORD, MachineRecord
from torpor.vm.qemu import maps_read_only
from torpor.vm.store import Store
from torpor.vm.thaw import Site
from torpor.vm.wire import Wired

EXIT_LIMIT = 3.0
"""Seconds that a process which cannot be reached has to end by itself."""


@dataclass(frozen=True)
class Recovered:
    """What opening a host found and did with one machine that an earlier program had left.

    ``snapshot`` is the one in which the disk of a machine that had ended was kept.
    """

    machine: str
    outcome: Literal["adopted", "rebooted", "kept", "ended", "removed"]
    why: str
    snapshot: str | None = None


async def recover_machine(
    site: Site, aftermath: Aftermath, directory: Path, groups: Mapping[str, Group]
) -> tuple[Recovered, Machine | None]:
    """Do what is right with the machine in ``directory``; return it if it runs. Raises
    :exc:`HostError` if the disk is full and something would be lost."""
    try:
        record = documents.read(MachineRecord, directory / RECORD)
    except (VmError, OSError) as error:
        return await _discard(site, directory, f"its record cannot be read: {error}")
    if record.name != f"{site.name}{directory.name}":
        # Of a home that this one was copied from: the process, if there is one, is that one's.
        return await _discard(site, directory, "it belongs to another home")
    if record.ending is not None and record.ending in site.store.ids():
        # What disks hold may not have been noted yet.
        _follow(site.store, record.ending)
        return await _discard(site, directory, f"its snapshot {record.ending} is complete")
    if record.removing:
        return await _discard(site, directory, "it was to be ended")
    alive = record.process is not None and record.process.alive()
    if not record.ready:
        why = "it had not been woken yet" if alive else "its process is gone"
        return await _discard(site, directory, why)
    group = groups.get(record.name)
    if record.rebooting or not alive:
        machine = Machine(directory, replace(record, process=None), group=group)
        return await _succeed(site, aftermath, machine)
    machine = Machine(directory, record, group=group)
    machine.wired, why_not = await _wired_again(site, machine)
    try:
        await machine.connect()
        await _find_top(site, machine)
        await machine.qmp.cont()
        try:
            await (await machine.attached()).resume()
        except HeldError:  # the host's disk is full: it goes on when there is space
            machine.release.resume_later()
        if not machine.running:
            raise await machine.wait_end()
        if record.ending is not None:
            with _left_for_later():
                machine.update(ending=None)
        if group is not None:
            _renew_limits(group, record)
    except (VmError, OSError, TimeoutError) as error:
        # It may be ending just now, for a reboot too. One that stays and cannot be reached is of no
        # use to anybody; its disk is.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(machine.wait_end(), EXIT_LIMIT)
        await machine.kill()
        await machine.disconnect()
        gone = Machine(directory, replace(machine.record, process=None), group=group)
        return await _succeed(site, aftermath, gone, f"it could not be adopted: {error}")
    return Recovered(directory.name, "adopted", f"its process runs{why_not}"), machine


async def _wired_again(site: Site, machine: Machine) -> tuple[Wired, str]:
    """Return what the card of a machine that runs is connected to from now on, and why that is
    nothing: then it runs on, and what it dials is refused."""
    if not machine.record.card:
        return Wired(), ""
    if site.links is None:
        return Wired(), ", without a network: this host can connect no card to anything"
    try:
        return Wired(await site.links.rebuilt(machine.pid), site.links), ""
    except VmError as error:
        return Wired(), f", without a network: {error.happened}"


def _follow(store: Store, snapshot: str) -> None:
    try:
        store.heads.follow(store.manifest(snapshot))
    except OSError as error:
        raise HostError(
            f"What the disks of snapshot {snapshot} hold could not be noted: {told(error)}",
            state="The machine that it was made of is kept.",
            todo="Make space, then try again." if disk_is_full(error) else "",
        ) from error


@contextlib.contextmanager
def _left_for_later() -> Iterator[None]:
    """Leave undone what a full disk does not take: the next freeze or the next program does it."""
    try:
        yield
    except OSError as error:
        if not disk_is_full(error):
            raise


def _renew_limits(group: Group, record: MachineRecord) -> None:
    sealed = record.base is None or not maps_read_only(record.accelerator.qemu_version)
    limits = limits_for(record.shape, record.accelerator, record.largest, sealed=sealed)
    with contextlib.suppress(OSError):  # it runs on with those that it has
        renew_limits(group, limits)


async def _succeed(
    site: Site, aftermath: Aftermath, machine: Machine, why: str = "its process is gone"
) -> tuple[Recovered, Machine | None]:
    """Go on with a machine whose process went, or is being started again, with nobody there.

    Raises :exc:`HostError` if there is no space for that, with nothing changed."""
    await end_all(machine.record.name)  # one that was being started
    await machine.leave_group()
    trace = read_log(machine.directory / TRACE)
    cause = Cause.REBOOT if machine.record.rebooting else cause_of(None, trace, "")
    # What QEMU said is gone: it was in a pipe that nobody had open any more.
    reason = explain_end(machine.id, cause, machine.console, "")
    end = await aftermath.decide(machine, cause, reason, wait=False)
    if end is None:
        return Recovered(machine.id, "rebooted", "it was being rebooted from inside"), machine
    await machine.disconnect()
    shutil.rmtree(machine.directory, ignore_errors=True)
    snapshot = end.snapshot if isinstance(end, MachineDiedError) else None
    outcome: Literal["kept", "removed"] = "kept" if snapshot is not None else "removed"
    return Recovered(machine.id, outcome, f"{why}: {end}", snapshot), None


async def _find_top(site: Site, machine: Machine) -> None:
    """Note the top layers that QEMU really writes to, if a fork was cut off right after their
    change."""
    for drive in machine.record.drives:
        name = await machine.qmp.disk_top(drive.slot)
        for file in machine.directory.glob("*.qcow2"):
            new = Layer(file.stem, "qcow2", drive.top.size)
            if node_name(new) == name and new != drive.top:
                with _left_for_later():
                    machine.promote({drive.slot: new})
    drives = machine.record.drives
    below = {layer.file_name: layer for drive in drives for layer in drive.layers}
    tops = {drive.top.file_name for drive in drives}
    for file in machine.directory.glob("*.qcow2"):
        with _left_for_later():
            if file.name in below:  # the freeze was cut off before it was detached
                await asyncio.to_thread(detach_layer, site.store, below[file.name])
            if file.name not in tops:
                file.unlink()


async def _discard(site: Site, directory: Path, why: str) -> tuple[Recovered, None]:
    ended = await end_all(f"{site.name}{directory.name}")
    shutil.rmtree(directory, ignore_errors=True)
    return Recovered(directory.name, "ended" if ended else "removed", why), None
