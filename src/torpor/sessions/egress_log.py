"""What the wall decided and what went through it: gathered, written in batches, and followed.

A decision is written within :data:`WINDOW_SECONDS`, together with all that came meanwhile, of all
sessions, in one transaction. What could not be written is kept and tried again; lines that are
alike become one, so that is bounded. The bytes are those that the host has counted.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime

from torpor.network.decisions import Decision
from torpor.sessions.egress_batch import Batch
from torpor.sessions.egress_told import Telling, Told
from torpor.sessions.events import NEWS as EVENT_NEWS
from torpor.sessions.events import Events
from torpor.sessions.flows import Delta, Flows, Records
from torpor.sessions.hosts import Counted, MachineHost
from torpor.sessions.model import SYSTEM, now
from torpor.sessions.tasks import Tasks
from torpor.store import egress_log as table
from torpor.store import flows as flows_table
from torpor.store import sessions as sessions_table
from torpor.store import traffic as traffic_table
from torpor.store.database import Database, Transaction
from torpor.store.egress_log import EgressQuery
from torpor.store.errors import StoreError
from torpor.store.news import MISSED
from torpor.store.records import EgressEntry, Flow, Status, Traffic

logger = logging.getLogger("torpor.sessions")

NEWS = "e"
"""The kind of news that the log of a session has new lines."""
WINDOW_SECONDS = 0.25
"""How long decisions are gathered before they are written."""
SAMPLE_SECONDS = 10.0
"""How often bytes are counted for the ledger."""
AGAIN_SECONDS = 2.0
"""After how long it is tried again to write what could not be written."""
MOST_KEPT, MOST_BEYOND = 10_000, 1_000
"""Lines that are kept of one session, and how many more there may be before they are removed."""
MOST_SAMPLED = 64
"""Hosts of one session that are kept apart in one sample of traffic."""
PAGE = 500


@dataclass(frozen=True)
class _Written:
    """What a transaction has written, to be known when it is committed."""

    records: dict[str, Records]
    lines: Counter[str]
    names: dict[str, str]
    tellings: list[Telling]


class EgressLog:
    """The log of all sessions on one host, and where their data went."""

    def __init__(self, database: Database, host: MachineHost, events: Events, tasks: Tasks) -> None:
        self._tasks = tasks
        self._database = database
        self._host = host
        self._events = events
        self._flows = Flows()
        self._told = Told()
        self._batches: dict[str, Batch] = {}
        self._come = asyncio.Event()
        self._writing = asyncio.Lock()
        self._seen: dict[tuple[str, str], Counted] = {}
        """By wall and host, what was counted last."""
        self._written: dict[tuple[str, str], Counted] = {}
        """The same as it was when it was last written."""
        self._beyond: Counter[str] = Counter()
        """Lines of sessions since it was last looked whether they are too many."""
        self._names: dict[str, str] = {}
        self._known: set[str] = set()
        self._began = False
        self._followers: dict[str, set[asyncio.Event]] = {}
        host.on_decision(self.take)
        database.on_news(NEWS, self._heard)
        database.on_news(EVENT_NEWS, self._heard)  # the last of which ends a stream

    # Writing

    def take(self, session: str, decision: Decision) -> None:
        """Take a decision of the wall. Returns at once."""
        self._batches.setdefault(session, Batch()).take(decision)
        self._told.take(session, decision)
        self._come.set()

    def cutting(self, session: str) -> AbstractContextManager[None]:
        """See :meth:`Told.cutting`."""
        return self._told.cutting(session)

    async def run(self) -> None:
        """Write what comes, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write_what_comes())
            group.create_task(self._sample())

    async def _write_what_comes(self) -> None:
        while True:
            await self._come.wait()
            await asyncio.sleep(WINDOW_SECONDS)
            self._come.clear()
            if not await self._tried(sample=False):
                await asyncio.sleep(AGAIN_SECONDS)
                self._come.set()

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            await self._tried(sample=True)

    async def _tried(self, *, sample: bool) -> bool:
        try:
            await self.flush(sample=sample, everything=False)
        except StoreError as error:
            logger.warning("%s What the wall decided is kept, and written later.", error)
            return False
        except Exception:  # whatever it is, it must not be the last time
            logger.exception("what the wall decided could not be written")
            return False
        return True

    async def flush(self, *, sample: bool = True, everything: bool = True) -> None:
        """Write all that has come until now; with ``sample`` also what was counted, with
        ``everything`` also the events that could wait. It costs no transaction if there is nothing
        new. Raises :exc:`StoreError`; nothing is lost then."""
        # To its end: who is cancelled does not know whether the commit came to its own.
        work = self._flush_all(sample=sample, everything=everything)
        await self._tasks.whole(work, "writing what the wall decided")

    async def _flush_all(self, *, sample: bool, everything: bool) -> None:
        async with self._writing:
            there = self._look() if sample else None
            batches, self._batches = self._batches, {}
            try:
                await self._flush(batches, everything=everything)
            except BaseException:
                self._flows.forget()
                for session, newer in self._batches.items():
                    batches.setdefault(session, Batch()).join(newer)
                self._batches = batches
                raise
            if there is not None:  # of one that has ended nothing more will be told
                self._seen = {key: each for key, each in self._seen.items() if key[0] in there}
            self._written = dict(self._seen)

    def _look(self) -> set[str]:
        """Take what the host has counted; return of which walls."""
        counted = self._host.traffic()
        self._seen |= {(each.wall, each.host): each for each in counted}
        return {each.wall for each in counted}

    async def _flush(self, batches: Mapping[str, Batch], *, everything: bool) -> None:
        deltas, machines = self._deltas()
        for session, moved in deltas.items():
            for delta in moved:
                self._told.connected(session, delta.host)
        tellings = self._told.due(everything=everything)
        if not (batches or deltas or tellings):
            return
        async with self._database.write() as conn:
            written = await self._write(conn, batches, deltas, machines, tellings)
        self._flows.keep(written.records)
        self._told.done(written.tellings)
        self._names |= written.names
        self._beyond += written.lines
        for session in {each.session for each in written.tellings}:
            self._events.tell(session)

    def _deltas(self) -> tuple[dict[str, list[Delta]], dict[str, str]]:
        """Return what was counted and not written, by session, and the machines of these."""
        moment = now()
        found: dict[str, dict[str, Delta]] = {}
        machines = {}
        for key, each in self._seen.items():
            last = self._written.get(key)
            delta = Delta(
                each.host,
                moment,
                each.connections - (last.connections if last else 0),
                each.sent_bytes - (last.sent_bytes if last else 0),
                each.received_bytes - (last.received_bytes if last else 0),
            )
            if delta.connections or delta.sent_bytes or delta.received_bytes:
                of_session = found.setdefault(each.session, {})  # which may have had two walls
                before = of_session.get(each.host)
                of_session[each.host] = delta if before is None else before.and_more(delta)
                if each.machine is not None:
                    machines[each.session] = each.machine
        return {session: list(each.values()) for session, each in found.items()}, machines

    async def _write(
        self,
        conn: Transaction,
        batches: Mapping[str, Batch],
        deltas: Mapping[str, list[Delta]],
        machines: Mapping[str, str],
        tellings: list[Telling],
    ) -> _Written:
        if not self._began:  # ids rise also where the clock was put back
            self._database.ulids.after(await table.last_id(conn))
            self._began = True
        told = {each.session for each in tellings}
        await self._look_up(conn, {*batches, *deltas, *told} - self._known)
        batches = {each: batch for each, batch in batches.items() if each in self._known}
        deltas = {each: moved for each, moved in deltas.items() if each in self._known}
        lines = [
            line
            for session, batch in batches.items()
            for line in batch.lines(session, self._database.ulids.new_id)
        ]
        await table.append(conn, lines)
        contacts = {session: batch.contacts for session, batch in batches.items()}
        records = await self._flows.write(conn, contacts, deltas)
        samples = [each for session in deltas for each in _samples(session, deltas[session])]
        await traffic_table.append(conn, samples)
        names = self._new_names(machines)
        await sessions_table.keep_names(conn, names)
        count = Counter(line.session for line in lines)
        for session in [each for each in count if self._is_beyond(each, count[each])]:
            await table.keep_newest(conn, session, MOST_KEPT)
            count[session] = -self._beyond[session]
        for each in tellings:
            if each.session not in self._known:
                continue
            await self._events.append(conn, each.type, each.session, SYSTEM, **each.data)
        for session in batches:
            self._database.tell(conn, NEWS, session)
        return _Written(records, count, names, tellings)

    async def _look_up(self, conn: Transaction, sessions: set[str]) -> None:
        """Find out which of these there are: what a machine does that nobody knows of must not keep
        the rest from being written."""
        if sessions:
            self._known |= await sessions_table.among(conn, sessions)

    def _is_beyond(self, session: str, more: int) -> bool:
        return self._beyond[session] + more > MOST_BEYOND

    def _new_names(self, machines: Mapping[str, str]) -> dict[str, str]:
        """Return what the wall has written down since the last time, of sessions that use it: a
        server that is killed is to lose little of it."""
        found = {session: self._host.names(machine) for session, machine in machines.items()}
        return {
            session: names
            for session, names in found.items()
            if names is not None and names != self._names.get(session)
        }

    async def prune(self, conn: Transaction, logs: datetime, flows: datetime) -> None:
        """Remove lines and samples that are older than ``logs``, and places that nothing was heard
        of since ``flows``."""
        await table.prune(conn, logs)
        await traffic_table.prune(conn, logs)
        if await flows_table.prune(conn, flows):
            self._flows.forget()

    # Reading

    async def before(
        self, query: EgressQuery, cursor: str | None, limit: int = PAGE
    ) -> list[EgressEntry]:
        """Return the newest lines before ``cursor`` (None: of all), the newest first."""
        async with self._database.read() as conn:
            return await table.before(conn, query, cursor, limit)

    async def after(
        self, query: EgressQuery, cursor: str | None, limit: int = PAGE
    ) -> list[EgressEntry]:
        """Return the lines after ``cursor``, the oldest first."""
        async with self._database.read() as conn:
            return await table.after(conn, query, cursor, limit)

    async def follow(self, query: EgressQuery, cursor: str | None) -> AsyncIterator[EgressEntry]:
        """Yield all lines after ``cursor``, and those that come, until the session is destroyed."""
        news = asyncio.Event()
        followers = self._followers.setdefault(query.session, set())
        followers.add(news)
        try:
            while True:
                news.clear()
                gone = await self._is_gone(query.session)
                found = await self.after(query, cursor)
                for entry in found:
                    cursor = entry.id
                    yield entry
                if not found:
                    if gone:
                        return
                    await news.wait()
        finally:
            followers.discard(news)
            if not followers:
                self._followers.pop(query.session, None)

    async def flows(self, session: str) -> list[Flow]:
        """Return where the data of a session went, up to now: what has received most first."""
        with suppress(StoreError):  # what could be read is worth more than what is newest
            await self.flush(everything=False)
        async with self._database.read() as conn:
            return await flows_table.of_session(conn, session)

    async def traffic(
        self, session: str, since: datetime | None = None, until: datetime | None = None
    ) -> list[Traffic]:
        """Return the bytes that went to each host, sample by sample."""
        async with self._database.read() as conn:
            return await traffic_table.of_session(conn, session, since, until)

    async def _is_gone(self, session: str) -> bool:
        async with self._database.read() as conn:
            found = await sessions_table.get(conn, session)
        return found is None or found.status is Status.DESTROYED

    def _heard(self, session: str) -> None:
        sessions = list(self._followers) if session == MISSED else [session]
        for each in sessions:
            for follower in self._followers.get(each, ()):
                follower.set()


def _samples(session: str, deltas: list[Delta]) -> Iterator[Traffic]:
    """Yield the sample of a session: those hosts apart that had most to do with it."""
    deltas = sorted(deltas, key=lambda each: each.sent_bytes + each.received_bytes, reverse=True)
    apart = [each for each in deltas if each.host][:MOST_SAMPLED]
    kept = {each.host for each in apart}
    rest = [each for each in deltas if each.host not in kept]
    for each in apart:
        yield Traffic(session, each.at, each.host, each.sent_bytes, each.received_bytes)
    if rest:
        sent = sum(each.sent_bytes for each in rest)
        received = sum(each.received_bytes for each in rest)
        yield Traffic(session, rest[0].at, "", sent, received)
