"""What is done with the snapshots of a host that is open, beside freezing and thawing them."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from torpor.vm.erasure import Erased, erase
from torpor.vm.export import Exported, Report, export_file, silent
from torpor.vm.host import Host
from torpor.vm.importing import Imported, import_snapshot
from torpor.vm.retention import Plan, Policy, held_elsewhere, plan, standing
from torpor.vm.stoppable import stoppable, to_the_end


async def export_from(
    host: Host, snapshot: str, file: Path, *, shared: bool = True, report: Report = silent
) -> Exported:
    """Write a snapshot and all that it needs to one file, when it is durable.

    An export that is cancelled goes on when it is asked for again. Raises :exc:`SnapshotError` and
    OSError.
    """
    await host.durable(snapshot)
    return await stoppable(
        lambda check: export_file(
            host.store, snapshot, file, shared=shared, report=report, check=check
        )
    )


async def import_into(
    host: Host, source: BinaryIO, *, name: str | None = None, report: Report = silent
) -> Imported:
    """Add an exported snapshot; see :func:`torpor.vm.importing.import_snapshot`.

    An import that is cancelled goes on when it is asked for again. Raises :exc:`SnapshotError` and
    OSError.
    """
    made = await stoppable(
        lambda check: import_snapshot(host.store, source, name=name, report=report, check=check)
    )
    host.chains.start()
    return made


async def erase_from(host: Host, snapshot: str, *, overwrite: bool = False) -> Erased:
    """Remove a snapshot so that its content cannot be read back; see
    :func:`torpor.vm.erasure.erase`. Raises :exc:`SnapshotError` and OSError."""
    await host.settled(snapshot)
    erased = await to_the_end(
        asyncio.to_thread(erase, host.store, snapshot, host.used(), overwrite=overwrite)
    )
    for file in erased.files:
        if file.name.startswith("bases/") and file.what == "erased":
            await host.forget_base(Path(file.name).stem)
    host.collect()
    return erased


def plan_for(host: Host, policy: Policy) -> Plan:
    """Say which snapshots a policy removes, and what that frees. Blocks."""
    held = held_elsewhere(host.store, host.used())
    return plan(list(standing(host.store)), policy, datetime.now(UTC), held)


async def apply(host: Host, made: Plan) -> int:
    """Remove what a plan says, and return the bytes that were freed."""
    freed = host.collect().freed_bytes
    for removal in made.removals:
        freed += (await host.remove(removal.id)).freed_bytes
    return freed
