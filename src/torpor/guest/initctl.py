"""What ``reboot``, ``poweroff`` and ``shutdown`` of an image ask of init, passed on to ours.

Those of sysvinit, and those of systemd where systemd is not PID 1, write a record to the FIFO
``/run/initctl`` (``initreq.h`` of sysvinit: 384 bytes, little-endian; a magic number, a command,
a run level). PID 1 here is a shell, which cannot read that; so the agent does, and sends the signal
that ``busybox reboot`` and ``poweroff`` would send.
"""

import os
import signal
import struct
from functools import partial
from pathlib import Path

from torpor.guest.loop import READ, Loop

FIFO = Path("/run/initctl")
SIZE = 384
MAGIC = 0x03091969
CHANGE_RUN_LEVEL = 1
SIGNALS = {ord("0"): signal.SIGUSR2, ord("6"): signal.SIGTERM}
"""What PID 1 is sent for run levels 0 (power off) and 6 (reboot)."""
_HEAD = struct.Struct("<iii")


def serve(loop: Loop, fifo: Path = FIFO, init: int = 1) -> int | None:
    """Make the FIFO, watch it, and return our descriptor of it.

    An image that has something else in its place keeps that.
    """
    try:
        os.mkfifo(fifo, 0o600)
    except FileExistsError:
        if not fifo.is_fifo():
            return None
    # Open for writing too: else it would be at its end each time that a writer goes.
    fd = os.open(fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    loop.watch(fd, READ, lambda _events: _read(fd, partial(os.kill, init)))
    return fd


def _read(fd: int, tell: partial[None]) -> None:
    try:
        record = os.read(fd, SIZE)
    except BlockingIOError:
        return
    wanted = parse(record)
    if wanted is not None:
        tell(wanted)


def parse(record: bytes) -> signal.Signals | None:
    """Return the signal that a record asks for, or None: it is damaged, or asks something else."""
    if len(record) != SIZE:
        return None
    magic, command, level = _HEAD.unpack_from(record)
    if magic != MAGIC or command != CHANGE_RUN_LEVEL:
        return None
    return SIGNALS.get(level)
