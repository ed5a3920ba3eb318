"""Using a session: whoever does finds it running, and wakes it if it is paused."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from torpor.sessions.errors import ConflictError, FailedError
from torpor.sessions.events import Events
from torpor.sessions.hosts import MachineHost
from torpor.sessions.lifecycle import Lifecycle
from torpor.sessions.lives import Lives
from torpor.sessions.model import SYSTEM, Actor
from torpor.sessions.standing import RUNS, Standing, check_there
from torpor.sessions.tasks import Tasks
from torpor.store import sessions
from torpor.store.database import Database
from torpor.store.records import Session, Status
from torpor.vm import ChannelLostError, Command, GuestAgent, HeldError, Terminal, VmError

WAIT_LIMIT = 120.0
"""Seconds that somebody who wants to use a session waits for it to run."""

HELD_POLL = 1.0
"""Seconds between two looks whether a machine is still held."""


@dataclass(frozen=True)
class InUse:
    """A session that runs, and its guest agent."""

    session: Session
    agent: GuestAgent

    def command(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        user: str | None = None,
        stdin: bool = False,
        terminal: Terminal | None = None,
        limit: float | None = None,
        keep: int | None = None,
    ) -> Command:
        """Return a command as it runs in this session: its image's and its own environment, and
        its image's user and directory, where nothing else is said."""
        defaults = self.session.defaults
        return Command(
            argv,
            env={**defaults.get("env", {}), **self.session.env, **(env or {})},
            cwd=workdir or defaults.get("working_dir") or None,
            user=user or defaults.get("user") or "0",
            stdin=stdin,
            terminal=terminal,
            limit=limit,
            keep=keep,
        )


class Uses:
    """Wakes sessions that are used, once, however many ask at the same moment."""

    def __init__(
        self,
        database: Database,
        host: MachineHost,
        events: Events,
        lives: Lives,
        standing: Standing,
        lifecycle: Lifecycle,
        tasks: Tasks,
    ) -> None:
        self._database = database
        self._host = host
        self._events = events
        self._lives = lives
        self._standing = standing
        self._lifecycle = lifecycle
        self._tasks = tasks

    @asynccontextmanager
    async def use(self, session: str, by: Actor, *, patient: bool = False) -> AsyncIterator[InUse]:
        """Have a session run while the block does; it does not count as idle in it.

        A machine that is held because the host's disk is full can be attached to only when there is
        space: who is ``patient`` waits for that, else it is :exc:`torpor.vm.HeldError`. Somebody
        may pause it all the same: then what was asked of its agent fails with
        :exc:`torpor.vm.ChannelLostError` or :exc:`torpor.vm.MachineDiedError`. Raises
        :exc:`ConflictError` if it has failed, :exc:`DestroyedError`, :exc:`NoRoomError`,
        :exc:`FailedError`.
        """
        with self.counted(session):
            yield await self.running(session, by, patient=patient)

    async def running(self, session: str, by: Actor, *, patient: bool = False) -> InUse:
        """Return a session as it runs, after waking it if need be. Raises as :meth:`use`."""
        while True:
            try:
                return await self._running(session, by)
            except HeldError:
                if not patient:
                    raise
            await asyncio.sleep(HELD_POLL)

    async def _running(self, session: str, by: Actor) -> InUse:
        try:
            async with asyncio.timeout(WAIT_LIMIT):
                while True:
                    found = await self._awake(session, by)
                    agent = await self._agent(found)
                    if agent is not None:
                        return InUse(found, agent)
        except TimeoutError:
            raise FailedError(
                f"Session {session} did not come to run within {WAIT_LIMIT:.0f} s.",
                state="What was asked of it was not begun.",
                todo="Look at its events.",
            ) from None

    async def attached(self, session: str) -> InUse:
        """Return a session as soon as it runs, and is not held, without waking it. Raises as
        :meth:`use`."""
        live = self._lives.of(session)
        while True:
            news = live.news
            found = await self._standing.own(session)
            self._check(found)
            if found.status in RUNS and not live.swapping:
                try:
                    agent = await self._agent(found)
                except HeldError:
                    await asyncio.sleep(HELD_POLL)
                    continue
                if agent is not None:
                    return InUse(found, agent)
            else:
                await news.wait()

    async def check_own(self, session: str) -> None:
        """Raise an error if a session is not on the host of this server."""
        await self._standing.own(session)

    def counted(self, session: str) -> AbstractContextManager[None]:
        """Return a context in which a session does not count as idle."""
        return self._lives.of(session).use()

    def touch(self, session: str) -> None:
        """Note that a session is used right now."""
        self._lives.of(session).touch()

    async def paused(self, session: str) -> bool:
        """Return whether a session is paused, or just being so."""
        return self._lives.of(session).swapping or (
            (await self._standing.get(session)).status is Status.PAUSED
        )

    async def _awake(self, session: str, by: Actor) -> Session:
        live = self._lives.of(session)
        while True:
            if live.waking is not None:  # what comes of it holds for all who want it
                await asyncio.shield(live.waking)
            news = live.news
            found = await self._standing.own(session)
            self._check(found)
            if live.swapping or found.status is Status.PROVISIONING:
                await news.wait()
            elif found.status is Status.PAUSED:
                await self._wake(session, by)
            else:
                return found

    def _check(self, found: Session) -> None:
        check_there(found)
        if found.status is Status.FAILED:
            raise ConflictError(
                f"Session {found.name} has failed: {found.failure}",
                state="Nothing of it runs.",
                todo="Resume it from one of the snapshots that it can be recovered from.",
            )

    async def _wake(self, session: str, by: Actor) -> None:
        live = self._lives.of(session)
        if live.waking is None:
            waking = self._lifecycle.resume(session, by, snapshot=None, key=None)
            live.waking = self._tasks.start(waking, f"waking {session}")
            live.waking.add_done_callback(lambda _: setattr(live, "waking", None))
        await asyncio.shield(live.waking)

    async def _agent(self, session: Session) -> GuestAgent | None:
        """Return the agent of a session's machine, None if the machine has just gone."""
        live = self._lives.of(session.id)
        try:
            agent = await self._host.agent(session.machine or "")
        except ChannelLostError as error:
            await self._detached(session, str(error))
            raise
        except VmError:
            # The news of a machine's end, or of its pause, may be a moment later than its end.
            await asyncio.sleep(0.05)
            if live.busy or await self._moved_on(session):
                return None
            raise
        if session.status is Status.DETACHED:
            await self._change(session, Status.READY, "session.attached")
        return agent

    async def _moved_on(self, session: Session) -> bool:
        return (await self._standing.get(session.id)).machine != session.machine

    async def _detached(self, session: Session, why: str) -> None:
        if session.status is not Status.DETACHED and session.machine in self._host.running():
            await self._change(session, Status.DETACHED, "session.detached", error=why)

    async def _change(self, session: Session, status: Status, event: str, **data: Any) -> None:
        async with self._database.write() as conn:
            found = await sessions.get(conn, session.id)
            if found is None or found.machine != session.machine or found.status not in RUNS:
                return
            await sessions.update(conn, session.id, status=status)
            await self._events.append(conn, event, session.id, SYSTEM, **data)
        self._events.tell(session.id)
