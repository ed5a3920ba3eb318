"""The disk of a machine whose process is gone, kept as a snapshot of files alone."""

from torpor.vm.disk import Layer, is_empty_layer
from torpor.vm.machine import Machine
from torpor.vm.manifest import Manifest
from torpor.vm.new_snapshot import describe, new_id
from torpor.vm.sizes import stored_bytes
from torpor.vm.store import Store

ENDED, MACHINE = "torpor.ended", "torpor.machine"
"""Labels of such a snapshot besides the machine's own: why it ended, and its id."""


async def keep_disk(store: Store, machine: Machine, why: str) -> Manifest:
    """Make a files-only snapshot of the disk of ``machine``, which has no process any more.

    What its guest had not synced is missing if it ended without warning, as after a power cut.
    Raises :exc:`VmError` and OSError.
    """
    await settle_layers(store, machine)
    record = machine.record
    file = machine.directory / record.top.file_name
    disk, objects, sizes = record.layers, {}, {}
    if not await is_empty_layer(file, record.top.size):
        name = f"layers/{record.top.file_name}"
        disk, objects = (*disk, record.top), {name: file}
        sizes = {name: file.stat().st_size}
    for layer in record.layers:
        store.layer(layer)  # raises if it is missing
    labels = {**record.labels, ENDED: why, MACHINE: record.id}
    made = describe(record, new_id(), labels, None, disk, sizes, stored_bytes(objects.values()))
    partial = store.begin(made.id)
    try:
        store.commit(partial, made, objects)
    finally:
        store.abandon(partial)
    return made


async def settle_layers(store: Store, machine: Machine) -> None:
    """Find the layer that the machine's process wrote last, if a fork was cut off in the middle,
    and remove one that it never came to."""
    for file in list(machine.directory.glob("*.qcow2")):
        top = machine.record.top
        if file.name == top.file_name:
            continue
        # The store has it already; what it has been copied for (torpor.vm.detach) has gone.
        if file.name in {
            layer.file_name for layer in machine.record.layers
        } or await is_empty_layer(file, top.size):
            file.unlink()
        else:
            store.put(machine.directory / top.file_name, f"layers/{top.file_name}")
            machine.promote_top(Layer(file.stem, "qcow2", top.size))
            (machine.directory / top.file_name).unlink()
