"""Freeze and thaw against how much memory is touched, beside a plain copy and QEMU's full save."""

import asyncio
import os
import time
from pathlib import Path

from torpor.lab.benches.group import Group, Stopwatch, first_exec, ready_at, said, with_memory
from torpor.lab.figures import Figure, Notebook
from torpor.lab.laboratory import Laboratory
from torpor.vm import Machine, Wanted
from torpor.vm.full_save import loaded_full, save_full
from torpor.vm.new_snapshot import guest_mapping
from torpor.vm.pages import PAGE, Mapping, Run, batches, write_all, written_runs

DIRTY = 64
TOUCHED = (128, 256, 512, 768)
"""MiB; the last one is that of the figures whose names end in ``_64mib``."""
BATCH = 1024
"""Pages read before they are written, as in a delta."""

FIGURES = (
    Figure("quiesce_64mib", "s", "before a freeze: the guest rests and has synced its disk"),
    Figure("freeze_64mib", "s", "the vCPUs stand still: stop to cont, 64 of 768 MiB dirty"),
    Figure("commit_64mib", "s", "after it: up to the visible snapshot"),
    Figure("durable_64mib", "s", "after that: up to a snapshot that survives a power cut"),
    Figure("copy_64mib", "s", "what bounds it: the same pages read and written to a file"),
    Figure("full_save", "s", "without Torpor: stop, QEMU saves all memory to a file, no fsync"),
    Figure("full_load", "s", "without Torpor: a new QEMU loads it, up to the agent's answer"),
    Figure("thaw_ready_64mib", "s", "that snapshot is thawed, 64 MiB over its base: ready"),
    *(
        figure
        for touched in TOUCHED[:-1]
        for figure in (
            Figure(f"freeze_64mib_of_{touched}", "s", f"freeze_64mib with {touched} MiB touched"),
            Figure(f"full_save_of_{touched}", "s", f"full_save with {touched} MiB touched"),
        )
    ),
)


async def measure(lab: Laboratory, runs: int, book: Notebook) -> None:
    """Start each run from the same snapshots, so that no run carries another's leftovers."""
    starts = {touched: await dirty_snapshot(lab, touched, DIRTY) for touched in TOUCHED}
    for run in book.runs(runs):
        for touched, snapshot in starts.items():
            await _measure_one(lab, book, snapshot, touched, copy_first=run % 2 == 0)


async def dirty_snapshot(lab: Laboratory, touched: int, dirty: int) -> str:
    """Return a durable snapshot whose base has ``touched`` MiB touched, ``dirty`` since then."""
    host = lab.host
    machine = await lab.machine("bench")
    program = await with_memory(machine, touched)
    base = (await host.freeze(machine, Wanted("stop", "base"))).manifest.id
    await host.durable(base)
    machine = await host.thaw(base)
    program = await machine.agent.attach(program.id, seq=program.received)
    await program.write(b"%d\n" % dirty)
    await said(program, "dirtied")
    snapshot = (await host.freeze(machine, Wanted("stop", "delta"))).manifest.id
    await host.durable(snapshot)
    return snapshot


async def _measure_one(
    lab: Laboratory, book: Notebook, snapshot: str, touched: int, *, copy_first: bool
) -> None:
    chief = touched == TOUCHED[-1]
    clock = Stopwatch()
    machine = await lab.host.thaw(snapshot)
    if chief:
        book.note("thaw_ready_64mib", clock.seconds(ready_at(machine)))
    await first_exec(machine)

    if chief and copy_first:
        book.note("copy_64mib", await copy_written(lab, machine))
    frozen = await lab.host.freeze(machine, Wanted("run", "delta"))
    clock = Stopwatch()
    await lab.host.durable(frozen.manifest.id)
    if chief:
        book.note("durable_64mib", clock.seconds())
        book.note("quiesce_64mib", frozen.times.quiesce)
        book.note("commit_64mib", frozen.times.commit)
        if not copy_first:
            book.note("copy_64mib", await copy_written(lab, machine))
    book.note("freeze_64mib" if chief else f"freeze_64mib_of_{touched}", frozen.times.window)
    await lab.host.remove(frozen.manifest.id)

    saved = await save_full(machine, lab.host.home / "full-save")
    try:
        book.note("full_save" if chief else f"full_save_of_{touched}", saved.seconds)
        await lab.host.end(machine)
        if chief:
            place = lab.host.home / "machines"
            async with loaded_full(
                saved, place, lab.host.store, lab.maker.jail, lab.host.links
            ) as (_, seconds):
                book.note("full_load", seconds)
    finally:
        saved.remove()


async def copy_written(lab: Laboratory, machine: Machine) -> float:
    """Copy the pages that a machine has written since its base; return the seconds.

    To a new file where a freeze writes its own, through ``/proc/<pid>/mem``; nothing is forced to
    disk, and finding the pages is not counted.
    """
    mapping = guest_mapping(machine)
    runs = await asyncio.to_thread(written_runs, mapping)
    file = lab.host.store.root / "snapshots" / ".copy"
    try:
        return await asyncio.to_thread(_copy, mapping, runs, file)
    finally:
        file.unlink(missing_ok=True)


def _copy(mapping: Mapping, runs: list[Run], file: Path) -> float:
    began = time.monotonic()
    buffer = bytearray(BATCH * PAGE)
    view = memoryview(buffer)
    position = 0
    with (
        open(f"/proc/{mapping.pid}/mem", "rb", buffering=0) as memory,
        open(file, "xb", buffering=0) as copy,
    ):
        for batch in batches(runs, BATCH):
            size = 0
            for first, count in batch:
                place = view[size : size + count * PAGE]
                if os.preadv(memory.fileno(), [place], mapping.start + first * PAGE) != len(place):
                    raise OSError("guest memory was read short")
                size += len(place)
            write_all(copy.fileno(), view[:size], position)
            position += size
    return time.monotonic() - began


GROUP = Group("freeze, copy, full save", FIGURES, measure)
