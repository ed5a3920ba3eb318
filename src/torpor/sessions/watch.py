"""What is done all the time: idle sessions are paused, and what sessions use is sampled."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from torpor.sessions.attachments import Attachments
from torpor.sessions.egress_log import EgressLog
from torpor.sessions.errors import SessionError
from torpor.sessions.events import Events
from torpor.sessions.hosts import MachineHost
from torpor.sessions.lifecycle import IDLE, Lifecycle
from torpor.sessions.lives import Lives
from torpor.sessions.model import SYSTEM, now
from torpor.sessions.room import Room
from torpor.sessions.snapshots import Snapshots
from torpor.sessions.standing import RUNS
from torpor.sessions.tasks import Tasks
from torpor.sessions.transfers import Transfers
from torpor.store import events as events_table
from torpor.store import operations as operations_table
from torpor.store import previews as previews_table
from torpor.store import samples as samples_table
from torpor.store import sessions as sessions_table
from torpor.store import snapshots as snapshots_table
from torpor.store.database import Database
from torpor.store.errors import StoreError
from torpor.store.records import Sample, Session
from torpor.vm import VmError

logger = logging.getLogger("torpor.sessions")

TIDY_EVERY = 60.0
HELD, RELEASED = "session.held", "session.released"
MOST_EVENTS = 1 << 20
SAMPLE_LIMIT = 5.0
"""Seconds that a machine may take to say how it is to be counted: a hostile one takes any time."""


@dataclass(frozen=True)
class Keeping:
    """How often a sample is taken, in seconds, and for how many days samples, events, ended
    operations (and with them their idempotency keys), the egress log, and where data went are
    kept."""

    sample_seconds: float = 5.0
    samples_days: int = 30
    events_days: int = 90
    operations_days: int = 7
    egress_log_days: int = 30
    flows_days: int = 365


class Watch:
    """Looks after all sessions until it is closed."""

    def __init__(
        self,
        database: Database,
        host: MachineHost,
        events: Events,
        snapshots: Snapshots,
        room: Room,
        lives: Lives,
        lifecycle: Lifecycle,
        transfers: Transfers,
        attachments: Attachments,
        egress_log: EgressLog,
        tasks: Tasks,
        keeping: Keeping,
        idle_timeout: int,
        me: str | None,
    ) -> None:
        self._database = database
        self._host = host
        self._events = events
        self._snapshots = snapshots
        self._room = room
        self._lives = lives
        self._lifecycle = lifecycle
        self._transfers = transfers
        self._attachments = attachments
        self._egress_log = egress_log
        self._tasks = tasks
        self._keeping = keeping
        self._idle_timeout = idle_timeout
        self._me = me
        self._held: dict[str, str] = {}
        self._told_held: set[str] = set()
        self._recalled = False
        self.on_samples: Callable[[list[Sample]], None] = lambda _: None
        """Is told of the samples of each round."""
        self._pausing: set[str] = set()

    async def run(self) -> None:
        """Look after the sessions, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._every(self._keeping.sample_seconds, self.look))
            group.create_task(self._every(TIDY_EVERY, self.tidy))
            group.create_task(self._egress_log.run())

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except (StoreError, SessionError, VmError, OSError) as error:
                logger.warning("%s; it is tried again", error)
            except Exception:  # whatever it is, it must not be the last time
                logger.exception("%s failed; it is tried again", work.__name__)

    async def look(self) -> None:
        """Take a sample of each session that runs, and pause those that are idle."""
        async with self._database.read() as conn:
            running = await sessions_table.with_status(conn, RUNS, self._me)
            stored = await snapshots_table.stored_bytes(conn) if running else {}
        await self._recall()
        sampled = await asyncio.gather(
            *(self._sample(session, stored.get(session.id, 0)) for session in running)
        )
        samples = [sample for sample in sampled if sample is not None]
        for session in running:
            await self._look_whether_held(session)
            self._pause_if_idle(session)
        self.on_samples(samples)
        used = [session for session in running if self._lives.of(session.id).idle_seconds() == 0]
        if samples or used:
            async with self._database.write() as conn:
                await samples_table.append(conn, samples)
                for session in used:
                    await sessions_table.update(conn, session.id, used_at=now())

    async def _sample(self, session: Session, stored: int) -> Sample | None:
        if session.machine is None:
            return None
        try:
            async with asyncio.timeout(SAMPLE_LIMIT):
                usage = await self._host.usage(session.machine)
            layer = self._host.disk_bytes(session.machine)
        except (VmError, OSError):  # it is just ending, and that is told elsewhere
            return None
        except Exception:  # a machine must not keep the others from being looked after
            logger.exception("what session %s uses cannot be found out", session.id)
            return None
        self._room.took(session.id, usage.private)
        return Sample(
            session.id,
            now(),
            session.machine,
            usage.vcpu,
            usage.waited,
            usage.emulator,
            usage.resident,
            usage.private,
            stored + layer,
        )

    async def _recall(self) -> None:
        """Take over which sessions the last program has told to be held, and no more."""
        if self._recalled:
            return
        async with self._database.read() as conn:
            told = await events_table.after(conn, None, None, MOST_EVENTS, (HELD, RELEASED))
        last = {event.session: event for event in told}
        for session, event in last.items():
            if session is not None and event.type == HELD:
                self._held[session] = event.data["reason"]
                self._told_held.add(session)
        self._recalled = True

    async def _look_whether_held(self, session: Session) -> None:
        with contextlib.suppress(VmError):
            why = self._host.held(session.machine or "")
            if why is not None:
                self._held.setdefault(session.id, why)
            held = self._held.get(session.id)
            if held is None:
                return
            # A disk that is full may have no room for the event either: then it is told later.
            if session.id not in self._told_held:
                await self._events.add(HELD, session.id, SYSTEM, reason=held)
                self._told_held.add(session.id)
            if why is None:
                await self._events.add(RELEASED, session.id, SYSTEM)
                self._told_held.discard(session.id)
                del self._held[session.id]

    def _pause_if_idle(self, session: Session) -> None:
        if session.id not in self._pausing and self._idle(session):
            self._pausing.add(session.id)
            self._tasks.background(self._pause(session), f"pausing idle session {session.id}")

    def _idle(self, session: Session) -> bool:
        limit = session.idle_timeout
        if limit is None:
            limit = self._idle_timeout
        if limit == 0 or session.keep_warm or session.id in self._held:
            return False
        return self._lives.of(session.id).idle_seconds() >= limit

    async def _pause(self, session: Session) -> None:
        try:
            await self._lifecycle.pause(session.id, SYSTEM, durable=False, reason=IDLE, key=None)
        except SessionError:  # noted as a failed operation; the next try is one time limit away
            self._lives.of(session.id).touch()
        finally:
            self._pausing.discard(session.id)

    async def tidy(self) -> None:
        """Finish what was left over, and forget what is too old."""
        await self._snapshots.tidy()
        await self._transfers.tidy()
        for session in await self._attachments.tidy():
            try:
                await self._lifecycle.destroy(session, SYSTEM)
            except SessionError as error:
                logger.warning("session %s is still being destroyed: %s", session, error)
        moment = now()
        async with self._database.write() as conn:
            keeping = self._keeping
            await samples_table.prune(conn, moment - timedelta(days=keeping.samples_days))
            await events_table.prune(conn, moment - timedelta(days=keeping.events_days))
            await operations_table.prune(conn, moment - timedelta(days=keeping.operations_days))
            await previews_table.prune(conn, moment - timedelta(days=keeping.events_days))
            await self._egress_log.prune(
                conn,
                moment - timedelta(days=keeping.egress_log_days),
                moment - timedelta(days=keeping.flows_days),
            )
