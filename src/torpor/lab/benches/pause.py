"""Pause, resume and checkpoint of a machine in which little has happened."""

from torpor.lab.benches.group import Group, Stopwatch, first_exec, ready_at, with_memory
from torpor.lab.figures import Figure, Notebook
from torpor.lab.laboratory import Laboratory
from torpor.vm import MIB, Wanted

TOUCHED = 16

FIGURES = (
    Figure("pause_returned", "s", "a machine is frozen and gone, its snapshot visible"),
    Figure("pause_durable", "s", "the same: the snapshot survives a power cut"),
    Figure("pause_stored_mib", "MiB", "the same: what was added to the store"),
    Figure("resume_returned", "s", "that snapshot is thawed: the call has returned"),
    Figure("resume_ready", "s", "the same: ready"),
    Figure("resume_first_exec", "s", "the same: /bin/true has run in it"),
    Figure("checkpoint_returned", "s", "a machine is frozen and runs on, its snapshot visible"),
)


async def measure(lab: Laboratory, runs: int, book: Notebook) -> None:
    """Pause, resume and checkpoint a new machine each time."""
    for _ in book.runs(runs):
        machine = await lab.machine("bench")
        await with_memory(machine, TOUCHED)

        clock = Stopwatch()
        paused = await lab.host.freeze(machine, Wanted("stop"))
        book.note("pause_returned", clock.seconds())
        await lab.host.durable(paused.manifest.id)
        book.note("pause_durable", clock.seconds())
        book.note("pause_stored_mib", paused.manifest.stored_bytes / MIB)

        clock = Stopwatch()
        machine = await lab.host.thaw(paused.manifest.id)
        book.note("resume_returned", clock.seconds())
        book.note("resume_ready", clock.seconds(ready_at(machine)))
        await first_exec(machine)
        book.note("resume_first_exec", clock.seconds())

        clock = Stopwatch()
        checkpoint = await lab.host.freeze(machine, Wanted("run"))
        book.note("checkpoint_returned", clock.seconds())
        await lab.host.durable(checkpoint.manifest.id)

        await lab.host.end(machine)
        for made in (checkpoint, paused):
            await lab.host.remove(made.manifest.id)


GROUP = Group("pause, resume, checkpoint", FIGURES, measure)
