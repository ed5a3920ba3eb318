"""A machine's sleep, as its connections see it.

While it sleeps nothing is written to it and nothing read for it: what others send waits with them,
in their own buffers and the kernel's, and is not lost. After a time their ends are closed; the
machine's own are kept until it is awake, for a reset that comes while it sleeps is one that it
never hears of.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterable

from torpor.network.readiness import unacknowledged

LOOK_EVERY = 0.002


class Hold:
    """Whether a machine sleeps, and what waits for it to wake."""

    def __init__(self) -> None:
        self._awake = asyncio.Event()
        self._awake.set()
        self._kept: list[socket.socket] = []

    def asleep(self) -> bool:
        """Say whether it sleeps, or is about to."""
        return not self._awake.is_set()

    async def awake(self) -> None:
        """Wait until it is awake."""
        await self._awake.wait()

    def begin(self) -> None:
        """Write nothing to it any more."""
        self._awake.clear()

    def end(self) -> None:
        """It is awake: let all that waits go on, and reset what has no other end any more."""
        self._awake.set()
        for each in self._kept:
            each.close()
        self._kept.clear()

    def close(self, machine: socket.socket) -> None:
        """Close the machine's end of a connection, once it is awake to hear of it."""
        if self.asleep():
            self._kept.append(machine)
        else:
            machine.close()


async def drained(machines: Iterable[socket.socket], seconds: float) -> bool:
    """Wait until a machine has taken all that was written to it, for so long at most, and return
    whether it has. Whoever in it does not read will not; that is sent again when it is awake."""
    left = list(machines)
    try:
        async with asyncio.timeout(seconds):
            while True:
                left = [each for each in left if _unacknowledged(each)]
                if not left:
                    return True
                await asyncio.sleep(LOOK_EVERY)
    except TimeoutError:
        return False


def _unacknowledged(sock: socket.socket) -> int:
    with contextlib.suppress(OSError):  # closed meanwhile, or reset
        return unacknowledged(sock)
    return 0
