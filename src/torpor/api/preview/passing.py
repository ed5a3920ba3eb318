"""One request, passed on to a port of a session, and its answer passed back."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import h11

from torpor.api.errors import Problem, RefusedError
from torpor.api.preview.headers import Outside, Pairs, inward, outward, upgrade_of
from torpor.api.preview.inbound import GoneError, Inbound
from torpor.api.preview.upstream import BrokenAnswerError, Upstream, Upstreams
from torpor.api.streaming import first_of
from torpor.sessions import Actor, Ports
from torpor.vm import GuestError

FIRST_BYTE_SECONDS = 120.0
"""How long an answer may take to begin, once all of the request was sent."""
LAST_SECONDS = 10.0
"""How long the session may still speak on a changed connection whose client sends no more."""
AGAIN = frozenset(("GET", "HEAD", "OPTIONS"))
"""Methods of requests that may be sent a second time."""
LATE = Problem(
    504,
    "no_answer",
    "What listens on this port has not answered in time.",
    state="It was sent the request, and may still be at work on it.",
)
BROKEN = Problem(
    502,
    "broken_answer",
    "What listens on this port has not answered as HTTP/1.1 has it.",
    todo="See that it speaks HTTP, and without TLS.",
)


class Passing:
    """Passes requests on. When ``closing`` is set what is open-ended comes to its end: streams of
    events, and connections that were changed to another protocol."""

    def __init__(self, ports: Ports, upstreams: Upstreams, closing: asyncio.Event) -> None:
        self._ports = ports
        self._upstreams = upstreams
        self._closing = closing

    async def pass_on(
        self,
        inbound: Inbound,
        outside: Outside,
        by: Actor,
        shown: bytes | None,
        opened: Callable[[], Awaitable[None]],
    ) -> None:
        """Pass a request on, and its answer back. A paused session is woken. ``opened`` is called
        once there is a connection.

        Raises :exc:`GoneError`, and whatever is wrong with the request, the session or the answer:
        if :attr:`Inbound.status` is 0, nothing was answered.
        """
        head = inbound.head
        headers = inward(head.headers, outside, shown=shown)
        upgrade = upgrade_of(head.headers)
        if upgrade is not None:
            headers += [(b"connection", b"upgrade"), (b"upgrade", upgrade)]
        if head.length is None:
            headers.append((b"transfer-encoding", b"chunked"))
        elif head.length or head.method not in AGAIN:
            headers.append((b"content-length", str(head.length).encode()))
        fresh = upgrade is not None or head.length != 0 or head.method not in AGAIN
        while True:
            upstream = await self._upstreams.take(outside.session, outside.port, by, fresh=fresh)
            try:
                await opened()
                with contextlib.ExitStack() as counted:
                    counted.enter_context(self._ports.counted(outside.session))
                    one = _One(inbound, outside, upstream, counted, self._closing)
                    await one.passed(headers)
            except (BrokenAnswerError, h11.LocalProtocolError) as error:
                upstream.connection.close()
                silent = isinstance(error, BrokenAnswerError) and error.silent
                if not (upstream.used and silent) or inbound.status or fresh:
                    raise RefusedError(BROKEN) from error
                fresh = True  # it was closed while nothing went through
            except BaseException:
                upstream.connection.close()
                raise
            else:
                self._upstreams.give_back(upstream)
                return


class _One:
    """One request on one connection. ``counted`` ends when what is left open is no use."""

    def __init__(
        self,
        inbound: Inbound,
        outside: Outside,
        upstream: Upstream,
        counted: contextlib.ExitStack,
        closing: asyncio.Event,
    ) -> None:
        self._inbound = inbound
        self._outside = outside
        self._upstream = upstream
        self._counted = counted
        self._closing = closing
        self._open_ended = asyncio.Event()
        self._limit = asyncio.timeout(None)

    async def passed(self, headers: Pairs) -> None:
        """Pass it on, and its answer back."""
        head = self._inbound.head
        try:
            await self._upstream.ask(head.method, self._outside.place.target, headers)
        except GuestError as error:  # it was closed since it was last used
            raise BrokenAnswerError(str(error), silent=True) from error
        try:
            async with self._limit:
                await first_of(self._answer(), self._body(), self._stopped())
        except TimeoutError:
            if self._limit.expired() and not self._inbound.status:
                raise RefusedError(LATE) from None
            raise
        if self._inbound.status == 101:
            await first_of(self._outward(), self._inward(), self._closing.wait())

    async def _stopped(self) -> None:
        """End a stream of events when the server is about to stop."""
        await self._open_ended.wait()
        await self._closing.wait()
        raise GoneError

    async def _body(self) -> None:
        """Send the body, and then see that the client stays."""
        try:
            while data := await self._inbound.receive():
                await self._upstream.send(data)
            await self._upstream.end()
        except GuestError:
            await asyncio.Event().wait()  # it takes no more, and may still answer
        if not self._inbound.status:
            self._limit.reschedule(asyncio.get_running_loop().time() + FIRST_BYTE_SECONDS)
        await self._inbound.gone()
        raise GoneError

    async def _answer(self) -> None:
        """Pass the answer back, to its end or to a change of the protocol."""
        inbound = self._inbound
        while isinstance(event := await self._event(), h11.InformationalResponse):
            headers = outward(event.headers, self._outside)
            if event.status_code == 101:
                headers += [(name, value) for name, value in event.headers if name == b"upgrade"]
                self._limit.reschedule(None)
                self._counted.close()
                await inbound.switch([*headers, (b"connection", b"upgrade")])
                return
            await inbound.inform(event.status_code, headers)
        if not isinstance(event, h11.Response):
            raise BrokenAnswerError("a body before its head")
        self._limit.reschedule(None)
        if _is_events(event):
            self._counted.close()
            self._open_ended.set()
        headers = outward(event.headers, self._outside)
        await inbound.start(event.status_code, headers, bytes(event.reason))
        while isinstance(event := await self._event(), h11.Data):
            await inbound.send(bytes(event.data))
        await inbound.end()

    async def _event(self) -> Any:
        try:
            return await self._upstream.event()
        except GuestError as error:
            raise BrokenAnswerError(str(error)) from error

    # A connection that was changed to another protocol: bytes, both ways

    async def _outward(self) -> None:
        data = self._upstream.left or await self._upstream.connection.read()
        while data:
            await self._inbound.write(data)
            data = await self._upstream.connection.read()

    async def _inward(self) -> None:
        while data := await self._inbound.read():
            await self._upstream.connection.write(data)
        await self._upstream.connection.shut()
        await asyncio.sleep(LAST_SECONDS)


def _is_events(event: h11.Response) -> bool:
    return any(
        name == b"content-type" and value.lower().startswith(b"text/event-stream")
        for name, value in event.headers
    )
