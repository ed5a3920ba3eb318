"""The machine's processes, page by page, and signals to them by number."""

import errno
import os
import signal as signals
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROC = Path("/proc")
MOST = 200
"""Processes of one page: each costs the agent some calls, and all must fit into a frame."""
SHOWN = 256
"""Bytes of a command line that are told."""
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD, include/linux/sched.h


def processes(
    wanted: dict[str, Any], execs: Mapping[int, str], agent: int | None = None
) -> dict[str, Any]:
    """Return at most ``count`` processes with numbers above ``after``, in the order of the numbers.

    ``execs`` has the ids of commands by the number of their session. ``next`` in the answer is the
    ``after`` of the next page, or None. The kernel's own threads are left out. ``agent`` is the
    agent's process, if it is not this one.
    """
    after = int(wanted.get("after") or 0)
    count = max(1, min(int(wanted.get("count") or MOST), MOST))
    numbers = sorted(int(name) for name in os.listdir(PROC) if name.isdigit() and int(name) > after)
    page = numbers[:count]
    # One that ends while it is looked at is as one that had ended before.
    found = [each for each in (_describe(pid, execs, agent) for pid in page) if each is not None]
    return {"processes": found, "next": page[-1] if len(numbers) > count else None}


def signal(wanted: dict[str, Any], cgroup: str = "/user") -> dict[str, Any]:
    """Send ``signal`` to ``pid``, if that is in the user's ``cgroup`` and not the spawner.

    Raises ProcessLookupError, PermissionError, ValueError.
    """
    pid, number = int(wanted["pid"]), int(wanted["signal"])
    if pid <= 0 or pid >= 1 << 31:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    if not 0 <= number < signals.NSIG:
        raise ValueError(f"there is no signal {number}")
    # What is found out about it holds for this very process, also if its number is given anew.
    pidfd = os.pidfd_open(pid)
    try:
        if not _is_users(pid, cgroup):
            raise PermissionError(errno.EPERM, f"process {pid} is not one of the user's")
        signals.pidfd_send_signal(pidfd, number)
    finally:
        os.close(pidfd)
    return {}


def _is_users(pid: int, cgroup: str, agent: int | None = None) -> bool:
    """Whether a process is in the user's cgroup, and not the spawner, which is the agent's child
    and lives there too."""
    try:
        stat = _stat(pid)
        path = _cgroup_of(pid)
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH)) from None
    within = path == cgroup or path.startswith(f"{cgroup}/")
    return within and int(stat[1]) != (agent or os.getpid())


def _describe(pid: int, execs: Mapping[int, str], agent: int | None) -> dict[str, Any] | None:
    try:
        fields = _stat(pid)
        if int(fields[6]) & _KERNEL_THREAD:
            return None
        status = (PROC / str(pid) / "status").read_bytes()
        argv, cut = _command_line(pid)
        users = _is_users(pid, "/user", agent)
        name = (PROC / str(pid) / "comm").read_bytes().removesuffix(b"\n")
    except (FileNotFoundError, ProcessLookupError):
        return None
    tick = os.sysconf("SC_CLK_TCK")
    return {
        "pid": pid,
        "ppid": int(fields[1]),
        "session": int(fields[3]),
        "uid": int(status.split(b"\nUid:", 1)[1].split(None, 2)[1]),  # the effective one
        "name": _shown(name),
        "argv": argv,
        "cut": cut,
        "state": fields[0].decode("ascii", "replace"),
        "started_ns": int(fields[19]) * 1_000_000_000 // tick,
        "cpu_ns": (int(fields[11]) + int(fields[12])) * 1_000_000_000 // tick,
        "memory": int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        "threads": int(fields[17]),
        "exec": execs.get(int(fields[3])),
        "user": users,
    }


def _stat(pid: int) -> list[bytes]:
    """Return the fields of ``/proc/<pid>/stat`` after the name, which may hold anything."""
    text = (PROC / str(pid) / "stat").read_bytes()
    return text[text.rindex(b")") + 2 :].split()


def _command_line(pid: int) -> tuple[list[str], bool]:
    with open(PROC / str(pid) / "cmdline", "rb", buffering=0) as file:
        text = file.read(SHOWN + 1) or b""
    words = text[:SHOWN].removesuffix(b"\0").split(b"\0") if text else []
    return [_shown(word) for word in words], len(text) > SHOWN


def _cgroup_of(pid: int) -> str:
    """Return a process's path in the cgroup tree of version 2."""
    for line in (PROC / str(pid) / "cgroup").read_bytes().splitlines():
        if line.startswith(b"0::"):
            return os.fsdecode(line[3:])
    return ""


def _shown(name: bytes) -> str:
    """Return a name, which is bytes, as text; what is not UTF-8 as ``\\xff``."""
    return name.decode("utf-8", "backslashreplace")
