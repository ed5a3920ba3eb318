"""What the wall decided about one connection or flow, as it is told to whoever keeps it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from torpor.network.limits import Rate
from torpor.network.verdicts import Destination, Spoken, Transport, Verdict

PER_SECOND, BURST = 50.0, 500.0
"""Decisions of one machine that are told one by one."""


@dataclass(frozen=True)
class Decision:
    """One decision. What was let through is told when it begins and again when it has ``ended``,
    with ``seconds`` and bytes; what was not is told once.

    ``name`` is what the machine looked up, or None if it dialled an ``address`` of its own accord.
    ``rule``, ``why`` and ``add`` are the verdict's. ``connected_to`` is the address that the wall
    connected to. ``inspected`` says that TLS was ended at the wall, ``secrets`` which were put in.
    """

    at: datetime
    transport: Transport
    name: str | None
    address: str
    port: int
    spoken: Spoken | None
    allowed: bool
    rule: str
    why: str = ""
    add: str = ""
    connected_to: str | None = None
    ended: bool = False
    seconds: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    inspected: bool = False
    secrets: tuple[str, ...] = ()


Tell = Callable[[Decision], None]


def decided(to: Destination, verdict: Verdict, spoken: Spoken | None = None) -> Decision:
    """Return a decision that was made just now. One that says no has ended."""
    return Decision(
        datetime.now(UTC),
        to.transport,
        to.name,
        str(to.address),
        to.port,
        spoken,
        verdict.allowed,
        verdict.rule,
        verdict.why,
        verdict.add,
        ended=not verdict.allowed,
    )


@dataclass
class Telling:
    """Tells the decisions of one machine, and keeps it from flooding whoever listens: of too many
    the last one says how many others were not told. Bytes are counted elsewhere, all of them."""

    tell: Tell
    _rate: Rate = field(default_factory=lambda: Rate(PER_SECOND, BURST))
    _untold: int = 0
    _last: Decision | None = None
    _timer: asyncio.TimerHandle | None = None

    def __call__(self, made: Decision) -> None:
        """Tell a decision, at once or with others."""
        if self._timer is None:
            wait = self._rate.take()
            if wait == 0:
                self.tell(made)
                return
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(1.0, wait), self.rest)
        self._untold += 1
        self._last = made

    def rest(self) -> None:
        """Tell what has not been told."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        last, untold = self._last, self._untold
        self._last, self._untold = None, 0
        if last is not None:
            others = f"{untold - 1} more decisions were made in this second."
            why = f"{last.why} {others}".strip() if untold > 1 else last.why
            self.tell(replace(last, why=why))
