"""A machine gives back the disk that outlives it, and ends."""

import asyncio
import contextlib

from torpor.vm.disk import is_empty_layer
from torpor.vm.errors import MachineDiedError, RebootedError, VmError
from torpor.vm.freeze import QUIESCE_LIMIT_MS
from torpor.vm.machine import Machine
from torpor.vm.manifest import ROOT
from torpor.vm.stoppable import to_the_end
from torpor.vm.store import Store
from torpor.vm.syncing import fsync


async def hand_back(store: Store, machine: Machine) -> None:
    """Let the disk that outlives ``machine`` hold what the machine has made of it, and end it.

    Its guest syncs the disk, and its processes run no more; one that does not answer gives what it
    has written so far, as after a power cut. Raises the machine's end, or :exc:`VmError` or OSError
    with the machine running on.
    """
    async with machine.exclusive():
        try:
            await _rest(machine)
            # QEMU flushes all that the guest has written.
            await machine.qmp.stop()
            await to_the_end(_keep(store, machine))
        except BaseException:
            if machine.running:
                await asyncio.shield(_go_on(machine))
            raise
        await asyncio.shield(machine.remove())


async def _rest(machine: Machine) -> None:
    try:
        agent = await machine.attached()
        await agent.quiesce(QUIESCE_LIMIT_MS)
    except (MachineDiedError, RebootedError):
        raise
    except VmError:
        pass


async def _keep(store: Store, machine: Machine) -> None:
    """Make the layer on top one of the store, and note that the disk holds it.

    It is in the store before it is noted, and the machine needs it until then: so nothing collects
    it in between.
    """
    record = machine.record
    disk = record.own_disk
    assert disk is not None
    written = {}
    for drive in record.drives:
        file = machine.top_file(drive)
        if drive.slot != ROOT and not await is_empty_layer(file, drive.top.size):
            await asyncio.to_thread(fsync, file)
            store.put(file, f"layers/{drive.top.file_name}")
            written[drive.slot] = drive.top
    (layers,) = (each.layers for each in record.chains(written).slots if each.disk == disk)
    await asyncio.to_thread(store.heads.move, disk, layers)


async def _go_on(machine: Machine) -> None:
    with contextlib.suppress(VmError):
        await machine.qmp.cont()
        try:
            await (await machine.attached()).resume()
        except VmError:
            machine.release.resume_later()
