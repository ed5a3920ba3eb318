"""What of the wall's decisions becomes events of the sessions: bounded, whatever a machine does.

``egress.connected`` names hosts that a session was connected to for the first time since its newest
snapshot, so that whoever goes back to a snapshot is told what that does not undo. ``egress.denied``
names what was refused, at most every :data:`DENIED_SECONDS`. All single decisions are in the log.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torpor.network.decisions import Decision
from torpor.sessions.egress_batch import host_of

CONNECTED, DENIED = "egress.connected", "egress.denied"
MOST_HOSTS = 1000
"""Hosts that are named since one snapshot; beyond them it is said how often there were more."""
IN_ONE = 50
"""Hosts that one event names."""
MOST_KINDS = 8
"""Refusals that one event names."""
DENIED_SECONDS = 10.0
"""Between two events of refusals of one session, and two that say that there were more hosts."""
MOST_IDLE = 4096
"""Sessions with nothing left to be told of which it is known what was told."""


@dataclass
class _Session:
    told: set[str] = field(default_factory=set)
    waiting: dict[str, None] = field(default_factory=dict)
    more: int = 0
    more_after: float = 0.0
    denied: int = 0
    kinds: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    denied_after: float = 0.0
    cutting: int = 0

    @property
    def waits(self) -> bool:
        return bool(self.waiting or self.more or self.denied)


@dataclass(frozen=True)
class Telling:
    """An event that is to be told, and what of a session it tells."""

    session: str
    type: str
    data: dict[str, Any]
    hosts: tuple[str, ...] = ()
    count: int = 0


class Told:
    """What was told, and what waits for it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sessions: dict[str, _Session] = {}

    def take(self, session: str, decision: Decision) -> None:
        """Take a decision."""
        if decision.allowed:
            self.connected(session, host_of(decision))
            return
        found = self._of(session)
        found.denied += 1
        kind = {
            "host": host_of(decision),
            "port": decision.port,
            "transport": decision.transport,
            "rule": decision.rule,
            "why": decision.why,
            "add": decision.add,
        }
        key = tuple(kind.values())
        if key in found.kinds or len(found.kinds) < MOST_KINDS:
            found.kinds.setdefault(key, kind | {"count": 0})["count"] += 1

    def connected(self, session: str, host: str) -> None:
        """Take that a session is connected to a host, or goes on to be."""
        found = self._of(session)
        if host in found.told or host in found.waiting:
            return
        if len(found.told) + len(found.waiting) < MOST_HOSTS:
            found.waiting[host] = None
        else:
            found.more += 1

    @contextmanager
    def cutting(self, session: str) -> Iterator[None]:
        """While a snapshot of a session is made: nobody knows what came before it and what after.
        What is connected then, and each host from then on, is told as if for the first time, after
        it."""
        found = self._of(session)
        found.cutting += 1
        try:
            yield
        finally:
            found.cutting -= 1
            found.told.clear()

    def due(self, *, everything: bool = False) -> list[Telling]:
        """Return what is to be told now; ``everything``: also what could wait."""
        moment = self._clock()
        return [
            telling
            for session, found in self._sessions.items()
            if found.waits
            for telling in self._due(session, found, moment, everything=everything)
        ]

    def _due(
        self, session: str, found: _Session, moment: float, *, everything: bool
    ) -> Iterator[Telling]:
        if found.denied and (everything or moment >= found.denied_after):
            named = [dict(kind) for kind in found.kinds.values()]
            data = {"denied": named, "count": found.denied}
            yield Telling(session, DENIED, data, count=found.denied)
        if found.cutting:
            return
        more = found.more if everything or moment >= found.more_after else 0
        hosts = list(found.waiting)
        for start in range(0, len(hosts), IN_ONE):
            some = hosts[start : start + IN_ONE]
            yield Telling(session, CONNECTED, {"hosts": some}, tuple(some))
        if more:
            yield Telling(session, CONNECTED, {"hosts": [], "more": more}, count=more)

    def done(self, tellings: list[Telling]) -> None:
        """Know that these were told."""
        moment = self._clock()
        for telling in tellings:
            found = self._of(telling.session)
            if telling.type == DENIED:
                found.denied -= telling.count
                for kind in telling.data["denied"]:
                    key = tuple(kind.values())[:-1]
                    found.kinds[key]["count"] -= kind["count"]
                    if not found.kinds[key]["count"]:
                        del found.kinds[key]
                found.denied_after = moment + DENIED_SECONDS
            elif telling.hosts:
                for host in telling.hosts:
                    found.waiting.pop(host, None)
                    found.told.add(host)
            else:
                found.more -= telling.count
                found.more_after = moment + DENIED_SECONDS
        if len(self._sessions) > MOST_IDLE:
            self._sessions = {
                session: found
                for session, found in self._sessions.items()
                if found.waits or found.cutting
            }

    def waits(self) -> bool:
        """Return whether there is anything to be told, now or later."""
        return any(found.waits for found in self._sessions.values())

    def _of(self, session: str) -> _Session:
        found = self._sessions.get(session)
        if found is None:
            found = self._sessions[session] = _Session()
        return found
