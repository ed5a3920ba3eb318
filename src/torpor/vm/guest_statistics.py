"""What a machine says that it uses. The guest is not trusted: each number is checked for its form,
none for its truth; what the host sees of the machine is in :mod:`torpor.vm.statistics`."""

from dataclasses import dataclass
from typing import Any

from torpor.vm.answers import broken, number
from torpor.vm.channel import plain

MOST_INTERFACES = 64


@dataclass(frozen=True)
class GuestCpu:
    """Seconds since the boot: of all vCPUs, and (``commands_``) of the user's processes, the last
    one being time for which they were held back by a limit."""

    count: int
    user: float
    system: float
    idle: float
    steal: float
    commands_user: float
    commands_system: float
    commands_throttled: float | None


@dataclass(frozen=True)
class GuestMemory:
    """Bytes; ``commands`` are those of the user's processes with the files that they read. None is
    what the guest's kernel does not count."""

    total: int
    available: int
    free: int
    cached: int
    commands: int | None
    commands_peak: int | None
    commands_swap: int | None
    commands_oom_kills: int | None


@dataclass(frozen=True)
class GuestDisk:
    """Bytes and inodes of ``/``, and what its disk has read and written since the boot."""

    size: int
    used: int
    free: int
    inodes: int
    inodes_free: int
    read_bytes: int | None
    reads: int | None
    written_bytes: int | None
    writes: int | None


@dataclass(frozen=True)
class GuestInterface:
    """Bytes and packets of one network interface since the boot."""

    name: str
    received_bytes: int
    received_packets: int
    sent_bytes: int
    sent_packets: int


@dataclass(frozen=True)
class GuestStatistics:
    """All that a guest says it uses. ``uptime`` is in seconds of the machine's running time."""

    cpu: GuestCpu
    memory: GuestMemory
    disk: GuestDisk
    network: tuple[GuestInterface, ...]
    processes: int
    load: tuple[float, float, float]
    uptime: float


def parse_statistics(said: dict[str, Any]) -> GuestStatistics:
    """Return what the agent said. Raises :exc:`GuestError` if it has not the form."""
    cpu, memory, disk = (_part(said, name) for name in ("cpu", "memory", "disk"))
    network, load = said.get("network"), said.get("load")
    if not isinstance(network, list) or len(network) > MOST_INTERFACES:
        raise broken("network")
    if not isinstance(load, list) or len(load) != 3:
        raise broken("load")
    one, five, fifteen = (_real(each, "load") for each in load)
    return GuestStatistics(
        cpu=GuestCpu(
            count=number(cpu, "count"),
            user=number(cpu, "user_ns") / 1e9,
            system=number(cpu, "system_ns") / 1e9,
            idle=number(cpu, "idle_ns") / 1e9,
            steal=number(cpu, "steal_ns") / 1e9,
            commands_user=number(cpu, "commands_user_ns") / 1e9,
            commands_system=number(cpu, "commands_system_ns") / 1e9,
            commands_throttled=_seconds(_perhaps(cpu, "commands_throttled_ns")),
        ),
        memory=GuestMemory(
            *(number(memory, name) for name in ("total", "available", "free", "cached")),
            *(_perhaps(memory, f"commands{name}") for name in ("", "_peak", "_swap", "_oom_kills")),
        ),
        disk=GuestDisk(
            *(number(disk, name) for name in ("size", "used", "free", "inodes", "inodes_free")),
            *(_perhaps(disk, name) for name in ("read_bytes", "reads", "written_bytes", "writes")),
        ),
        network=tuple(_interface(each) for each in network),
        processes=number(said, "processes"),
        load=(one, five, fifteen),
        uptime=number(said, "uptime_ns") / 1e9,
    )


def _interface(said: object) -> GuestInterface:
    if not isinstance(said, dict):
        raise broken("network")
    names = ("received_bytes", "received_packets", "sent_bytes", "sent_packets")
    return GuestInterface(plain(said.get("name"), 64), *(number(said, name) for name in names))


def _part(said: dict[str, Any], name: str) -> dict[str, Any]:
    part = said.get(name)
    if not isinstance(part, dict):
        raise broken(name)
    return part


def _perhaps(said: dict[str, Any], name: str) -> int | None:
    return None if said.get(name) is None else number(said, name)


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9


def _real(number: object, name: str) -> float:
    if type(number) not in (int, float) or not 0 <= number < 1e9:  # type: ignore[operator]
        raise broken(name)
    return float(number)  # type: ignore[arg-type]
