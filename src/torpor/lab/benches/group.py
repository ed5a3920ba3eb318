"""A group of figures that are measured together, and what most of them need."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from torpor.lab.figures import Figure, Notebook
from torpor.lab.laboratory import Laboratory
from torpor.vm import Command, Exec, GuestError, Machine, Output


@dataclass(frozen=True)
class Group:
    """Figures that one function measures, in a laboratory where no machine runs.

    ``measure`` may leave machines and snapshots behind. ``check`` raises what ``measure`` would if
    this host lacks something that it needs: it is asked before anything is measured.
    """

    name: str
    figures: tuple[Figure, ...]
    measure: Callable[[Laboratory, int, Notebook], Awaitable[None]]
    check: Callable[[], None] = lambda: None


class Stopwatch:
    """Counts seconds from its making on."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def seconds(self, until: float | None = None) -> float:
        """Return the seconds until now, or until a moment of :func:`time.monotonic`."""
        return (time.monotonic() if until is None else until) - self._began


def ready_at(machine: Machine) -> float:
    """Return the moment at which the guest agent acknowledged the wake steps."""
    assert machine.thawed is not None, "the machine was thawed"
    return machine.thawed.ready_at


async def first_exec(machine: Machine) -> None:
    """Run ``/bin/true``. Raises :exc:`GuestError` if it fails."""
    result = await machine.agent.run("/bin/true")
    if not result.exit.ok:
        raise GuestError("EPROTO", f"/bin/true ended with {result.exit}")


async def said(program: Exec, word: str) -> None:
    """Wait until a program has written ``word`` and a line end, and nothing else."""
    seen = b""
    async with asyncio.timeout(120):
        async for item in program.output():
            seen += item.data if isinstance(item, Output) else b""
            if seen == word.encode() + b"\n":
                return
    raise GuestError("EPROTO", f"the program wrote {seen!r} instead of {word!r}")


MEMORY = """
import mmap, os, sys
mib = int(sys.argv[1])
memory = mmap.mmap(-1, mib << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
block = os.urandom(1 << 20)
for i in range(mib):
    memory[i << 20 : (i + 1) << 20] = block
print("touched", flush=True)
for turn, line in enumerate(sys.stdin, 1):
    dirty = int(line)
    memory[0 : dirty << 20 : 4096] = bytes([turn]) * (dirty << 8)
    print("dirtied", flush=True)
"""
"""Touches as many MiB as its argument says with pages that are neither zero nor alike; then writes
one byte to each page of the first n MiB for each n that it reads."""


async def with_memory(machine: Machine, mib: int) -> Exec:
    """Start a process that has touched ``mib`` MiB, and return it."""
    program = await machine.agent.start(Command(["python3", "-c", MEMORY, str(mib)], stdin=True))
    await said(program, "touched")
    return program
