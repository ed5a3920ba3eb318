"""Control groups: one for each machine, with limits on its memory, processor time and processes.

Version 2 is one tree with all controllers, version 1 a tree for each (kernel documentation,
``admin-guide/cgroup-v2.rst`` and ``cgroup-v1/``). A machine's group has its process's name, by
which it is found again, wherever in the trees it was made.
"""

import asyncio
import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torpor.vm.cgroup_trees import Tree, mounts
from torpor.vm.limits import Limits

PERIOD_US = 100_000
"""The span of time over which processor time is limited, in microseconds: the kernel's default."""
END_LIMIT = 10.0
"""Seconds within which the processes of a group that were killed must be gone."""


@dataclass(frozen=True)
class Group:
    """One machine's control group: its directory, or directories under version 1."""

    places: tuple[Path, ...]

    @property
    def name(self) -> str:
        """The machine's process name."""
        return self.places[0].name

    def join(self, pid: int) -> None:
        """Put a process, with all its threads, into the group. Raises OSError.

        Takes 10 ms when no process of the host has changed its group for a while: the kernel waits
        until all processors have noticed.
        """
        for place in self.places:
            (place / "cgroup.procs").write_text(str(pid))

    def processes(self) -> set[int]:
        """Return the numbers of the processes in the group."""
        found: set[int] = set()
        for place in self.places:
            with contextlib.suppress(OSError):
                found.update(map(int, (place / "cgroup.procs").read_text().split()))
        return found

    def out_of_memory(self) -> bool:
        """Whether a process of the group was killed because its memory was used up."""
        for place in self.places:
            for file in ("memory.events.local", "memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError):
                    return _number_in((place / file).read_text(), "oom_kill") > 0
        return False

    def kill(self) -> None:
        """End every process in the group."""
        for place in self.places:
            with contextlib.suppress(OSError):
                (place / "cgroup.kill").write_text("1")  # version 2, Linux 5.14
                return
        for pid in self.processes():
            # A number can only be reused after the process has left the group.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def remove(self) -> None:
        """End what is left in the group, and remove it. Raises OSError."""
        if not _gone(self.places):
            await asyncio.to_thread(self._remove)

    def _remove(self) -> None:
        deadline = time.monotonic() + END_LIMIT
        while not _gone(self.places):
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, "processes cannot be ended", str(self.places[0]))
            self.kill()
            time.sleep(0.005)


def _gone(places: Iterable[Path]) -> bool:
    """Remove each directory; say whether none of them is there any more."""
    gone = True
    for place in places:
        try:
            place.rmdir()
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            gone = False
    return gone


def _number_in(text: str, name: str) -> int:
    for line in text.splitlines():
        word, _, value = line.partition(" ")
        if word == name:
            return int(value)
    return 0


def make_group(tree: Tree, name: str, limits: Limits) -> Group:
    """Make the group of a machine. Raises OSError, and leaves nothing then."""
    group = Group(tuple(parent / name for parent in tree.places()))
    try:
        for place in group.places:
            place.mkdir()
        settings = _version_2(limits) if tree.version == 2 else _version_1(limits)
        for controller, file, value, optional in settings:
            parent = tree.parent(controller)
            if parent is None or (optional and not (parent / name / file).exists()):
                continue
            (parent / name / file).write_text(value)
    except BaseException:
        _gone(group.places)
        raise
    return group


def renew_limits(group: Group, limits: Limits) -> None:
    """Set the limits of a group again. Raises OSError.

    Whoever manages the tree may have taken the controllers from it and given them back while no
    program of ours was there, as systemd does when it starts a unit anew: they come without limits.
    """
    for place in group.places:
        version_2 = (place / "cgroup.controllers").exists()
        for _, file, value, _ in _version_2(limits) if version_2 else _version_1(limits):
            if (place / file).exists():
                (place / file).write_text(value)


def _version_2(limits: Limits) -> Iterator[tuple[str, str, str, bool]]:
    """Yield controller, file, value, and whether a kernel may lack the file."""
    yield "memory", "memory.max", str(limits.memory), False
    yield "memory", "memory.swap.max", str(limits.memory), True
    yield "memory", "memory.oom.group", "1", True
    yield "cpu", "cpu.max", f"{limits.cpus * PERIOD_US} {PERIOD_US}", False
    yield "pids", "pids.max", str(limits.processes), False


def _version_1(limits: Limits) -> Iterator[tuple[str, str, str, bool]]:
    yield "memory", "memory.limit_in_bytes", str(limits.memory), False
    yield "memory", "memory.memsw.limit_in_bytes", str(limits.memory), True  # swap included
    yield "cpu", "cpu.cfs_period_us", str(PERIOD_US), False
    yield "cpu", "cpu.cfs_quota_us", str(limits.cpus * PERIOD_US), False
    yield "pids", "pids.max", str(limits.processes), False


def find_groups(prefix: str, mountinfo: str | None = None) -> dict[str, Group]:
    """Return the groups whose names begin with ``prefix``, in all trees of this host, by name.

    Also those of a program that had another place in the trees. Goes through all groups, so it is
    for the start only.
    """
    if mountinfo is None:
        mountinfo = Path("/proc/self/mountinfo").read_text()
    found: dict[str, list[Path]] = {}
    for mount in mounts(mountinfo):
        for directory, names, _ in os.walk(mount.directory):
            for name in [name for name in names if name.startswith(prefix)]:
                names.remove(name)  # no group of ours has groups in it
                found.setdefault(name, []).append(Path(directory, name))
    return {name: Group(tuple(sorted(places))) for name, places in found.items()}
