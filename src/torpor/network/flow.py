"""One connection, or one flow of datagrams, that was let through: what is known and counted of it
while it lives."""

import asyncio
import socket
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address

from torpor.network.decisions import Decision, decided
from torpor.network.hold import Hold
from torpor.network.limits import Limits, Rate
from torpor.network.traffic import Count
from torpor.network.turns import Share
from torpor.network.verdicts import Destination, Spoken, Verdict

HALF_CLOSED = 300.0
"""Seconds that a connection may be idle of which one direction has ended."""


class CutError(Exception):
    """A connection is to end, and not in order: both ends are reset."""


class Spending:
    """What all connections of one machine have moved, and may."""

    def __init__(self, limits: Limits) -> None:
        self.total = 0
        self.limit(limits)

    def limit(self, limits: Limits) -> None:
        """Have other limits from now on."""
        self.limits = limits
        self._rate = None if limits.rate is None else Rate(limits.rate, limits.rate)

    @property
    def all_spent(self) -> bool:
        """Whether nothing more is let through."""
        return self.limits.total is not None and self.total >= self.limits.total

    def spend(self, count: int) -> float:
        """Count bytes; return for how many seconds their connection waits. Raises
        :exc:`CutError` when all are spent."""
        self.total += count
        if self.all_spent:
            raise CutError(f"All {self.limits.total} bytes that this machine may move are moved.")
        return 0.0 if self._rate is None else self._rate.take(count)


class Flow:
    """A connection that lives. ``machine`` is its socket towards the machine (None for UDP).

    ``spoken`` and ``said`` are what was heard of it so far, ``verdict`` what let it through,
    ``address`` the one that the wall connected to.
    """

    def __init__(
        self,
        to: Destination,
        verdict: Verdict,
        *,
        share: Share,
        hold: Hold,
        spending: Spending,
        count: Count,
        task: "asyncio.Task[object]",
        machine: socket.socket | None = None,
    ) -> None:
        self.to = to
        self.verdict = verdict
        self.machine = machine
        self.hold = hold
        self.spoken: Spoken | None = None
        self.said: str | None = None
        self.address: IPv4Address | IPv6Address | None = None
        self.anything = False
        """Whether it was let through before anything was said on it."""
        self.encrypted = False
        """Whether its ClientHello has what hides a name in it."""
        self.inspected = False
        self.secrets: set[str] = set()
        self.sent_bytes = self.received_bytes = 0
        self.reason = ""
        """Why it was cut, if it was."""
        self.denied: Verdict | None = None
        """The verdict by which it was cut, if it was one."""
        self.unread = False
        """Whether the machine may have said more than anybody read."""
        self.owes = 0.0
        self.turn = share.turn
        self.buffer = share.turns.buffer
        self._spending = spending
        self._count = count
        self.task = task
        self._loop = asyncio.get_running_loop()
        self._began = self._moved = self._loop.time()
        self._idle = spending.limits.idle
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, idle: float | None = None) -> None:
        """Cut it when it has been idle for too long, or has lasted for too long."""
        if idle is not None:
            self._idle = idle
        if self._timer is not None:
            self._timer.cancel()
        now, longest = self._loop.time(), self._spending.limits.longest
        if self.hold.asleep():
            self._moved = now  # nobody is idle for being asleep
        idle_left = self._moved + self._idle - now
        left = idle_left if longest is None else min(idle_left, self._began + longest - now)
        if left <= 0:
            self.cut("Nothing was said for too long." if idle_left <= 0 else "It lasted too long.")
        else:
            self._timer = self._loop.call_later(left, self.watch)

    def sent(self, count: int) -> None:
        """Count bytes from the machine. Raises :exc:`CutError`."""
        self._moved = self._loop.time()
        self.sent_bytes += count
        self._count.sent += count
        self.owes = self._spending.spend(count)

    def received(self, count: int) -> None:
        """Count bytes to the machine. Raises :exc:`CutError`."""
        self._moved = self._loop.time()
        self.received_bytes += count
        self._count.received += count
        self.owes = self._spending.spend(count)

    def used(self, secret: str) -> None:
        """Note that a secret was put in."""
        self.secrets.add(secret)

    def told(self, why: str) -> None:
        """Note what whoever serves it has to say of it."""
        self.reason = why

    def deny(self, verdict: Verdict) -> None:
        """Note that something on it was not let through."""
        self.denied = verdict

    async def awake(self) -> None:
        """Wait while the machine sleeps."""
        await self.hold.awake()

    async def pay(self) -> None:
        """Wait as long as the machine's rate asks for."""
        owes, self.owes = self.owes, 0.0
        await asyncio.sleep(owes)

    def half_closed(self) -> None:
        """One direction has ended: the other may be idle for a shorter time."""
        if self._idle > HALF_CLOSED:
            self.watch(HALF_CLOSED)

    def cut(self, reason: str, verdict: Verdict | None = None) -> None:
        """End it at once, with a reset."""
        if not self.reason:
            self.reason, self.denied = reason, verdict
            self.task.cancel()

    def decision(self, *, ended: bool) -> Decision:
        """Return what is to be told of it now."""
        if ended and self._timer is not None:
            self._timer.cancel()
        made = decided(self.to, self.denied or self.verdict, self.spoken)
        why = f"{self.reason} {made.why}".strip()
        return replace(
            made,
            why=why,
            connected_to=None if self.address is None else str(self.address),
            ended=ended,
            seconds=self._loop.time() - self._began if ended else 0.0,
            sent_bytes=self.sent_bytes,
            received_bytes=self.received_bytes,
            inspected=self.inspected,
            secrets=tuple(sorted(self.secrets)),
        )
