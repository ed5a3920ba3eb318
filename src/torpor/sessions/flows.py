"""Where the data of sessions went: a record for each place, kept up from what came since the last
time."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from torpor.sessions.egress_batch import Contact
from torpor.store import flows as table
from torpor.store.database import Transaction
from torpor.store.records import Flow

HOST = "host"
"""The kind of places that are hosts."""
MOST_PLACES = 2000
"""Places of one session that are kept apart; what comes beyond them stands together."""
MOST_KNOWN = 512
"""Sessions whose records are kept in memory."""


@dataclass(frozen=True)
class Delta:
    """What a session had to do with a host since the last time."""

    host: str
    at: datetime
    connections: int
    sent_bytes: int
    received_bytes: int

    def and_more(self, other: "Delta") -> "Delta":
        """Return this and another one together."""
        return Delta(
            self.host,
            other.at,
            self.connections + other.connections,
            self.sent_bytes + other.sent_bytes,
            self.received_bytes + other.received_bytes,
        )


Records = dict[str, Flow]
"""The records of one session, by host."""


class Flows:
    """The records of the sessions that have reached out lately. One caller at a time."""

    def __init__(self) -> None:
        self._known: dict[str, Records] = {}

    async def write(
        self,
        conn: Transaction,
        contacts: Mapping[str, Mapping[str, Contact]],
        deltas: Mapping[str, Iterable[Delta]],
    ) -> dict[str, Records]:
        """Write what has changed in a transaction, by session, and return the records as they are
        when that is committed: call :meth:`keep` with them then."""
        written: dict[str, Records] = {}
        new: list[Flow] = []
        changed: list[Flow] = []
        for session in {**contacts, **deltas}:
            before = await self._before(conn, session)
            after = dict(before)
            for host, contact in contacts.get(session, {}).items():
                if contact.denied or contact.inspected or contact.secrets:
                    _met(after, _record(after, session, host, contact.first), contact)
            for delta in deltas.get(session, ()):
                _moved(after, _record(after, session, delta.host, delta.at), delta)
            for name, flow in after.items():
                if flow is not before.get(name):
                    (changed if name in before else new).append(flow)
            written[session] = after
        await table.insert(conn, new)
        await table.update(conn, changed)
        return written

    async def _before(self, conn: Transaction, session: str) -> Records:
        found = self._known.get(session)
        if found is None:
            kept = await table.of_session(conn, session)
            found = {flow.name: flow for flow in kept if flow.kind == HOST}
        return found

    def keep(self, written: Mapping[str, Records]) -> None:
        """Know from now on what was committed."""
        for session, records in written.items():
            self._known.pop(session, None)
            self._known[session] = records
        while len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def forget(self) -> None:
        """Know nothing any more: another server may have written since."""
        self._known.clear()


def _record(records: Records, session: str, host: str, at: datetime) -> Flow:
    """Return the record of a host, a new one if there is none; that of the rest if there are too
    many."""
    if host not in records and len(records) >= MOST_PLACES:
        host = ""
    return records.get(host) or Flow(session, HOST, host, at, at)


def _met(records: Records, flow: Flow, contact: Contact) -> None:
    records[flow.name] = replace(
        flow,
        first_at=min(flow.first_at, contact.first),
        last_at=max(flow.last_at, contact.last),
        denied=flow.denied + contact.denied,
        inspected=flow.inspected or contact.inspected,
        secrets=tuple(sorted({*flow.secrets, *contact.secrets})),
    )


def _moved(records: Records, flow: Flow, delta: Delta) -> None:
    records[flow.name] = replace(
        flow,
        first_at=min(flow.first_at, delta.at),
        last_at=max(flow.last_at, delta.at),
        connections=flow.connections + delta.connections,
        sent_bytes=flow.sent_bytes + delta.sent_bytes,
        received_bytes=flow.received_bytes + delta.received_bytes,
    )
