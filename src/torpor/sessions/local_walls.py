"""The walls of the machines on this computer: each stands from before its machine runs until that
is ended, and over a pause for as long as connections are to be held.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torpor.network.decisions import Decision
from torpor.network.errors import NetworkError
from torpor.network.host_addresses import OwnAddresses
from torpor.network.judge import PolicyJudge, judge
from torpor.network.limits import limits_of
from torpor.network.link import Link, Links, Probed
from torpor.network.names import Names
from torpor.network.policy import Policy
from torpor.network.resolver import Resolver
from torpor.network.services import Handler
from torpor.network.terminating import Terminator
from torpor.network.traffic import OTHERS
from torpor.network.walls import Walls
from torpor.sessions.egress_policy import policy_of
from torpor.sessions.hosts import SESSION, Counted, Wall
from torpor.vm import HostError, Machine
from torpor.vm.new_snapshot import new_id
from torpor.vm.wire import Wired

logger = logging.getLogger("torpor.sessions")


@dataclass
class Standing:
    """A wall that stands. ``machine`` is None before it runs; ``snapshot`` is the one in which it
    sleeps, and ``falling`` says that it is on its way there."""

    key: str
    session: str
    link: Link
    names: Names
    hold: float
    machine: str | None = None
    falling: bool = False
    snapshot: str | None = None
    giving_up: asyncio.TimerHandle | None = None
    written: tuple[int, str] = (0, "")
    """How many names there were when they were last written down, and how that was."""


@dataclass(frozen=True)
class Parts:
    """What stands behind all walls: what serves the session's own names, what ends TLS for a
    machine of a session, if anything does, and what looks names up."""

    handlers: Mapping[str, Handler] | None = None
    terminator: Callable[[str], Terminator | None] = field(default=lambda session: None)
    resolver: Resolver | None = None


@dataclass
class Opened:
    """What a machine is started with: its ``link``, None if it gets none. Whoever has started it
    says which ``machine`` it is."""

    link: Link | None
    machine: Machine | None = None


class LocalWalls:
    """All walls of this host, or none if it makes no links."""

    def __init__(
        self, links: Links | None, linked: Probed | None = None, parts: Parts | None = None
    ) -> None:
        """``linked`` says why there are no links."""
        parts = parts or Parts()
        self._linked = linked or Probed("machines are started without links here")
        self._own = OwnAddresses()
        self._resolver = parts.resolver or Resolver()
        self._calls: list[Callable[[str, Decision], None]] = []
        self._walls: Walls[Link] | None = None
        if links is not None:
            self._walls = Walls(
                links,
                self._resolver,
                self._told,
                handlers=parts.handlers,
                terminator=parts.terminator,
            )
        self._standing: dict[str, Standing] = {}
        self._last: list[Counted] = []
        """What was counted of walls that stand no longer, until it is asked for."""
        self._closing: set[asyncio.Task[None]] = set()

    def on_decision(self, call: Callable[[str, Decision], None]) -> None:
        """Have ``call`` be given each decision, and the session that it is about."""
        self._calls.append(call)

    def _told(self, key: str, decision: Decision) -> None:
        found = self._standing.get(key)
        if found is not None:
            for call in self._calls:
                call(found.session, decision)

    # Whether there are any

    @property
    def missing(self) -> str | None:
        """Why there are none, or None if there are."""
        return None if self._walls is not None else self._linked.why

    def check(self, egress: str | dict[str, Any] | None) -> str | None:
        """See :meth:`torpor.sessions.hosts.MachineHost.check_wall`."""
        if self.missing is None:
            return None
        if policy_of(egress).mode != "open":
            raise HostError(
                f"No machine can be kept to a policy on this host: {self.missing}.",
                state="Nothing was started.",
                todo=self._linked.todo,
            )
        return f"Its machine has no network: {self.missing}. {self._linked.todo}".strip()

    def why_none(self, machine: Machine) -> str | None:
        """Return why a machine has no network, None if it has one."""
        if machine.record.card:
            return None
        return self.missing or "its snapshot was made where machines had no network"

    # A machine comes

    @asynccontextmanager
    async def opened(
        self, labels: Mapping[str, str], wall: Wall, snapshot: str, event: str
    ) -> AsyncIterator[Opened]:
        """The wall of a machine that the block starts; of one that is resumed the one that still
        stands, if it does. Raises :exc:`HostError`."""
        self.check(wall.egress)
        if self._walls is None:
            yield Opened(None)
            return
        session = labels.get(SESSION, "")
        standing = await self._open(session, wall, snapshot if event == "resume" else None)
        opened = Opened(standing.link)
        try:
            yield opened
        except BaseException:
            await asyncio.shield(self._close(standing))
            raise
        if opened.machine is not None and opened.machine.record.card:
            standing.machine = opened.machine.id
            self._walls.resume(standing.key)
        else:
            await self._close(standing)

    async def _open(self, session: str, wall: Wall, snapshot: str | None) -> Standing:
        assert self._walls is not None
        policy = policy_of(wall.egress)
        asleep = self._asleep(session, snapshot)
        if asleep is not None:
            self._stay(asleep)
            await self._change(asleep, wall)
            return asleep
        key, names, limits = new_id(), names_of(wall), limits_of(policy)
        decide = self._judge(policy, wall)
        with told_as_host_error():
            link = await self._walls.open(key, decide, names, limits, session)
        return self._stands(Standing(key, session, link, names, policy.hold))

    def _stands(self, standing: Standing) -> Standing:
        self._standing[standing.key] = standing
        return standing

    async def set(self, machine: Machine, wall: Wall) -> int:
        """See :meth:`torpor.sessions.hosts.MachineHost.set_wall`."""
        self.check(wall.egress)
        standing = self._of(machine.id)
        if standing is not None:
            return await self._change(standing, wall)
        if self._walls is not None and machine.record.card:
            await self._adopt(machine, wall)
        return 0

    async def _adopt(self, machine: Machine, wall: Wall) -> None:
        assert self._walls is not None
        policy = policy_of(wall.egress)
        key, names, limits = new_id(), names_of(wall), limits_of(policy)
        session, decide = machine.record.labels.get(SESSION, ""), self._judge(policy, wall)
        link = machine.wired.take()  # it was built when the machine was found
        with told_as_host_error():
            if isinstance(link, Link):
                await self._walls.stand_at(key, link, decide, names, limits, session)
            else:
                link = await self._walls.adopt(key, machine.pid, decide, names, limits, session)
                machine.wired = Wired(link)  # where it is started again, should it be rebooted
        self._stands(Standing(key, session, link, names, policy.hold, machine.id))

    async def _change(self, standing: Standing, wall: Wall) -> int:
        assert self._walls is not None
        policy = policy_of(wall.egress)
        standing.hold = policy.hold
        decide = self._judge(policy, wall)
        return await self._walls.policy(standing.key, decide, limits_of(policy))

    def _judge(self, policy: Policy, wall: Wall) -> PolicyJudge:
        return judge(policy, own=self._own, packages=wall.packages)

    def _of(self, machine: str) -> Standing | None:
        for each in self._standing.values():
            if each.machine == machine:
                return each
        return None

    # It sleeps

    @asynccontextmanager
    async def frozen(
        self, machine: Machine, snapshot: str, *, stop: bool
    ) -> AsyncIterator[Callable[[], str | None]]:
        """A block that freezes a machine; yields what returns its names, as they are after it.

        With ``stop``, what others send waits from before it on, and for as long afterwards as the
        policy says. Then the wall is taken down: a session that sleeps costs nothing.
        """
        standing = self._of(machine.id)
        if self._walls is None or standing is None:
            yield lambda: None
            return
        if not stop:
            yield lambda: written_names(standing)
            return
        standing.falling = True
        await self._walls.pause(standing.key, standing.hold)
        try:
            yield lambda: written_names(standing)
        except BaseException:
            standing.falling = False
            if machine.running:
                self._walls.resume(standing.key)
            else:
                self._close_soon(standing)
            raise
        standing.machine, standing.snapshot, standing.falling = None, snapshot, False
        loop = asyncio.get_running_loop()
        standing.giving_up = loop.call_later(standing.hold, self._close_soon, standing)

    def _asleep(self, session: str, snapshot: str | None) -> Standing | None:
        """Return the wall of a session that sleeps in a snapshot; those of it that sleep in others
        are of no use any more."""
        found = None
        for each in [*self._standing.values()]:
            if each.session == session and each.snapshot is not None:
                if each.snapshot == snapshot:
                    found = each
                else:
                    self._close_soon(each)
        return found

    def _stay(self, standing: Standing) -> None:
        standing.snapshot = None
        if standing.giving_up is not None:
            standing.giving_up.cancel()
            standing.giving_up = None

    # It ends

    def forget(self, snapshot: str) -> None:
        """Take down the wall of a session that sleeps in a snapshot which nobody needs any more."""
        for each in [*self._standing.values()]:
            if each.snapshot == snapshot:
                self._close_soon(each)

    def ended(self, machine: str) -> None:
        """Take down the wall of a machine that has ended, unless it is about to sleep."""
        found = self._of(machine)
        if found is not None and not found.falling:
            self._close_soon(found)

    def _close_soon(self, standing: Standing) -> None:
        closing = asyncio.create_task(self._close(standing), name=f"the wall of {standing.session}")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _close(self, standing: Standing) -> None:
        assert self._walls is not None
        self._stay(standing)
        if self._standing.pop(standing.key, None) is not None:
            self._last += self._counted(standing)
            await self._walls.close(standing.key)

    async def close_all(self) -> None:
        """Take all walls down. Machines that run on reach nothing until they are adopted."""
        for each in [*self._standing.values()]:
            self._close_soon(each)
        while self._closing:
            await asyncio.gather(*self._closing, return_exceptions=True)
        self._resolver.close()

    # What is known of them

    def names(self, machine: str) -> str | None:
        """See :meth:`torpor.sessions.hosts.MachineHost.names`."""
        standing = self._of(machine)
        return None if standing is None else written_names(standing)

    def traffic(self) -> list[Counted]:
        """See :meth:`torpor.sessions.hosts.MachineHost.traffic`."""
        last, self._last = self._last, []
        return [*last, *(one for each in self._standing.values() for one in self._counted(each))]

    def _counted(self, standing: Standing) -> list[Counted]:
        assert self._walls is not None
        return [
            Counted(
                standing.session,
                standing.key,
                standing.machine,
                "" if each.host == OTHERS else each.host,
                each.connections,
                each.sent,
                each.received,
            )
            for each in self._walls.traffic(standing.key)
        ]


def names_of(wall: Wall) -> Names:
    """Return the names that an earlier wall of the session has written down; none if they cannot be
    read, and then machines look theirs up anew."""
    if wall.names is None:
        return Names()
    try:
        return Names.from_plain(json.loads(wall.names))
    except ValueError:
        logger.exception("the names of a session cannot be read; its machine looks them up anew")
        return Names()


def written_names(standing: Standing) -> str | None:
    """Return the names of a wall, written down; None if there are none."""
    count = len(standing.names)
    if count != standing.written[0]:  # none is ever taken away
        standing.written = (count, json.dumps(standing.names.plain(), separators=(",", ":")))
    return standing.written[1] or None


@contextmanager
def told_as_host_error() -> Iterator[None]:
    """Raise what goes wrong with a wall as an error of the host."""
    try:
        yield
    except HostError:
        raise
    except NetworkError as error:
        raise HostError(error.happened, state=error.state, todo=error.todo) from error
