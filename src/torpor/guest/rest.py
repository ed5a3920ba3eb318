"""Going to rest before a freeze, and waking after a thaw.

Between the two no user process runs. So what a thaw has to put right (random numbers, the wall
clock, who this machine is) is right before any user code can look.
"""

import contextlib
import fcntl
import os
import select
import socket
import struct
import time
from pathlib import Path
from typing import Any

RNDADDENTROPY = 0x40085203
RNDRESEEDCRNG = 0x5207


class RestError(Exception):
    """The user's processes could not be frozen or woken."""


class Rest:
    """The freezer of the user's cgroup, and the steps around it."""

    def __init__(self, cgroup: Path) -> None:
        # Kept open: what a thaw need not do, it need not have translated under emulation.
        self._freeze = os.open(cgroup / "cgroup.freeze", os.O_RDWR | os.O_CLOEXEC)
        self._events = os.open(cgroup / "cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
        self._random = os.open("/dev/urandom", os.O_WRONLY | os.O_CLOEXEC)
        self._changed = select.poll()
        self._changed.register(self._events, select.POLLPRI)

    def close(self) -> None:
        """Close what is open; the user's processes stay as they are."""
        for fd in (self._freeze, self._events, self._random):
            os.close(fd)

    @property
    def resting(self) -> bool:
        """Whether the user's processes are frozen, or about to be."""
        return os.pread(self._freeze, 1, 0) == b"1"

    def quiesce(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Write everything to disk and freeze the user's processes within ``limit_ms``.

        The disk is synced twice: the first sync, with everything still running, leaves little for
        the second, which makes the disk hold exactly what the frozen processes see, so that a
        snapshot of the disk alone is as good as one with memory. Raises :exc:`RestError`,
        everything running. The reply has ``synced_ns``, how long the first sync took.
        """
        began = time.monotonic_ns()
        os.sync()
        synced = time.monotonic_ns()
        try:
            self._set(frozen=True, limit_ms=int(wanted["limit_ms"]))
            os.sync()
        except BaseException:
            os.pwrite(self._freeze, b"0", 0)
            raise
        return {"synced_ns": synced - began}

    def wake(self, wanted: dict[str, Any], received_ns: int) -> dict[str, Any]:
        """Put right what a thaw must, then let the user's processes run."""
        answer = self.put_right(wanted, received_ns)
        if "again_ns" not in answer:
            self.resume(wanted)
        return answer

    def put_right(self, wanted: dict[str, Any], received_ns: int) -> dict[str, Any]:
        """Put right what a thaw must, the user's processes still frozen.

        ``received_ns`` is the monotonic time at which the request came in. The wall clock is set as
        NTP does it (RFC 5905, section 8): the host sent ``wall_ns`` ``held_ns`` after it had
        received our ``echo_ns``, so half of the remaining round trip is the way here. The clock may
        be wrong by that half, on a busy host 80 ms; so after a round trip longer than
        ``trip_limit_ns`` nothing is done, and ``again_ns`` in the answer is the next echo.
        """
        trip = max(0, received_ns - int(wanted["echo_ns"]) - int(wanted["held_ns"]))
        if trip > int(wanted.get("trip_limit_ns", trip)):
            return {"again_ns": time.monotonic_ns()}
        add_entropy(self._random, bytes.fromhex(wanted["entropy"]))
        if "hostname" in wanted:
            socket.sethostname(wanted["hostname"])
        if "machine_id" in wanted:
            _overwrite("/etc/machine-id", wanted["machine_id"], 0o444)
        travel = trip // 2
        arrived = int(wanted["wall_ns"]) + travel
        time.clock_settime_ns(time.CLOCK_REALTIME, arrived + time.monotonic_ns() - received_ns)
        return {"travel_ns": travel}

    def resume(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Let the user's processes run on in the machine that was frozen and never stopped being
        it."""
        self._set(frozen=False, limit_ms=int(wanted["limit_ms"]))
        return {}

    def _set(self, *, frozen: bool, limit_ms: int) -> None:
        os.pwrite(self._freeze, b"1" if frozen else b"0", 0)
        deadline = time.monotonic() + limit_ms / 1000
        # cgroup.events signals POLLPRI on change (Documentation/admin-guide/cgroup-v2.rst).
        while (b"frozen 1" in os.pread(self._events, 256, 0)) != frozen:
            left = deadline - time.monotonic()
            if left <= 0:
                state = "frozen" if frozen else "woken"
                raise RestError(f"the processes could not be {state} within {limit_ms} ms")
            self._changed.poll(left * 1000)


def add_entropy(random: int, seed: bytes) -> None:
    """Credit ``seed`` to the kernel's random generator, open as ``random``, and rekey it at once.

    Writing to /dev/urandom would mix the bytes in but not rekey, so two machines that woke from one
    snapshot would go on with the same key (``drivers/char/random.c``).
    """
    fcntl.ioctl(random, RNDADDENTROPY, struct.pack("ii", 8 * len(seed), len(seed)) + seed)
    fcntl.ioctl(random, RNDRESEEDCRNG)


def write_hostname(name: str) -> None:
    """Make a host name outlast a reboot. An image in which that cannot be is left as it is.

    Not among what a thaw must put right first: nothing reads the file before the next boot.
    """
    with contextlib.suppress(OSError):
        _overwrite("/etc/hostname", name, 0o644)


def _overwrite(path: str, line: str, mode: int) -> None:
    # In place: a new file and a rename run through so much more of the kernel that a thaw under
    # emulation, where all code is translated anew, takes 10 ms longer.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        os.ftruncate(fd, os.write(fd, line.encode() + b"\n"))
    finally:
        os.close(fd)
