"""What a machine's process uses, read so cheaply that it can be done all the time.

:mod:`torpor.vm.statistics` tells more, and asks QEMU and the guest for it.
"""

import contextlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from torpor.vm.processes import proc_text


@dataclass(frozen=True)
class Usage:
    """Seconds since the process was started, and bytes.

    ``vcpu`` is the time that the vCPUs' threads ran, ``waited`` the time for which they were ready
    and had no processor, ``emulator`` that of all other threads of QEMU. ``private`` is memory that
    only this machine has (what its guest wrote, and QEMU's own), ``resident`` all that is there.
    """

    vcpu: float
    waited: float
    emulator: float
    resident: int
    private: int


def outer_threads(pid: int, inner: Collection[int]) -> frozenset[int]:
    """Return the threads of ``pid`` whose numbers in its own PID namespace are ``inner``, as the
    host numbers them. Raises OSError if the process is gone."""
    found = set()
    for task in (Path("/proc") / str(pid) / "task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            numbers = re.findall(r"^NSpid:.*?(\d+)$", proc_text(task / "status"), re.M)
            if int(numbers[0]) in inner:
                found.add(int(task.name))
    return frozenset(found)


def take_usage(pid: int, vcpus: Collection[int]) -> Usage:
    """Return what the process ``pid`` uses; ``vcpus`` are its vCPUs' threads, as
    :func:`outer_threads` returns them. Raises OSError if the process is gone."""
    process = Path("/proc") / str(pid)
    ran = waited = emulator = 0
    for task in (process / "task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            run, wait, _ = (task / "schedstat").read_text().split()
            if int(task.name) in vcpus:
                ran, waited = ran + int(run), waited + int(wait)
            else:
                emulator += int(run)
    # proc(5): anonymous memory is what was written; a base in shared memory counts as shmem.
    status = proc_text(process / "status")
    memory = dict(re.findall(r"^(VmRSS|RssAnon):\s+(\d+) kB$", status, re.M))
    if "VmRSS" not in memory:  # a zombie has no memory any more
        raise ProcessLookupError(f"{process} has ended")
    return Usage(
        vcpu=ran / 1e9,
        waited=waited / 1e9,
        emulator=emulator / 1e9,
        resident=int(memory["VmRSS"]) << 10,
        private=int(memory["RssAnon"]) << 10,
    )
