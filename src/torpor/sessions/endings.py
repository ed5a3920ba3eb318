"""The ends of machines that no session has any more: one that cannot be ended is tried again."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from torpor.sessions.events import Events
from torpor.sessions.hosts import MachineHost
from torpor.sessions.model import SYSTEM
from torpor.sessions.tasks import Tasks
from torpor.store.errors import StoreError
from torpor.vm import VmError
from torpor.vm.leftovers import until_done

logger = logging.getLogger("torpor.sessions")


class Endings:
    """Ends machines. ``closing`` is set when this program is about to end: what is left then is
    ended by the next one."""

    def __init__(
        self, host: MachineHost, events: Events, tasks: Tasks, closing: asyncio.Event
    ) -> None:
        self._host = host
        self._events = events
        self._tasks = tasks
        self._closing = closing
        self._trying: set[str] = set()

    async def end(
        self,
        machine: str,
        session: str | None,
        unless: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """End a machine, ``unless`` it is found to be a session's after all.

        If it cannot be ended now, that is told in an event of the ``session`` that had it, and it
        is tried again in the background until it is gone, which is told too.
        """
        why = await self._try(machine, unless)
        if why is not None and machine not in self._trying:
            self._trying.add(machine)
            again = self._again(machine, session, why, unless)
            self._tasks.background(again, f"ending machine {machine}")

    async def _try(
        self, machine: str, unless: Callable[[], Awaitable[bool]] | None
    ) -> Exception | None:
        """Try to end a machine; return why it could not be."""
        try:
            if unless is None or not await unless():
                await self._host.end(machine)
        except (VmError, StoreError, OSError) as error:
            return error
        return None

    async def _again(
        self,
        machine: str,
        session: str | None,
        why: Exception,
        unless: Callable[[], Awaitable[bool]] | None,
    ) -> None:
        told = await self._tell("machine.stays", machine, session, str(why))
        last = why

        async def ended() -> bool:
            nonlocal told, last
            left = await self._try(machine, unless)
            if left is None:
                if told:
                    await self._tell("machine.ended", machine, session, None)
                return True
            last = left
            told = told or await self._tell("machine.stays", machine, session, str(why))
            return False

        try:
            if not await until_done(ended, self._closing):
                logger.error("machine %s still runs: %s; the next start ends it", machine, last)
        finally:
            self._trying.discard(machine)

    async def _tell(self, event: str, machine: str, session: str | None, why: str | None) -> bool:
        """Append an event; a database that does not take it is asked again the next time."""
        data = {"machine": machine} if why is None else {"machine": machine, "error": why}
        try:
            await self._events.add(event, session, SYSTEM, **data)
        except StoreError as error:
            logger.warning("%s of %s is not noted yet: %s", event, machine, error)
            return False
        return True
