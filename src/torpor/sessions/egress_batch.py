"""Decisions of the wall on their way into the log: those that are alike become one line.

A machine can cause thousands in a second, so they are gathered for a moment and written together.
Of one session so many lines are kept apart; what comes beyond them is counted in lines without a
host, one for what was allowed and one for what was not.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from torpor.network.decisions import Decision
from torpor.store.records import EgressEntry

MOST_LINES = 256
"""Lines of one session that are kept apart in one batch."""
MOST_BEGUN = 16_384
"""Connections of one session that one batch knows to have begun."""
TOGETHER = "more than are kept apart at one moment, counted together"
"""Why a line has no host."""


@dataclass(frozen=True)
class Alike:
    """What decisions have in common that become one line."""

    host: str
    port: int
    transport: str
    allowed: bool
    ended: bool
    rule: str
    why: str = ""
    add: str = ""
    spoken: str | None = None
    inspected: bool = False
    secrets: tuple[str, ...] = ()

    @classmethod
    def of(cls, decision: Decision) -> "Alike":
        """Return what counts of a decision."""
        return cls(
            host_of(decision),
            decision.port,
            decision.transport,
            decision.allowed,
            decision.ended,
            decision.rule,
            decision.why,
            decision.add,
            decision.spoken,
            decision.inspected,
            decision.secrets,
        )

    def rest(self) -> "Alike":
        """Return the same for the line of those that are counted together."""
        return Alike("", 0, self.transport, self.allowed, self.ended, "", TOGETHER)


@dataclass
class Group:
    """Decisions that are alike: how many, from when until when, and what they come to."""

    first: datetime
    last: datetime
    count: int = 0
    address: str | None = None
    seconds: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0

    def add(self, decision: Decision) -> None:
        """Count one more."""
        end = decision.at + timedelta(seconds=decision.seconds)
        self.first, self.last = min(self.first, decision.at), max(self.last, end)
        self.count += 1
        self.seconds += decision.seconds
        self.sent_bytes += decision.sent_bytes
        self.received_bytes += decision.received_bytes
        if self.address is None:
            self.address = _address_of(decision)

    def join(self, other: "Group") -> None:
        """Count those of another group, too."""
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        self.count += other.count
        self.seconds += other.seconds
        self.sent_bytes += other.sent_bytes
        self.received_bytes += other.received_bytes
        self.address = self.address or other.address


@dataclass
class Contact:
    """What a session had to do with one host, for the report of where its data went. Connections
    and bytes are counted by the host that runs it, all of them, and not here."""

    first: datetime
    last: datetime
    denied: int = 0
    inspected: bool = False
    secrets: frozenset[str] = frozenset()


class Batch:
    """The decisions of one session since the last ones were written."""

    def __init__(self) -> None:
        self._groups: dict[Alike, Group] = {}
        self._begun: dict[tuple[str, int, datetime], Alike] = {}
        """Connections that have begun and not ended, and the line in which they are."""
        self.contacts: dict[str, Contact] = {}
        """By host; those of many that are counted together under an empty one."""

    def take(self, decision: Decision) -> None:
        """Count a decision."""
        alike = Alike.of(decision)
        connection = (alike.host, alike.port, decision.at)
        if decision.allowed and decision.ended:
            self._forget_beginning(connection)
        alike = self._kept(alike)
        self._groups.setdefault(alike, Group(decision.at, decision.at)).add(decision)
        if decision.allowed and not decision.ended and len(self._begun) < MOST_BEGUN:
            self._begun[connection] = alike
        self._meet(host_of(decision), decision)

    def _kept(self, alike: Alike) -> Alike:
        """Return the line in which something is kept: its own, or that of the rest."""
        own = alike in self._groups or len(self._groups) < MOST_LINES
        return alike if own else alike.rest()

    def _forget_beginning(self, connection: tuple[str, int, datetime]) -> None:
        """Have no line say that a connection began that has ended before any was written."""
        alike = self._begun.pop(connection, None)
        if alike is not None:
            self._groups[alike].count -= 1
            if not self._groups[alike].count:
                del self._groups[alike]

    def _meet(self, host: str, decision: Decision) -> None:
        if host not in self.contacts and len(self.contacts) >= MOST_LINES:
            host = ""
        found = self.contacts.setdefault(host, Contact(decision.at, decision.at))
        found.first = min(found.first, decision.at)
        found.last = max(found.last, decision.at + timedelta(seconds=decision.seconds))
        found.denied += not decision.allowed
        found.inspected = found.inspected or decision.inspected
        found.secrets |= frozenset(decision.secrets)

    def join(self, other: "Batch") -> None:
        """Take over what another batch has, which could not be written."""
        for alike, group in other._groups.items():
            kept = self._kept(alike)
            self._groups.setdefault(kept, Group(group.first, group.last)).join(group)
        for host, contact in other.contacts.items():
            if host not in self.contacts and len(self.contacts) >= MOST_LINES:
                host = ""
            found = self.contacts.setdefault(host, Contact(contact.first, contact.last))
            found.first = min(found.first, contact.first)
            found.last = max(found.last, contact.last)
            found.denied += contact.denied
            found.inspected = found.inspected or contact.inspected
            found.secrets |= contact.secrets

    def lines(self, session: str, new_id: Callable[[], str]) -> Iterator[EgressEntry]:
        """Yield the lines, in the order in which their first decisions came."""
        for alike, group in sorted(self._groups.items(), key=lambda each: each[1].first):
            yield EgressEntry(
                id=new_id(),
                session=session,
                at=group.first,
                until=group.last,
                count=group.count,
                transport=alike.transport,
                host=alike.host,
                port=alike.port,
                allowed=alike.allowed,
                rule=alike.rule,
                why=alike.why,
                add=alike.add,
                spoken=alike.spoken,
                address=group.address if alike.host else None,
                ended=alike.ended,
                seconds=group.seconds,
                sent_bytes=group.sent_bytes,
                received_bytes=group.received_bytes,
                inspected=alike.inspected,
                secrets=alike.secrets,
            )


def host_of(decision: Decision) -> str:
    """Return what a decision was about: a name, or an address that was dialled by itself."""
    return decision.name or decision.address


def _address_of(decision: Decision) -> str | None:
    # What a name stands for in the machine is the wall's own affair.
    return decision.connected_to or (None if decision.name else decision.address)
