"""What QEMU says on its standard output and error: kept bounded, also while nobody reads.

It is written to a named pipe in the machine's directory, which holds 64 KiB. QEMU's end never
waits, so what does not fit is lost to it and QEMU runs on; while a program has the machine open the
pipe is emptied now and then. Machines outlive the program: the next one opens the pipe again and
finds what has been said since.
"""

import asyncio
import contextlib
import os
from pathlib import Path

from torpor.vm.channel import plain

SAID = "said"
KEEP = 16 << 10
"""Bytes that are kept, the newest."""
PIPE = 64 << 10
EVERY = 0.25
"""Seconds between two looks, so that a QEMU that talks all the time costs little."""


class Said:
    """The newest words of a machine's QEMU."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / SAID
        self._kept = bytearray()
        self._fd = -1
        self._again: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Make the pipe if it is not there, and open our end, if it is not open. Raises OSError."""
        if self._fd >= 0:
            return
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self._path, 0o600)
        self._fd = self._opened()

    def writing_end(self) -> int:
        """Return a descriptor for QEMU, which the caller closes.

        Opened anew: descriptors that were duplicated share their flags, and a QEMU that was taken
        over could make ours wait.
        """
        return self._opened()

    def _opened(self) -> int:
        # For reading and writing, so that it has a reader as long as QEMU is there.
        return os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def follow(self) -> None:
        """Empty the pipe from now on, from the event loop."""
        if self._fd >= 0:
            asyncio.get_running_loop().add_reader(self._fd, self._ready)

    def _ready(self) -> None:
        self._take()
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._fd)
        self._again = loop.call_later(EVERY, self.follow)

    def _take(self) -> None:
        if self._fd < 0:
            return
        with contextlib.suppress(BlockingIOError):
            self._kept += os.read(self._fd, PIPE)
            del self._kept[:-KEEP]

    def text(self, limit: int) -> str:
        """Return the last ``limit`` characters of what was said, unprintable ones replaced."""
        self._take()
        return plain(self._kept.decode("utf-8", "replace").strip()[-limit:], limit)

    def close(self) -> None:
        """Let go of the pipe."""
        if self._again is not None:
            self._again.cancel()
        if self._fd >= 0:
            with contextlib.suppress(RuntimeError):  # no loop: it was never followed
                asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
