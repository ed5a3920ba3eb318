"""A machine that does nothing, and the shortest thing that one can do."""

import asyncio
import os
import time
from pathlib import Path

from torpor.lab.benches.group import Group, Stopwatch, first_exec
from torpor.lab.figures import Figure, Notebook
from torpor.lab.laboratory import Laboratory
from torpor.vm import Machine

SETTLED, WATCHED = 10.0, 20.0
"""Seconds: an idle machine is left alone for the first, then watched for the second."""
MOST = 5
"""Runs of half a minute each; more would tell nothing new."""
EXECS = 5

EXEC = (Figure("exec_roundtrip", "s", "/bin/true in a machine that has run it before"),)
IDLE = (
    Figure(
        "idle_machine_mib",
        "MiB",
        "what an idle machine's processes hold over its base: anonymous and swapped memory",
    ),
    Figure("idle_machine_cpu", "%", "processor time of the same processes over 20 s"),
)


async def measure_exec(lab: Laboratory, runs: int, book: Notebook) -> None:
    """Run ``/bin/true`` a few times in each of several machines."""
    for _ in book.runs(runs):
        machine = await lab.machine("bench")
        for _ in range(EXECS):
            await first_exec(machine)
        for _ in range(EXECS):
            clock = Stopwatch()
            await first_exec(machine)
            book.note("exec_roundtrip", clock.seconds())
        await lab.host.end(machine)


async def measure_idle(lab: Laboratory, runs: int, book: Notebook) -> None:
    """Leave a new machine alone, and look at its processes from outside."""
    for _ in book.runs(min(runs, MOST)):
        machine = await lab.machine("bench")
        await asyncio.sleep(SETTLED)
        processes = machine_processes(machine)
        before, began = cpu_seconds(processes), time.monotonic()
        await asyncio.sleep(WATCHED)
        spent, watched = cpu_seconds(processes) - before, time.monotonic() - began
        book.note("idle_machine_cpu", 100 * spent / watched)
        book.note("idle_machine_mib", own_kib(processes) / 1024)
        await lab.host.end(machine)


def machine_processes(machine: Machine) -> list[int]:
    """Return QEMU's process and, if it is in a jail, the one that waits for it outside."""
    parent = int(_stat(machine.pid)[1])
    jailer = Path(f"/proc/{parent}/comm").read_text().strip() == "bwrap"
    return [machine.pid, parent] if jailer else [machine.pid]


def cpu_seconds(processes: list[int]) -> float:
    """Return the processor time that processes have used so far, in user and kernel mode."""
    ticks = sum(int(field) for pid in processes for field in _stat(pid)[11:13])
    return ticks / os.sysconf("SC_CLK_TCK")


def own_kib(processes: list[int]) -> int:
    """Return the memory in KiB that ends with these processes.

    That is ``Anonymous`` and ``Swap`` of ``smaps_rollup``: pages that the guest has written are
    anonymous copies, those of the base are not, nor are the pages of programs and libraries. (The
    fields named ``Private`` will not do: they count the base if only one machine maps it.)
    """
    total = 0
    for pid in processes:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("Anonymous", "Swap"):
                total += int(value.split()[0])
    return total


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/<pid>/stat`` from the third (state) on; see proc(5)."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return text[text.rindex(")") + 2 :].split()


EXEC_GROUP = Group("exec", EXEC, measure_exec)
IDLE_GROUP = Group("idle machines", IDLE, measure_idle)
