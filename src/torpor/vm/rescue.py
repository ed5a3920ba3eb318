"""The disks of a machine whose process is gone, kept as a snapshot of files alone."""

import asyncio

from torpor.vm.disk import Layer, is_empty_layer
from torpor.vm.disks import slot_of
from torpor.vm.machine import Machine
from torpor.vm.manifest import Manifest
from torpor.vm.new_snapshot import describe, new_id
from torpor.vm.sizes import stored_bytes
from torpor.vm.stoppable import to_the_end
from torpor.vm.store import Store

ENDED, MACHINE = "torpor.ended", "torpor.machine"
"""Labels of such a snapshot besides the machine's own: why it ended, and its id."""


async def keep_disks(store: Store, machine: Machine, why: str) -> Manifest:
    """Make a files-only snapshot of the disks of ``machine``, which has no process any more.

    What its guest had not synced is missing if it ended without warning, as after a power cut. A
    disk that outlives the machine holds what is kept. Raises :exc:`VmError` and OSError.
    """
    await settle_layers(store, machine)
    record = machine.record
    written, objects = {}, {}
    for drive in record.drives:
        if not await is_empty_layer(machine.top_file(drive), drive.top.size):
            written[drive.slot] = drive.top
            objects[f"layers/{drive.top.file_name}"] = machine.top_file(drive)
        for layer in drive.layers:
            store.layer(layer)  # raises if it is missing
    sizes = {name: file.stat().st_size for name, file in objects.items()}
    labels = {**record.labels, ENDED: why, MACHINE: record.id}
    disks, stored = record.chains(written), stored_bytes(objects.values())
    made = describe(record, new_id(), labels, None, disks, sizes, stored)
    partial = store.begin(made.id)
    try:
        store.commit(partial, made, objects)
    finally:
        store.abandon(partial)
    await to_the_end(asyncio.to_thread(store.heads.follow, made))
    return made


async def settle_layers(store: Store, machine: Machine) -> None:
    """Find the layers that the machine's process wrote last, if a fork was cut off in the middle,
    and remove those that it never came to."""
    for file in list(machine.directory.glob("*.qcow2")):
        drive = next(each for each in machine.record.drives if each.slot == slot_of(file))
        top = drive.top
        if file.name == top.file_name:
            continue
        # The store has it already; what it has been copied for (torpor.vm.detach) has gone.
        if file.name in {layer.file_name for layer in drive.layers} or await is_empty_layer(
            file, top.size
        ):
            file.unlink()
        else:
            store.put(machine.top_file(drive), f"layers/{top.file_name}")
            machine.promote({drive.slot: Layer(file.stem, "qcow2", top.size)})
            machine.top_file(drive).unlink()
