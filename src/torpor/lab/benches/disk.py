"""Files alone: a snapshot of the disk, and a new machine that boots from it."""

from torpor.lab.benches.group import Group, Stopwatch
from torpor.lab.figures import Figure, Notebook
from torpor.lab.laboratory import Laboratory
from torpor.vm import Identity, Wanted

FIGURES = (
    Figure("files_snapshot", "s", "a snapshot of the disk of a machine that runs on: visible"),
    Figure("files_create_ready", "s", "a new machine boots from that disk, up to ready"),
)


async def measure(lab: Laboratory, runs: int, book: Notebook) -> None:
    """Snapshot the disk of a new machine with 16 MiB of new files, and boot from it."""
    for _ in book.runs(runs):
        machine = await lab.machine("bench")
        await machine.agent.shell("mkdir -p /data && head -c 16M /dev/urandom >/data/file")
        clock = Stopwatch()
        files = await lab.host.freeze(machine, Wanted("run", "none"))
        book.note("files_snapshot", clock.seconds())
        await lab.host.end(machine)
        await lab.host.durable(files.manifest.id)

        clock = Stopwatch()
        machine = await lab.host.boot_files(
            files.manifest.id, lab.maker.kernel, Identity.of("bench")
        )
        book.note("files_create_ready", clock.seconds())
        await lab.host.end(machine)
        await lab.host.remove(files.manifest.id)


GROUP = Group("files", FIGURES, measure)
