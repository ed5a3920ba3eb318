"""Experiment 5: the files of an agent that has ended, in a new machine that never knew it."""

import asyncio
import json

from torpor.lab.check import Check, Experiment
from torpor.lab.disk_check import check_disk
from torpor.lab.laboratory import Laboratory
from torpor.lab.probes import put_program, run_program
from torpor.vm import Identity, Machine, Wanted

NAME = "files-only"
DIRECTORY = "/srv/agent"
TURNS = 40
OF_AN_AGENT = ("state.db", "agent.log", "pending-interactions.json")

Inventory = dict[str, list[int | str | None]]
"""Mode, size and SHA-256 of everything below a directory, by path."""


async def run(lab: Laboratory) -> list[Check]:
    """Let an agent work and end, keep the disk alone, start a new machine from it."""
    machine = await lab.machine("files-before")
    await run_program(machine, "agent.py", DIRECTORY, str(TURNS))
    await put_program(machine, "inventory.py")
    before = await inventory(machine)
    boot_before = machine.record.guest_boot_id
    frozen = await lab.host.freeze(machine, Wanted("stop", "none"))
    snapshot = frozen.manifest.id
    # The check of the disk runs on the host while the new machine boots.
    async with asyncio.TaskGroup() as group:
        checking = group.create_task(
            check_disk(lab.host, snapshot, lab.host.home / "files-only.raw")
        )
        booting = group.create_task(
            lab.host.boot_files(snapshot, lab.maker.kernel, Identity.of("files-after"))
        )
    disk, machine = checking.result(), booting.result()
    after = await inventory(machine)
    for name, found in (("before", before), ("after", after)):
        lab.keep(f"{NAME}/{name}.json", json.dumps(found, indent=1))
    lab.keep(f"{NAME}/e2fsck.txt", disk.said)
    different = sorted(
        path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
    )
    missing = [name for name in OF_AN_AGENT if name not in before]
    size = sum(int(entry[1] or 0) for entry in after.values() if entry[2])
    boot_after = machine.record.guest_boot_id
    return [
        Check(
            f"{NAME}-same",
            bool(before) and not different and not missing,
            f"every path, size and SHA-256 below {DIRECTORY} is the same in a new machine",
            f"{len(after)} paths, {size} bytes, {len(different)} different"
            + "".join(f"; {path}" for path in (different + missing)[:3]),
        ),
        Check(
            f"{NAME}-new-machine",
            boot_before != boot_after and frozen.manifest.memory is None,
            "only the disk was kept: the kernel has booted anew",
            f"boot {boot_before[:8]}, then {boot_after[:8]}",
        ),
        Check(
            f"{NAME}-disk-check",
            disk.clean,
            "e2fsck -fy on a copy of the disk ends with 0 or 1 and has nothing to repair, then -fn "
            "with 0",
            str(disk),
        ),
    ]


async def inventory(machine: Machine) -> Inventory:
    """Return what is below the agent's directory in the guest."""
    found: Inventory = json.loads(await run_program(machine, "inventory.py", DIRECTORY))
    return found


EXPERIMENT = Experiment(
    NAME,
    "An agent has worked and ended; the disk alone is kept, a new machine starts from it, and "
    "every file is compared.",
    run,
)
