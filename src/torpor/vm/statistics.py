"""What a machine uses: as the host sees it, which holds whatever the guest says, and as the guest
does."""

import asyncio
import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

from torpor.vm.agent import GuestAgent
from torpor.vm.errors import VmError
from torpor.vm.guest_statistics import GuestStatistics
from torpor.vm.processes import proc_text
from torpor.vm.qmp import Qmp
from torpor.vm.sizes import stored_bytes

GUEST_LIMIT = 3.0
"""Seconds that the guest may take to answer."""


@dataclass(frozen=True)
class HostStatistics:
    """What QEMU's process uses, since it was started: seconds, bytes.

    ``vcpus`` has the time that each vCPU's thread ran, ``emulator`` that of all other threads of
    QEMU together, ``waited`` the time for which vCPUs were ready and had no processor. (Under
    software emulation a vCPU's thread also translates.) ``resident`` is all memory that is there,
    ``private`` what ends with this machine, ``shared`` what it has in common with others (its base
    among it), ``proportional`` private memory and its share of the shared. ``layer`` is what its
    top layer takes on the disk. Reads and writes are those of its root disk.
    """

    vcpus: tuple[float, ...]
    waited: float
    emulator: float
    resident: int
    private: int
    shared: int
    proportional: int
    swapped: int
    layer: int
    read_bytes: int
    reads: int
    written_bytes: int
    writes: int


@dataclass(frozen=True)
class Statistics:
    """A machine's statistics; ``guest`` is None if the guest did not answer."""

    host: HostStatistics
    guest: GuestStatistics | None


async def take_statistics(
    pid: int, top: Path, qmp: Qmp, agent: GuestAgent | None, guest_limit: float
) -> Statistics:
    """Return what the machine with QEMU's process ``pid`` and the writable layer ``top`` uses.

    Raises :exc:`QmpError`, and OSError if the process is gone.
    """
    threads, blocks, guest = await asyncio.gather(
        qmp.vcpu_threads(), qmp.disk_counts("root"), _of_guest(agent, guest_limit)
    )
    return Statistics(await asyncio.to_thread(_of_host, pid, top, threads, blocks), guest)


async def _of_guest(agent: GuestAgent | None, limit: float) -> GuestStatistics | None:
    if agent is None:
        return None
    with contextlib.suppress(VmError, TimeoutError):
        async with asyncio.timeout(limit):
            return await agent.statistics()
    return None


def _of_host(
    pid: int, top: Path, threads: list[int], blocks: tuple[int, int, int, int]
) -> HostStatistics:
    process = Path(f"/proc/{pid}")
    run: dict[int, float] = {}
    wait: dict[int, float] = {}
    for task in (process / "task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            ran, waited, _ = (task / "schedstat").read_text().split()
            # QEMU knows its threads by their numbers in its own PID namespace, the innermost.
            inside = re.findall(r"^NSpid:.*?(\d+)$", proc_text(task / "status"), re.M)[0]
            run[int(inside)] = int(ran) / 1e9
            wait[int(inside)] = int(waited) / 1e9
    memory = _rollup(process / "smaps_rollup")
    return HostStatistics(
        vcpus=tuple(run.get(thread, 0.0) for thread in threads),
        waited=sum(wait.get(thread, 0.0) for thread in threads),
        emulator=sum(ran for thread, ran in run.items() if thread not in threads),
        resident=memory["Rss"],
        private=memory["Private_Clean"] + memory["Private_Dirty"],
        shared=memory["Shared_Clean"] + memory["Shared_Dirty"],
        proportional=memory["Pss"],
        swapped=memory["Swap"],
        layer=stored_bytes([top]),
        read_bytes=blocks[0],
        reads=blocks[1],
        written_bytes=blocks[2],
        writes=blocks[3],
    )


def _rollup(file: Path) -> dict[str, int]:
    """Return the sizes of a smaps_rollup in bytes."""
    sizes = {}
    for line in file.read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        sizes[name] = int(rest.split()[0]) << 10
    return sizes
