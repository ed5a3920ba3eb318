"""What this machine uses: read from the kernel when it is asked for, in plain numbers."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROC = Path("/proc")
MOST_INTERFACES = 64
SECTOR = 512
"""Bytes of a sector in ``/proc/diskstats``, whatever the disk has."""


def statistics(cgroup: Path) -> dict[str, Any]:
    """Return what the host is told; ``cgroup`` is that of the user's processes.

    A controller that the kernel lacks leaves its numbers out, as None.
    """
    return {
        "cpu": _cpu(cgroup),
        "memory": _memory(cgroup),
        "disk": _disk(),
        "network": _network(),
        "processes": sum(1 for name in os.listdir(PROC) if name.isdigit()),
        "load": list(os.getloadavg()),
        "uptime_ns": int(float(_text(PROC / "uptime").split()[0]) * 1e9),
    }


def _cpu(cgroup: Path) -> dict[str, Any]:
    """Times in ns since the boot: of the machine, and (``user_``) of the user's processes."""
    tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    user, nice, system, idle, iowait, irq, softirq, steal = (
        int(word) * tick for word in _text(PROC / "stat").split(None, 9)[1:9]
    )
    own = _flat(cgroup / "cpu.stat")
    return {
        "count": os.cpu_count(),
        "user_ns": user + nice,
        "system_ns": system + irq + softirq,
        "idle_ns": idle + iowait,
        "steal_ns": steal,
        "commands_user_ns": _times(own.get("user_usec"), 1000),
        "commands_system_ns": _times(own.get("system_usec"), 1000),
        "commands_throttled_ns": _times(own.get("throttled_usec"), 1000),
    }


def _memory(cgroup: Path) -> dict[str, Any]:
    """Bytes; ``commands_`` are those of the user's processes and the files that they read."""
    known = _flat(PROC / "meminfo")
    events = _flat(cgroup / "memory.events")
    return {
        "total": _times(known.get("MemTotal:"), 1024),
        "available": _times(known.get("MemAvailable:"), 1024),
        "free": _times(known.get("MemFree:"), 1024),
        "cached": _times(known.get("Cached:"), 1024),
        "commands": _number(cgroup / "memory.current"),
        "commands_peak": _number(cgroup / "memory.peak"),
        "commands_swap": _number(cgroup / "memory.swap.current"),
        "commands_oom_kills": events.get("oom_kill"),
    }


def _disk() -> dict[str, Any]:
    """Bytes and inodes of ``/``, and what its disk has read and written since the boot."""
    space = os.statvfs("/")
    device = os.stat("/").st_dev
    read = written = None
    reads = writes = None
    for words in _rows(PROC / "diskstats"):
        if (int(words[0]), int(words[1])) == (os.major(device), os.minor(device)):
            reads, read = int(words[3]), int(words[5]) * SECTOR
            writes, written = int(words[7]), int(words[9]) * SECTOR
    return {
        "size": space.f_blocks * space.f_frsize,
        "used": (space.f_blocks - space.f_bfree) * space.f_frsize,
        "free": space.f_bavail * space.f_frsize,
        "inodes": space.f_files,
        "inodes_free": space.f_favail,
        "read_bytes": read,
        "reads": reads,
        "written_bytes": written,
        "writes": writes,
    }


def _network() -> list[dict[str, Any]]:
    """Bytes and packets of each interface since the boot, at most ``MOST_INTERFACES``."""
    found = []
    for line in _text(PROC / "net/dev").splitlines()[2 : 2 + MOST_INTERFACES]:
        name, _, rest = line.partition(":")
        words = [int(word) for word in rest.split()]
        found.append(
            {
                "name": name.strip(),
                "received_bytes": words[0],
                "received_packets": words[1],
                "sent_bytes": words[8],
                "sent_packets": words[9],
            }
        )
    return found


def _text(path: Path) -> str:
    return path.read_text(errors="replace")


def _rows(path: Path) -> Iterator[list[str]]:
    try:
        text = _text(path)
    except OSError:
        return
    for line in text.splitlines():
        yield line.split()


def _flat(path: Path) -> dict[str, int]:
    """Return the numbers of a file of ``name number`` lines; nothing if there is no such file."""
    return {row[0]: int(row[1]) for row in _rows(path) if len(row) > 1 and row[1].isdigit()}


def _number(path: Path) -> int | None:
    for row in _rows(path):
        return int(row[0]) if row and row[0].isdigit() else None
    return None


def _times(number: int | None, unit: int) -> int | None:
    return None if number is None else number * unit
