"""Memory that was used and given back: what a freeze then still pays for it."""

from torpor.lab.benches.group import Group, with_memory
from torpor.lab.figures import Figure, Notebook
from torpor.lab.laboratory import Laboratory
from torpor.vm import MIB, Wanted

FREED = 200

FIGURES = (
    Figure(
        "freeze_after_free_200mib",
        "s",
        "the vCPUs stand still, after a process has touched 200 MiB and ended",
    ),
    Figure("delta_after_free_200mib", "MiB", "the memory delta of that freeze"),
)


async def measure(lab: Laboratory, runs: int, book: Notebook) -> None:
    """Touch 200 MiB in a new machine, end that process, freeze."""
    for _ in book.runs(runs):
        machine = await lab.machine("bench")
        program = await with_memory(machine, FREED)
        await program.close_stdin()
        await program.wait()
        frozen = await lab.host.freeze(machine, Wanted("run", "delta"))
        book.note("freeze_after_free_200mib", frozen.times.window)
        book.note("delta_after_free_200mib", frozen.manifest.sizes["memory.delta"] / MIB)
        await lab.host.end(machine)
        await lab.host.durable(frozen.manifest.id)
        await lab.host.remove(frozen.manifest.id)


GROUP = Group("freed memory", FIGURES, measure)
