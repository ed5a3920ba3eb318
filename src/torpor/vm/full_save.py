"""QEMU's own way to save and load a whole machine: the yardstick beside freeze and thaw.

It is what one would do on this host without Torpor: stop, ``migrate`` all of memory to a file with
no limit of bandwidth, and load the file into a new QEMU with memory of its own. Only benchmarks use
it; nothing that it writes is a snapshot.
"""

import os
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from torpor.vm.jail import Jail
from torpor.vm.launch import DriveParts, Parts, launch
from torpor.vm.machine import Machine
from torpor.vm.manifest import MachineRecord, write_record
from torpor.vm.new_snapshot import new_id
from torpor.vm.store import Store
from torpor.vm.wire import Links, Wired

LIMIT = 120.0


@dataclass(frozen=True)
class FullSave:
    """A saved machine: ``file`` with memory and devices, ``top`` its writable disk layer.

    ``seconds`` is how long the machine stood still: from before the stop to the saved file, which
    is not forced to disk. It can be loaded once, since the machine then goes on writing ``top``.
    """

    record: MachineRecord
    file: Path
    top: Path
    seconds: float

    def remove(self) -> None:
        """Remove the files."""
        self.file.unlink(missing_ok=True)
        self.top.unlink(missing_ok=True)


async def save_full(machine: Machine, file: Path) -> FullSave:
    """Save a machine to the new ``file``, with its disk beside it; the machine stays stopped.

    Raises :exc:`torpor.vm.VmError`, OSError and TimeoutError.
    """
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        began = time.monotonic()
        await machine.qmp.stop()
        await machine.qmp.save_full(fd, LIMIT)
        seconds = time.monotonic() - began
    finally:
        os.close(fd)
    top = file.with_name(f"{file.name}.disk")
    os.link(machine.directory / machine.record.top.file_name, top)
    return FullSave(machine.record, file, top, seconds)


@asynccontextmanager
async def loaded_full(
    saved: FullSave, machines: Path, store: Store, jail: Jail, links: Links | None
) -> AsyncIterator[tuple[Machine, float]]:
    """Start a saved machine, which must have ended, in the directory ``machines``. ``links``
    connects its network card, if it has one.

    Yields it and the seconds from the start of QEMU to the first answer of the guest agent. The
    machine is ended at the end of the block. Raises as :func:`save_full`.
    """
    new = new_id()
    name = saved.record.name.removesuffix(saved.record.id) + new
    record = replace(saved.record, id=new, name=name, process=None, ready=False)
    directory = machines / new
    directory.mkdir(mode=0o700)
    machine: Machine | None = None
    wired = Wired()
    try:
        write_record(directory, record)
        if record.card and links is not None:
            wired = Wired(await links.take(), links)
        parts = Parts(
            record.shape,
            record.accelerator,
            None,
            (DriveParts(record.drives[0], tuple(map(store.layer, record.layers)), saved.top),),
            store.layer(record.tools),
            None,
            wired.wire,
        )
        began = time.monotonic()
        started = await launch(directory, record.name, parts, jail, record.uid)
        machine = Machine(directory, record, started, wired=wired)
        await machine.connect()
        with open(saved.file, "rb", buffering=0) as file:
            await machine.qmp.load_devices(file.fileno(), LIMIT)
        await machine.qmp.cont()
        await machine.attach(LIMIT)
        yield machine, time.monotonic() - began
    finally:
        if machine is not None:
            await machine.remove()
        wired.let_go()
        shutil.rmtree(directory, ignore_errors=True)
