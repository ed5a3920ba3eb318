"""All benchmarks, and how they are run."""

import asyncio
import json
import os
import platform
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path

from torpor.images import Report
from torpor.lab.benches import (
    disk,
    forks,
    freed,
    idle,
    images,
    link,
    memory,
    network,
    pause,
    policy,
    preview,
    service_databases,
    service_load,
    service_operations,
    service_transfers,
    start,
    terminals,
    transfer,
)
from torpor.lab.benches.group import Group
from torpor.lab.figures import Notebook, Results, Row
from torpor.lab.laboratory import Laboratory
from torpor.vm.accelerator import cpu_model

GROUPS = (
    start.GROUP,
    pause.GROUP,
    disk.GROUP,
    memory.GROUP,
    freed.GROUP,
    forks.GROUP,
    transfer.GROUP,
    idle.EXEC_GROUP,
    terminals.GROUP,
    idle.IDLE_GROUP,
    images.GROUP,
)
FIGURES = tuple(figure for group in GROUPS for figure in group.figures)
SERVICE_GROUPS = (
    service_operations.GROUP,
    service_transfers.GROUP,
    *service_load.GROUPS,
    service_databases.GROUP,
    preview.GROUP,
)
"""What is measured over HTTP, with a server for each group."""
SERVICE_FIGURES = tuple(figure for group in SERVICE_GROUPS for figure in group.figures)
NETWORK_GROUPS = (policy.GROUP, network.GROUP, link.GROUP)
"""What is measured of the wall."""
NETWORK_FIGURES = tuple(figure for group in NETWORK_GROUPS for figure in group.figures)


async def bench(
    lab: Laboratory,
    runs: int,
    report: Report,
    names: Collection[str] | None = None,
    groups: Sequence[Group] = GROUPS,
) -> Results:
    """Measure ``runs`` times, all figures or those groups in which one of ``names`` is.

    Raises what machines raise: a bench in which something fails has no results.
    """
    if runs < 1:
        raise ValueError(f"{runs} runs measure nothing; ask for at least one")
    unknown = set(names or ()) - {figure.name for each in groups for figure in each.figures}
    if unknown:
        raise ValueError(f"there is no figure {', '.join(sorted(unknown))}")
    chosen = [
        group
        for group in groups
        if names is None or {figure.name for figure in group.figures} & set(names)
    ]
    for group in chosen:
        group.check()
    host = host_facts(lab)
    rows: list[Row] = []
    for group in chosen:
        book = Notebook(group.name, group.figures, report)
        try:
            await group.measure(lab, runs, book)
        finally:
            await _clear(lab)
        rows += book.rows()
    for row in rows:
        lab.keep(f"bench/{row.figure.name}.json", json.dumps(row.samples))
    return Results(host, tuple(rows))


async def _clear(lab: Laboratory) -> None:
    """End the machines and remove the snapshots that a group has left."""
    await asyncio.gather(*(lab.host.end(each) for each in list(lab.host.machines.values())))
    for snapshot in lab.host.store.ids():
        await lab.host.remove(snapshot)


def host_facts(lab: Laboratory) -> dict[str, str | int | float]:
    """Return what figures depend on: this computer, its programs, the machine's shape."""
    accelerator = lab.maker.accelerator
    meminfo = Path("/proc/meminfo").read_text().splitlines()[0]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": cpu_model(),
        "cores": os.cpu_count() or 0,
        "memory_mib": int(meminfo.split()[1]) // 1024,
        "load_at_start": round(os.getloadavg()[0], 2),
        "kernel": f"{platform.system()} {platform.release()}",
        "file_system": _file_system(lab.host.home),
        "accelerator": accelerator.name,
        "why": accelerator.why,
        "qemu": ".".join(map(str, accelerator.qemu_version)),
        "python": platform.python_version(),
        "jail": "; ".join(lab.maker.jail.missing) or "complete",
        "machine": str(lab.shape),
        "image": lab.image.name,
        "guest_kernel": lab.maker.parts.kernel_version,
    }


def _file_system(directory: Path) -> str:
    """Return the type of the file system that holds ``directory``."""
    found = (0, "unknown")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind = line.split()[:3]
        if directory.is_relative_to(place):
            found = max(found, (len(place), kind))
    return found[1]
