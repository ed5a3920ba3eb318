"""Answers that are awaited of a guest agent: within a time, and not while its machine is held."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from torpor.guest import wire
from torpor.vm.errors import VmError
from torpor.vm.holding import Holding

LATE = 4096
"""Requests that were called off whose answers may still come."""

Reply = asyncio.Future[tuple[dict[str, Any], bytes]]


class Replies:
    """The requests of one channel that are not answered yet, by their numbers."""

    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        self._awaited: dict[int, Reply] = {}
        self._patient: dict[int, tuple[asyncio.Timeout, float]] = {}
        self._called_off: dict[int, None] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        holding.watch(self._holding_changed)

    def __bool__(self) -> bool:
        return bool(self._awaited)

    @asynccontextmanager
    async def awaited(self, number: int, limit: float, *, patient: bool) -> AsyncIterator[Reply]:
        """Await an answer in the block, which takes at most ``limit`` seconds, else TimeoutError.

        The answer is :exc:`HeldError` as soon as the machine is held, unless who asks is
        ``patient``: then the limit begins anew when the machine goes on.
        """
        reply: Reply = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(limit) as timer:
                self._awaited[number] = reply
                if patient:
                    self._patient[number] = timer, limit
                self._holding_changed()
                yield reply
        finally:
            self._awaited.pop(number, None)
            self._patient.pop(number, None)
            if not reply.done() or reply.cancelled() or reply.exception() is not None:
                self._called_off[number] = None
                if len(self._called_off) > LATE:
                    del self._called_off[next(iter(self._called_off))]
            self._look_whether_idle()

    def give(self, number: int, payload: bytes) -> bool:
        """Give an answer to whoever waits for it; say whether anybody does or, until it was called
        off, did. Raises :exc:`torpor.guest.wire.WireError` if it is none."""
        reply = self._awaited.get(number)
        if reply is None or reply.done():
            asked = number in self._called_off
            self._called_off.pop(number, None)
            return asked
        reply.set_result(wire.parse_document(payload))
        return True

    def lose(self, reason: VmError) -> None:
        """Answer all with ``reason``."""
        for reply in self._awaited.values():
            if not reply.done():
                reply.set_exception(reason)
        self._holding.unwatch(self._holding_changed)

    async def idle(self) -> None:
        """Return when no answer is awaited. Raises :exc:`HeldError` as soon as the machine is
        held."""
        await self._idle.wait()
        self._holding.check()

    def _holding_changed(self) -> None:
        for timer, limit in self._patient.values():
            self._begin_anew(timer, limit)
        for number, reply in self._awaited.items():
            error = self._holding.error()
            if error is not None and number not in self._patient and not reply.done():
                reply.set_exception(error)
        self._look_whether_idle()

    def _begin_anew(self, timer: asyncio.Timeout, limit: float) -> None:
        if not timer.expired():
            now = asyncio.get_running_loop().time()
            timer.reschedule(None if self._holding.why is not None else now + limit)

    def _look_whether_idle(self) -> None:
        if not self._awaited or self._holding.why is not None:
            self._idle.set()
        else:
            self._idle.clear()
