"""Forks of a machine that runs on."""

import asyncio

from torpor.lab.benches.group import Group, Stopwatch, first_exec, with_memory
from torpor.lab.figures import Figure, Notebook
from torpor.lab.laboratory import Laboratory
from torpor.vm import Machine, VmError

TOUCHED = 16

FIGURES = (
    Figure("fork_window", "s", "the parent's processes stand still, up to their unfreeze"),
    Figure("fork_2_ready", "s", "two children of a running machine: both ready"),
    Figure("fork_10_ready", "s", "ten children of a running machine: all ready"),
    Figure("fork_10_first_exec", "s", "the same: /bin/true has run in all ten, started at once"),
)


async def measure(lab: Laboratory, runs: int, book: Notebook) -> None:
    """Fork a new machine into two, then another into ten."""
    for _ in book.runs(runs):
        for count in (2, 10):
            machine = await lab.machine("bench")
            await with_memory(machine, TOUCHED)
            clock = Stopwatch()
            forked = await lab.host.fork(machine, count)
            book.note(f"fork_{count}_ready", clock.seconds())
            book.note("fork_window", forked.frozen.times.still)
            children = alive(forked.children)
            if count == 10:
                await asyncio.gather(*(first_exec(child) for child in children))
                book.note("fork_10_first_exec", clock.seconds())
            await asyncio.gather(*(lab.host.end(each) for each in (machine, *children)))
            await lab.host.durable(forked.frozen.manifest.id)
            await lab.host.remove(forked.frozen.manifest.id)


def alive(children: list[Machine | VmError]) -> list[Machine]:
    """Return the children. Raises the error of one that could not be started."""
    for child in children:
        if isinstance(child, VmError):
            raise child
    return [child for child in children if isinstance(child, Machine)]


GROUP = Group("forks", FIGURES, measure)
