"""Processes that outlive us: who they are, and the moment they end."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


@dataclass(frozen=True)
class ProcessId:
    """A process, told apart from a later one with the same number by its start.

    ``start`` is in clock ticks since boot: field 22 of ``/proc/<pid>/stat`` (proc(5)).
    """

    pid: int
    start: int

    def alive(self) -> bool:
        """Whether this very process still runs; one that has ended and waits for its parent does
        not."""
        found = _stat(self.pid)
        return found is not None and found.start == self.start and found.runs

    def kill(self) -> None:
        """End the process at once, if it is still this one."""
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(self.pid)
            try:
                if self.alive():
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)


def identify(pid: int) -> ProcessId | None:
    """Return the identity of the process that has this number now."""
    found = _stat(pid)
    return ProcessId(pid, found.start) if found else None


def proc_text(file: Path) -> str:
    """Return what the kernel says of a process in a file below ``/proc``. The name that a process
    has given itself, or what it maps, may be any bytes, and is in there. Raises OSError."""
    return file.read_bytes().decode("utf-8", "replace")


class _Stat(NamedTuple):
    start: int
    runs: bool


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()  # the name in it may be any bytes
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    # A process whose first thread has ended looks like a zombie while its other threads run.
    return _Stat(int(fields[19]), fields[0] not in (b"Z", b"X") or int(fields[17]) > 1)


def find_by_prefix(prefix: str, programs: Sequence[str]) -> list[ProcessId]:
    """Return the processes of ``programs`` with a word that starts with ``prefix`` as argument."""
    wanted = prefix.encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if words[0].decode("utf-8", "replace").rsplit("/", 1)[-1] not in programs:
                continue
            if any(word.startswith(wanted) for word in words[1:]):
                identity = identify(int(entry.name))
                if identity is not None:
                    found.append(identity)
    return found


def users_of_processes() -> set[int]:
    """Return the user ids of all processes that are seen here. It is looked at in each start of a
    machine, on hosts with many."""
    found = set()
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    found.add(entry.stat().st_uid)
    return found


class DeathWatch:
    """Calls ``died`` from the event loop as soon as a process ends. Needs no parenthood (pidfd)."""

    def __init__(self, process: ProcessId, died: Callable[[], None]) -> None:
        self._died = died
        self._loop = asyncio.get_running_loop()
        self._watching = True
        self._pidfd: int | None = None
        with contextlib.suppress(ProcessLookupError):
            self._pidfd = os.pidfd_open(process.pid)
            self._loop.add_reader(self._pidfd, self._ready)
        if not process.alive():
            self._loop.call_soon(self._ready)

    def _ready(self) -> None:
        if self._watching:
            self.close()
            self._died()

    def close(self) -> None:
        """Stop watching."""
        self._watching = False
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
