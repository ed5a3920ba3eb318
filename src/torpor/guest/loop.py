"""The agent's event loop: file descriptors, timers, one thread.

Not asyncio: the agent lives in every machine, so its memory is paid for as often as there are
machines, and importing asyncio costs 6 MB of guest memory and most of a second under emulation.
"""

import heapq
import itertools
import select
import time
from collections.abc import Callable

READ = select.EPOLLIN
WRITE = select.EPOLLOUT
EDGE = select.EPOLLET


class Timer:
    """A call that is due at a moment of the monotonic clock, unless it is cancelled before."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Make sure that the action does not run."""
        self.action = None


class Loop:
    """Calls what was registered when its descriptor is ready or its time has come."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._ready: dict[int, tuple[int, Callable[[int], None]]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()

    def watch(self, fd: int, events: int, ready: Callable[[int], None]) -> None:
        """Call ``ready(events)`` whenever ``fd`` is ready; replaces an earlier registration."""
        known = self._ready.get(fd)
        if known is None:
            self._epoll.register(fd, events)
        elif known[0] != events:
            self._epoll.modify(fd, events)
        self._ready[fd] = events, ready

    def forget(self, fd: int) -> None:
        """Stop watching ``fd``; call this before closing it. Unknown descriptors are fine."""
        if self._ready.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def after(self, seconds: float, action: Callable[[], None]) -> Timer:
        """Call ``action`` once in ``seconds`` from now."""
        timer = Timer(action)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), timer))
        return timer

    def close(self) -> None:
        """Watch nothing any more; the descriptors themselves stay open."""
        self._epoll.close()
        self._ready.clear()
        self._timers.clear()

    def turn(self) -> None:
        """Wait for the next event or timer and handle it."""
        while self._timers and self._timers[0][2].action is None:
            heapq.heappop(self._timers)
        wait = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
        for fd, events in self._epoll.poll(wait):
            known = self._ready.get(fd)  # an earlier handler of this turn may have closed it
            if known is not None:
                known[1](events)
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            action = heapq.heappop(self._timers)[2].action
            if action is not None:
                action()
