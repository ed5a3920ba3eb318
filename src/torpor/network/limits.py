"""What one machine may take of the wall, and its rates."""

import asyncio
from dataclasses import dataclass

from torpor.network.policy import Policy


@dataclass(frozen=True)
class Limits:
    """Bounds on one machine. Times are in seconds, None is no bound.

    ``new_connections`` are those per second that are taken, after a burst of twice as many: more
    wait in the kernel, and beyond its queue are tried again by the machine. Each costs about a
    third of a millisecond of a loop that all machines share. ``datagrams`` and ``lookups`` are the
    same for UDP and for DNS; more are dropped. ``rate`` is bytes per second, both ways together;
    ``total`` bytes in all, after which nothing is let through. A flow of UDP ends that was idle for
    ``flow_idle``; ``hold`` is how long the other ends of a machine that sleeps are held.
    """

    connections: int = 1024
    new_connections: float = 200.0
    lookups: float = 200.0
    flows: int = 256
    datagrams: float = 4000.0
    rate: float | None = None
    total: int | None = None
    hello: float = 10.0
    connect: float = 10.0
    idle: float = 3600.0
    longest: float | None = None
    flow_idle: float = 120.0
    hold: float = 600.0


class Rate:
    """A bucket of tokens that fills with time. Whoever takes more than there are is told how long
    to wait until there are none owed."""

    def __init__(self, per_second: float, burst: float) -> None:
        self.per_second = per_second
        self._burst = burst
        self._left = burst
        self._at = asyncio.get_running_loop().time()

    def take(self, count: float = 1.0) -> float:
        """Take tokens, and return for how many seconds to wait before the next."""
        now = asyncio.get_running_loop().time()
        self._left = min(self._burst, self._left + (now - self._at) * self.per_second) - count
        self._at = now
        return max(0.0, -self._left / self.per_second)


def limits_of(policy: Policy) -> Limits:
    """Return the limits that a policy sets."""
    said = policy.limits
    return Limits(
        connections=said.connections,
        new_connections=said.connections_per_second,
        lookups=said.lookups_per_second,
        rate=said.bytes_per_second,
        total=said.bytes,
        hold=policy.hold,
    )
