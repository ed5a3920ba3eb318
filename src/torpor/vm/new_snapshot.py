"""A snapshot being put together: what it consists of, and each of its parts being made."""

import asyncio
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from torpor.vm import base, manifest
from torpor.vm.accelerator import host_boot_id
from torpor.vm.delta import write_delta
from torpor.vm.detach import detach_file, detach_layer
from torpor.vm.disk import Layer, create_layer, is_empty_layer
from torpor.vm.disks import new_top
from torpor.vm.errors import FreezeError
from torpor.vm.heads import Move
from torpor.vm.hooks import HookLimits
from torpor.vm.machine import Machine
from torpor.vm.manifest import DELTA, DEVICES, Disks, MachineRecord, Manifest, Memory
from torpor.vm.pages import PAGE, Mapping, find_mapping, written_runs
from torpor.vm.qemu import TOP_MODES
from torpor.vm.sizes import stored_bytes
from torpor.vm.stoppable import to_the_end
from torpor.vm.store import Store

SMALL_DELTA = 256 << 20
"""Bytes up to which a delta is never too large to be copied at each freeze."""


def new_id() -> str:
    """Return an id for a snapshot or a machine: the time, so that they sort, and chance."""
    return f"{time.time_ns() // 1_000_000:011x}{secrets.token_hex(4)}"


@dataclass(frozen=True)
class Wanted:
    """What a freeze is to make.

    ``then``: does the machine run on, or stop? ``memory``: as a delta over the machine's base, as a
    new base, the cheaper of the two, or none at all (a snapshot of the disk). ``children``: how
    many machines are to be thawed from it, as far as that is known. ``event`` is what hooks are
    told that this is (else a pause if the machine stops, and a checkpoint if not), ``hooks`` how
    long they may take and what their failure means.
    """

    then: Literal["run", "stop"]
    memory: Literal["auto", "delta", "base", "none"] = "auto"
    children: int = 1
    id: str = field(default_factory=new_id)
    labels: dict[str, str] = field(default_factory=dict)
    event: Literal["pause", "checkpoint", "fork"] | None = None
    hooks: HookLimits = field(default_factory=HookLimits)


def cheaper_memory(written: int, base: int, children: int) -> Literal["delta", "base"]:
    """Return the cheaper form for ``written`` bytes that differ from a base of ``base`` stored
    bytes.

    A delta is written once and injected into each child. A base is copied from the old one, written
    to, and read once into shared memory or the page cache. Sizes decide: all of these are copies at
    about the same speed. A delta larger than its base is turned into a base in any case, because
    the next freeze would copy it again.
    """
    delta_cost = written * (1 + children)
    base_cost = 2 * (base + written)
    return "base" if delta_cost > base_cost or written > max(base, SMALL_DELTA) else "delta"


class NewSnapshot:
    """A snapshot being put together: what an earlier step leaves for a later one."""

    def __init__(self, machine: Machine, store: Store, wanted: Wanted, partial: Path) -> None:
        self._machine = machine
        self._store = store
        self._wanted = wanted
        self._memory = wanted.memory
        self._partial = partial
        self._record = machine.record
        self._base = self._record.base
        self._next: dict[str, Layer] = {}
        self._tops = {drive.slot: drive.top for drive in self._record.drives}
        self.top_files = {drive.slot: machine.top_file(drive) for drive in self._record.drives}
        self._written: dict[str, Layer] = {}
        """The layers on top, by slot, that become part of the snapshot."""
        self._objects: dict[str, Path] = {}
        self._devices = 0

    async def prepare(self) -> None:
        """Do what needs no stopped machine: choose memory's form, copy the old base, make
        layers."""
        if self._memory == "auto":
            self._memory = await asyncio.to_thread(self._cheaper_memory)
        if self._memory == "delta" and self._base is None:
            raise FreezeError("A machine that was booted has no base for a delta.")
        if self._memory == "base":
            self._base = new_id()
            await asyncio.to_thread(self._start_base)
        if self._wanted.then == "run":
            for slot, top in self._tops.items():
                new = self._next[slot] = new_top(slot, top.size)
                await create_layer(self._next_file(slot), new.size)
                with self._opened(self._next_file(slot), *TOP_MODES) as fds:
                    await self._machine.qmp.add_layer(new, *fds)
        if self._memory != "none":
            with self._opened(self._partial / DEVICES, os.O_WRONLY | os.O_CREAT) as fds:
                self._devices = await self._machine.qmp.add_fd(self._wanted.id, *fds)

    @contextmanager
    def _opened(self, file: Path, *modes: int) -> Iterator[list[int]]:
        with ExitStack() as stack:
            fds = [os.open(file, mode | os.O_CLOEXEC, 0o600) for mode in modes]
            for fd in fds:
                stack.callback(os.close, fd)
            yield fds

    def _cheaper_memory(self) -> Literal["delta", "base"]:
        if self._base is None:
            return "base"
        written = sum(run.length for run in written_runs(guest_mapping(self._machine))) * PAGE
        stored = stored_bytes([self._store.base(self._base)])
        return cheaper_memory(written, stored, self._wanted.children)

    def _start_base(self) -> None:
        file = self._partial / "memory.base"
        if self._record.base is None:
            base.create_base(file, self._record.shape.memory_bytes)
        else:
            base.copy_base(self._store.base(self._record.base), file)
        self._objects[f"bases/{self._base}.mem"] = file

    def _next_file(self, slot: str) -> Path:
        return self._machine.directory / self._next[slot].file_name

    async def settle(self) -> None:
        """Take back what the machine, which runs on, was given and no longer needs.

        That a layer came over an old top ends its right to write to the old one.
        """
        qmp = self._machine.qmp
        await qmp.release(self._wanted.id)
        now = {drive.top for drive in self._machine.record.drives}
        for slot, new in self._next.items():
            if new in now:
                await qmp.release(self._tops[slot].id)
            else:
                await qmp.drop_layer(new)
                self._next_file(slot).unlink(missing_ok=True)

    async def save_devices(self) -> None:
        """Write the state of devices and CPUs."""
        if self._memory != "none":
            await self._machine.qmp.save_devices(self._devices)

    async def save_memory(self) -> None:
        """Copy the written pages, as a delta or into the new base."""
        if self._memory != "none":
            await asyncio.to_thread(self._save_memory)

    def _save_memory(self) -> None:
        mapping = guest_mapping(self._machine)
        runs = written_runs(mapping)
        if self._memory == "delta":
            write_delta(self._partial / DELTA, mapping, runs)
        else:
            base.write_into_base(self._partial / "memory.base", mapping, runs)

    async def change_layers(self) -> None:
        """Put a new layer over the top one of each disk that was written, which thereby never
        changes again."""
        await self._find_written()
        if not self._written:
            return
        kept = {
            slot: self._store.put(self.top_files[slot], f"layers/{top.file_name}")
            for slot, top in self._written.items()
        }
        new = {slot: self._next[slot] for slot in self._written}
        await self._machine.qmp.put_layers([(new[slot], self._tops[slot]) for slot in new])
        self._machine.promote(new)
        self.top_files |= kept

    async def detach(self) -> None:
        """Make what the machine, which runs on, could still write into files that it cannot."""
        if self._memory != "none":
            await asyncio.to_thread(detach_file, self._partial / DEVICES)
        for drive in self._machine.record.drives:
            for layer in drive.layers:
                written = self._machine.directory / layer.file_name
                if written.exists():
                    await asyncio.to_thread(detach_layer, self._store, layer)
                    written.unlink()

    async def _find_written(self) -> None:
        """Find the layers on top that are not empty, and so part of the snapshot."""
        for slot, top in self._tops.items():
            if not await is_empty_layer(self.top_files[slot], top.size):
                self._written[slot] = top

    def commit(self) -> Manifest:
        """Make the snapshot visible."""
        return self._commit(self._manifest())

    def _commit(self, new: Manifest) -> Manifest:
        base_file = self._objects.pop(f"bases/{self._base}.mem", None)
        if base_file is not None:
            base_file.chmod(0o444)  # QEMU opens it anew, as another user
            base_file.rename(self._store.root / f"bases/{self._base}.mem")
        self._store.commit(self._partial, new, self._objects)
        return new

    async def commit_and_end(self) -> Manifest:
        """Make the snapshot visible and end the machine; never one without the other.

        The record names the snapshot first: whoever finds both after a crash ends the machine,
        whoever finds the machine alone lets it run on.
        """
        self._machine.update(ending=self._wanted.id)
        moves: list[Move] = []
        try:
            await self._find_written()
            for slot, top in self._written.items():
                self._objects[f"layers/{top.file_name}"] = self.top_files[slot]
            new = self._manifest()
            if new.disks:
                moves = await to_the_end(asyncio.to_thread(self._store.heads.prepare, new))
            made = self._commit(new)
        except BaseException:
            for move in moves:
                move.forget()
            self._machine.update(ending=None)
            raise
        await asyncio.shield(self._end(moves))
        return made

    async def _end(self, moves: list[Move]) -> None:
        # What disks hold is noted before the machine is gone: it could give it no more then.
        for move in moves:
            await asyncio.to_thread(move.done)
        await self._machine.kill()

    def _manifest(self) -> Manifest:
        record = self._record
        memory = None
        if self._memory != "none":
            assert self._base is not None
            memory = Memory(self._base, delta=self._memory == "delta")
        own = [file for file in self._partial.iterdir() if file.name != "memory.base"]
        sizes = {file.name: file.stat().st_size for file in own}
        for slot, top in self._written.items():
            own.append(self.top_files[slot])
            sizes[f"layers/{top.file_name}"] = self.top_files[slot].stat().st_size
        return describe(
            record,
            self._wanted.id,
            self._wanted.labels,
            memory,
            record.chains(self._written),
            sizes,
            stored_bytes([*own, *self._objects.values()]),
        )


def describe(
    record: MachineRecord,
    snapshot: str,
    labels: dict[str, str],
    memory: Memory | None,
    disks: Disks,
    sizes: dict[str, int],
    stored: int,
) -> Manifest:
    """Return the manifest of a new snapshot of the machine that has ``record``."""
    return Manifest(
        version=manifest.version_with(disks.slots, card=record.card),
        id=snapshot,
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        parent=record.snapshot,
        generation=record.generation + 1,
        shape=record.shape,
        accelerator=record.accelerator.name,
        qemu_version=record.accelerator.qemu_version,
        cpu=record.accelerator.cpu,
        guest=record.guest,
        guest_boot_id=record.guest_boot_id,
        host_boot_id=host_boot_id(),
        memory=memory,
        disk=disks.root,
        tools=record.tools,
        sizes=sizes,
        stored_bytes=stored,
        allocated_bytes=record.shape.memory_bytes + sum(each.top.size for each in record.drives),
        labels=labels,
        disks=disks.slots,
        card=record.card,
    )


def guest_mapping(machine: Machine) -> Mapping:
    """Return where a machine's process maps its memory."""
    record = machine.record
    return find_mapping(machine.pid, record.memory_file, record.shape.memory_bytes)
