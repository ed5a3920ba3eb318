"""What one machine's QEMU may take of the host: memory, processor time, processes, descriptors,
files.

Two mechanisms enforce it: control groups (:mod:`torpor.vm.cgroups`), where the host lets us make
them, and the kernel's resource limits, which every process can lower for itself (setrlimit(2)).
"""

from dataclasses import dataclass

from torpor.vm.accelerator import TRANSLATED_MIB, Accelerator
from torpor.vm.shape import MIB, Shape

OVERHEAD = 256 * MIB
"""Bytes that QEMU may take beyond the guest's memory and the translation cache. A machine of 1 GiB
that was just thawed is charged 29 MiB in all (docs/decisions/0029-limits-by-control-group.md)."""
MORE_CPUS = 1
"""Processors beyond the virtual ones: for QEMU's main loop and its threads for the disk."""
WORKERS = 64
"""Threads that QEMU starts at most for file access (``util/thread-pool.c``)."""
MORE_PROCESSES = 32
"""bubblewrap's process, QEMU's main loop, its RCU thread and a few more."""
DESCRIPTORS = 1024
"""A layer of the disk takes two, all else about 40; a machine gets a layer with each checkpoint."""
CHAIN, CACHE = 16, 32 * MIB
"""Layers of a disk that QEMU keeps tables of at most (:data:`torpor.vm.host.DEEPEST`), and the
bytes that it keeps of each one's at most (``block/qcow2.h``)."""
LAYER_OVERHEAD = 64 * MIB
"""Bytes that the tables of a qcow2 layer take at most, whatever is in it; see also
:func:`limits_for`."""


@dataclass(frozen=True)
class Limits:
    """The limits of one machine.

    ``memory`` and ``file`` (the largest file that it can write) are in bytes, ``cpus`` is in
    processors, ``processes`` counts threads too.
    """

    memory: int
    cpus: int
    processes: int
    descriptors: int
    file: int

    def resource_limits(self, *, own_user: bool) -> list[str]:
        """Return prlimit(1)'s arguments for all that resource limits can hold.

        A core would hold the guest's memory. The limit is 1 and not 0, because at 0 one is still
        piped into a program where ``core_pattern`` says so (core(5)). That of processes counts all
        of a user's, so it is only for one with no others.
        """
        limits = {
            "core": 1,
            "nofile": self.descriptors,
            "fsize": self.file,
            "memlock": 0,
        }
        if own_user:
            limits["nproc"] = self.processes
        return [f"--{name}={limit}:{limit}" for name, limit in limits.items()]


def limits_for(shape: Shape, accelerator: Accelerator, disk: int, *, sealed: bool) -> Limits:
    """Return the limits of a machine whose largest disk has ``disk`` virtual bytes.

    Where its memory maps a ``sealed`` copy (before QEMU 8.2 any base, and in a cold boot always),
    the first machine that touches a hole of it pays for the page that fills it, and for its own
    copy of that page when it writes: up to twice its memory.
    """
    times = 2 if sealed else 1
    translated = TRANSLATED_MIB * MIB if accelerator.name == "tcg" else 0
    return Limits(
        # Tables are 1/8192 of what they are for.
        memory=times * shape.memory_bytes
        + translated
        + OVERHEAD
        + CHAIN * min(CACHE, disk // 8192),
        cpus=shape.vcpus + MORE_CPUS,
        processes=shape.vcpus + WORKERS + MORE_PROCESSES,
        descriptors=DESCRIPTORS,
        # Tables are 1/8192 of the disk for clusters of 64 KiB, and as much again at most for counts
        # of references. Memory: a full save writes all of it to one file (torpor.vm.full_save).
        file=max(disk + disk // 1024, shape.memory_bytes) + LAYER_OVERHEAD,
    )
