"""The shape of a machine: what must be the same on both sides of a snapshot."""

from dataclasses import dataclass

from torpor.vm.errors import HostError

MIB = 1 << 20


@dataclass(frozen=True)
class Shape:
    """``vcpus`` virtual CPUs and ``memory_mib`` MiB of memory."""

    vcpus: int
    memory_mib: int

    @property
    def memory_bytes(self) -> int:
        """The memory in bytes."""
        return self.memory_mib * MIB

    def __str__(self) -> str:
        return f"{self.vcpus} vCPU, {self.memory_mib} MiB"


SIZES = {
    "mars-1vcpu-1gb": Shape(1, 1024),
    "mars-2vcpu-1gb": Shape(2, 1024),
    "mars-2vcpu-2gb": Shape(2, 2048),
    "mars-2vcpu-4gb": Shape(2, 4096),
    "mars-4vcpu-8gb": Shape(4, 8192),
    "mars-16vcpu-32gb": Shape(16, 32768),
}
"""The named sizes. ``mars-2vcpu-1gb`` is Torpor's own, the size that its figures are measured
at."""


def check_fits(shape: Shape, *, free_bytes: int, reserve_bytes: int = 256 * MIB) -> None:
    """Raise :exc:`HostError` if a machine of ``shape`` could not get all its memory now."""
    if not 1 <= shape.vcpus <= 255 or not 64 <= shape.memory_mib <= 1 << 20:
        raise HostError(
            f"A machine of {shape} is not possible.",
            todo="Ask for 1 to 255 vCPUs and 64 MiB to 1 TiB of memory.",
        )
    if shape.memory_bytes + reserve_bytes > free_bytes:
        raise HostError(
            f"A machine of {shape} does not fit: {free_bytes // MIB} MiB of memory are free, "
            f"{reserve_bytes // MIB} MiB of them are kept back.",
            state="Nothing was started.",
            todo="Ask for a smaller size or end other machines.",
        )


def free_memory_bytes(meminfo: str) -> int:
    """Return ``MemAvailable`` of the text of ``/proc/meminfo``, in bytes."""
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise HostError("/proc/meminfo has no line MemAvailable.", todo="Use Linux 3.14 or newer.")
