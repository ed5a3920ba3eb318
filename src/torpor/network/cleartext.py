"""HTTP in the clear: requests of a machine to one destination, each of which is judged."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable

from torpor.network.answers import Answer, denial
from torpor.network.flow import Flow
from torpor.network.heads import Head, HeadError
from torpor.network.readiness import in_order
from torpor.network.relay import (
    NoMoreError,
    carry_down,
    end_down,
    end_up,
    relay,
    send_down,
    send_up,
)
from torpor.network.requests import (
    BodyError,
    Requests,
    host_of,
    switched,
    upgrade_of,
    written,
)
from torpor.network.verdicts import Destination, Verdict

LAST_SECONDS = 2.0
"""How long answers to earlier requests may take when the connection is to end after them."""

Dial = Callable[[], Awaitable[socket.socket]]
Ask = Callable[[Destination, str], Verdict]
"""Says whether a request that says a host may go to a destination."""


class RefusedError(Exception):
    """A request is not passed on: ``answer`` is what the machine is told."""

    def __init__(self, answer: Answer, verdict: Verdict | None = None) -> None:
        super().__init__(answer.text)
        self.answer = answer
        self.verdict = verdict


class Cleartext:
    """The requests on one connection, and their answers."""

    def __init__(self, machine: socket.socket, to: Destination, flow: Flow, ask: Ask) -> None:
        self._machine = machine
        self._to = to
        self._flow = flow
        self._ask = ask
        self._requests = Requests(machine)
        self._last_word = b""
        self._more_to_come = False

    async def first(self) -> Head | None:
        """Return the first request, None if there is none. Raises :exc:`RefusedError`."""
        return await self._next(first=True)

    async def serve(self, head: Head | None, dial: Dial) -> None:
        """Pass requests on, from ``head`` to the last. Raises OSError if an end was reset, and what
        ``dial`` raises."""
        while head is not None:
            with in_order(await dial()) as upstream:
                head = await self._on_one(head, upstream)

    async def _on_one(self, head: Head, upstream: socket.socket) -> Head | None:
        """Pass requests on over one connection. Returns the one that must have another."""
        if upgrade_of(head) is not None:
            await self._pass(head, upstream)
            if await switched(upstream, self._machine, self._flow):
                await self._requests.rest(upstream, self._flow)
                await relay(self._machine, upstream, self._flow)
                return None
            upcoming = await self._judged()
        else:
            upcoming = head
        self._more_to_come = False
        async with asyncio.TaskGroup() as tasks:
            answers = tasks.create_task(self._answers(upstream))
            try:
                while upcoming is not None and upgrade_of(upcoming) is None:
                    await self._pass(upcoming, upstream)
                    upcoming = await self._judged()
            except NoMoreError:
                self._flow.unread = True
                return None
            end_up(upstream, self._flow)
            if upcoming is not None or self._last_word:
                self._more_to_come = upcoming is not None
                await _ended(answers, upstream)
        return upcoming

    async def _pass(self, head: Head, upstream: socket.socket) -> None:
        data = written(head)
        self._flow.sent(len(data))
        await send_up(upstream, data)
        try:
            await self._requests.body(head, upstream, self._flow)
        except BodyError as error:
            # Half of it has gone on. Cut off, nobody takes it for a whole one.
            raise ConnectionAbortedError(str(error)) from error

    async def _judged(self) -> Head | None:
        """Return the next request that may go on; of one that may not, note what is to be said."""
        try:
            return await self._next(first=False)
        except RefusedError as error:
            self._last_word = error.answer.encoded()
            if error.verdict is not None:
                self._flow.deny(error.verdict)
            self._flow.unread = True
            return None

    async def _next(self, *, first: bool) -> Head | None:
        try:
            head = await self._requests.head()
        except HeadError as error:
            text = f"Torpor passes no request on that can be read in two ways: {error}."
            raise RefusedError(Answer(error.status, text)) from error
        if head is None:
            return None
        host, port = host_of(head)
        if port not in (None, self._to.port):
            other = Verdict(False, "", f"the request says port {port} on port {self._to.port}")
            raise RefusedError(denial(self._to, other, 421), other)
        verdict = self._ask(self._to, host)
        if not verdict.allowed:
            elsewhere = not first or (self._to.name is not None and host != self._to.name)
            status = 421 if elsewhere else 403
            raise RefusedError(denial(self._to, verdict, status), verdict)
        self._flow.said = host
        return head

    async def _answers(self, upstream: socket.socket) -> None:
        """Carry answers to their end, and then say the last word, if there is one."""
        await carry_down(upstream, self._machine, self._flow)
        if self._last_word:
            await send_down(self._machine, self._last_word, self._flow)
        if not self._more_to_come:
            await end_down(self._machine, self._flow)


async def _ended(answers: "asyncio.Task[None]", upstream: socket.socket) -> None:
    """Wait until answers have ended; whoever keeps a connection for more requests has enough
    time to see that there are none."""
    await asyncio.wait((answers,), timeout=LAST_SECONDS)
    if not answers.done():
        with contextlib.suppress(OSError):
            upstream.shutdown(socket.SHUT_RD)
    await asyncio.wait((answers,))
