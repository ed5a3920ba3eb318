"""What the machines of sessions may reach, and how that is changed while they run."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from torpor.network.errors import NetworkError
from torpor.sessions.egress_policy import (
    Plain,
    check_wall,
    normal,
    policy_of,
    wall_of,
    with_rules,
)
from torpor.sessions.errors import ConflictError, FailedError, SessionError
from torpor.sessions.events import Events
from torpor.sessions.hosts import MachineHost
from torpor.sessions.model import Actor
from torpor.sessions.standing import GONE, Standing
from torpor.store import sessions as table
from torpor.store.database import Database
from torpor.store.records import Session
from torpor.vm import HostError, MachineDiedError, VmError

logger = logging.getLogger("torpor.sessions")

ADOPTED_AT_ONCE = 8
"""Walls that are built at the same time for machines that an earlier program has left."""


@dataclass(frozen=True)
class Changed:
    """A session whose policy is another one now, and how many connections that has cut."""

    session: Session
    cut: int


class Egress:
    """Changes policies. A change holds from the moment in which it is answered, also for a machine
    that is busy, or hangs: it waits for no turn."""

    def __init__(
        self, database: Database, host: MachineHost, events: Events, standing: Standing
    ) -> None:
        self._database = database
        self._host = host
        self._events = events
        self._standing = standing
        self.check_may_open: Callable[[str], Awaitable[None]] = _may
        """Raises :exc:`InvalidError` if the policy of a session cannot become open."""
        self._changing = asyncio.Lock()
        """One change after the other, so that the last one written is the last one that holds."""

    def notes(self, session: Session) -> tuple[str, ...]:
        """Return what should be known of a session's policy: what of it may not be meant, and what
        this host makes of it."""
        cautions = policy_of(session.egress).cautions()
        try:
            found = self._host.check_wall(session.egress)
        except HostError as error:  # it was made, or is, on another host
            found = f"This host cannot keep to it: {error.happened}"
        return cautions if found is None else (*cautions, found)

    async def is_open(self, session: Session) -> bool:
        """Say whether a session may reach all that is public."""
        return policy_of(session.egress).mode == "open"

    @asynccontextmanager
    async def changing(self, session: str, egress: object) -> AsyncIterator[dict[str, Plain]]:
        """A block in which a policy is written down, and then enforced, while nobody changes
        another: yields the columns that change, none if ``egress`` is None. Raises
        :exc:`InvalidError`, and :exc:`ConflictError` if no machine can be kept to it here."""
        if egress is None:
            yield {}
            return
        wanted = normal(egress)
        check_wall(self._host, wanted)
        async with self._changing:
            await self._check_may(session, wanted)
            yield {"egress": wanted}

    async def _check_may(self, session: str, egress: Plain) -> None:
        if policy_of(egress).mode == "open":
            await self.check_may_open(session)

    async def change_rules(
        self, session: str, by: Actor, add: Sequence[object], remove: Sequence[str]
    ) -> Changed:
        """Change a policy by rules that are added to it and removed from it. Raises what
        :meth:`change` raises."""
        async with self._changing:
            found = await self._standing.own(session)
            return await self._change(found, by, with_rules(found.egress, add, remove))

    async def change(self, session: str, by: Actor, egress: object) -> Changed:
        """Have a session have another policy. Connections that it does not allow are cut at once.

        Raises :exc:`InvalidError`, :exc:`ConflictError`, and :exc:`FailedError`, the policy kept.
        """
        wanted = normal(egress)
        async with self._changing:
            return await self._change(await self._standing.own(session), by, wanted)

    async def _change(self, session: Session, by: Actor, egress: Plain) -> Changed:
        if session.status in GONE:
            raise ConflictError(
                f"Session {session.name} has been destroyed.", state="Nothing was changed."
            )
        check_wall(self._host, egress)
        await self._check_may(session.id, egress)
        async with self._database.write() as conn:
            changed = await table.update(conn, session.id, egress=egress)
            await self._events.append(
                conn, "session.updated", session.id, by, changes={"egress": egress}
            )
        self._events.tell(session.id)
        return Changed(changed, await self.enforce(changed))

    async def enforce(self, session: Session) -> int:
        """Have the machine of a session be kept to its policy; return how many connections that
        has cut. Raises :exc:`FailedError`."""
        if session.machine is None:
            return 0
        try:
            return await self._host.set_wall(session.machine, wall_of(session))
        except MachineDiedError:  # and that is told elsewhere
            return 0
        except (VmError, NetworkError, OSError) as error:
            raise FailedError(
                f"The machine of session {session.name} could not be told its policy: {error}",
                state="The policy is kept, and holds when the session is started the next time.",
                todo="Pause the session, which ends the machine.",
            ) from error

    async def adopt(self, sessions: Sequence[Session]) -> None:
        """Build walls for machines that an earlier program has left, which nothing has come out of
        since. One whose wall cannot be built stays without a network."""
        at_once = asyncio.Semaphore(ADOPTED_AT_ONCE)

        async def adopt(session: Session) -> None:
            async with at_once:
                try:
                    await self.enforce(session)
                except SessionError as error:
                    logger.warning("session %s has no network: %s", session.name, error)

        async with asyncio.TaskGroup() as group:
            for session in sessions:
                group.create_task(adopt(session), name=f"the wall of {session.id}")


async def _may(_session: str) -> None:
    """Nothing keeps a session from an open policy."""
