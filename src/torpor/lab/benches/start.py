"""Starting machines: from a golden snapshot, and by a cold boot, which is what it saves."""

from torpor.images import boot_wanted
from torpor.lab.benches.group import Group, Stopwatch, first_exec, ready_at
from torpor.lab.figures import Figure, Notebook
from torpor.lab.laboratory import Laboratory
from torpor.vm import Identity

FIGURES = (
    Figure("cold_boot", "s", "a kernel boots from the image, up to ready"),
    Figure("create_returned", "s", "a machine from the golden snapshot: the call has returned"),
    Figure("create_ready", "s", "the same: ready"),
    Figure("create_first_exec", "s", "the same: /bin/true has run in it"),
    Figure("thaw_launch", "s", "part of create: QEMU starts and its monitor answers"),
    Figure("thaw_pages", "s", "part of create: the snapshot is checked, its pages are written"),
    Figure("thaw_devices", "s", "part of create: device state loaded, the vCPUs start"),
    Figure("thaw_wake", "s", "part of create: the agent answers and has done the wake steps"),
)


async def measure(lab: Laboratory, runs: int, book: Notebook) -> None:
    """Boot and create in turns."""
    # The first use of a base by a program opens it (QEMU before 8.2: copies it into memory).
    await lab.host.end(await lab.machine())
    for _ in book.runs(runs):
        clock = Stopwatch()
        machine = await lab.host.boot(
            boot_wanted(lab.maker, lab.image, lab.shape), Identity.of("bench")
        )
        book.note("cold_boot", clock.seconds())
        await lab.host.end(machine)

        clock = Stopwatch()
        machine = await lab.machine("bench")
        book.note("create_returned", clock.seconds())
        book.note("create_ready", clock.seconds(ready_at(machine)))
        await first_exec(machine)
        book.note("create_first_exec", clock.seconds())
        assert machine.thawed is not None
        book.note("thaw_launch", machine.thawed.launch)
        book.note("thaw_pages", machine.thawed.pages)
        book.note("thaw_devices", machine.thawed.devices)
        book.note("thaw_wake", machine.thawed.wake)
        await lab.host.end(machine)


GROUP = Group("create and boot", FIGURES, measure)
