"""Processes that outlive us: who they are, and the moment they end."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


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
        return found is not None and found[0] == self.start and found[1] not in "ZX"

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
    return ProcessId(pid, found[0]) if found else None


def _stat(pid: int) -> tuple[int, str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return int(fields[19]), fields[0]


def find_by_argument(argument: str) -> list[ProcessId]:
    """Return the processes that have exactly ``argument`` among their command line's words."""
    wanted = argument.encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if wanted in (entry / "cmdline").read_bytes().split(b"\0"):
                identity = identify(int(entry.name))
                if identity is not None:
                    found.append(identity)
    return found


class DeathWatch:
    """Calls ``died`` from the event loop as soon as a process ends. Needs no parenthood (pidfd)."""

    def __init__(self, process: ProcessId, died: Callable[[], None]) -> None:
        self._died = died
        self._loop = asyncio.get_running_loop()
        self._pidfd: int | None = None
        try:
            self._pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            self._loop.call_soon(died)
            return
        self._loop.add_reader(self._pidfd, self._ready)
        if not process.alive():
            self._loop.call_soon(self._ready)

    def _ready(self) -> None:
        if self._pidfd is not None:
            self.close()
            self._died()

    def close(self) -> None:
        """Stop watching."""
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
