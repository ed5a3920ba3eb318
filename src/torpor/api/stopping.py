"""What ends a server: signals, and that its host is lost."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Iterator

from torpor.api.supervisor import Supervisor

log = logging.getLogger("torpor.server")

GRACE_SECONDS = 30
"""How long requests may take to their end when the server stops."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class HostLostError(Exception):
    """Another server has taken the host, or may have. The text says how come."""


class Stop:
    """What signals ask for: ``asked`` to stop, and then, by a second one, ``hurried``."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()
        self.lost = ""
        """Why the host is not this server's any more, if so."""
        self._supervisor = supervisor

    def lose(self, why: str) -> None:
        """Stop, since the host is another server's, or may be soon: nothing is waited for."""
        log.error("stopping at once: %s Machines run on.", why)
        self.lost = why
        self.asked.set()
        self.hurried.set()

    def check_not_lost(self) -> None:
        """Raise :exc:`HostLostError` if the host was lost."""
        if self.lost:
            raise HostLostError(f"{self.lost} This server has ended; its machines run on.")

    def signalled(self) -> None:
        """Take one more signal."""
        if not self.asked.is_set():
            log.info("stopping: requests have %d s, or until the next signal", GRACE_SECONDS)
            self._supervisor.stopping()
            self.asked.set()
        elif not self.hurried.is_set():
            log.info("stopping at once: requests are cut off, and nothing more is frozen")
            self.hurried.set()


@contextlib.contextmanager
def stopped_by_signals(supervisor: Supervisor) -> Iterator[Stop]:
    """Have signals ask this server to stop; one that is ignored (nohup(1)) stays so."""
    stop = Stop(supervisor)
    loop = asyncio.get_running_loop()
    numbers = [each for each in SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    for number in numbers:
        loop.add_signal_handler(number, stop.signalled)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
