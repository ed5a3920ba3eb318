"""What the wall serves itself: names that a machine reaches over its own link, for its own session.

Who calls is known by the wire that the call came over. A handler is told the session by the wall;
nothing that the machine says can make it another.
"""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import h11

from torpor.network.flow import Flow
from torpor.network.readiness import readable
from torpor.network.relay import end_down, send_down
from torpor.network.verdicts import Destination

PORT = 80
"""In the clear: nobody is between a machine and its wall."""
LARGEST_HEAD = 64 << 10
PIECE = 64 << 10

Pairs = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True)
class Call:
    """A request to a service: of which ``session``, to which ``service`` (the first word of its
    name). Names of headers are in small letters; ``body`` yields what comes, as it comes."""

    session: str
    service: str
    method: str
    target: str
    headers: Pairs
    body: AsyncIterator[bytes]


@dataclass(frozen=True)
class Reply:
    """The answer: its ``body`` is all of it, or yields pieces that are passed on one by one."""

    status: int = 200
    headers: Pairs = ()
    body: bytes | AsyncIterator[bytes] = b""


Handler = Callable[[Call], Awaitable[Reply]]


async def health(call: Call) -> Reply:
    """Answer what a service does that is not there yet: that the wall is, and whose it is."""
    async for _ in call.body:
        pass
    if call.target.partition("?")[0] not in ("/", "/health"):
        return _text(404, f"There is nothing at {call.target} yet.")
    if call.method not in ("GET", "HEAD"):
        return _text(405, f"{call.method} is nothing that can be done here.")
    page = {"service": call.service, "session": call.session, "status": "ok"}
    kind = (b"content-type", b"application/json")
    return Reply(200, (kind,), json.dumps(page).encode() + b"\n")


def _text(status: int, text: str) -> Reply:
    return Reply(status, ((b"content-type", b"text/plain; charset=utf-8"),), text.encode() + b"\n")


@dataclass(frozen=True)
class Services:
    """The services of one session: handlers by their names on the link."""

    session: str
    handlers: Mapping[str, Handler] = field(
        default_factory=lambda: {
            "gateway.torpor.internal": health,
            "models.torpor.internal": health,
        }
    )

    def knows(self, to: Destination) -> bool:
        """Say whether a destination is one of these, at whatever port."""
        return to.name in self.handlers

    def serves(self, to: Destination) -> bool:
        """Say whether one is served there."""
        return self.knows(to) and to.port == PORT and to.transport == "tcp"

    async def serve(self, machine: socket.socket, to: Destination, flow: Flow) -> None:
        """Answer what is asked on a connection, to its end. Raises OSError if it is reset."""
        assert to.name is not None, "services are reached by name"
        handler = self.handlers[to.name]
        service = to.name.partition(".")[0]
        flow.spoken, flow.said = "http", to.name
        # A head that cannot be read is answered as well, by a connection that ends.
        with contextlib.suppress(h11.RemoteProtocolError):
            serving = _Serving(machine, flow)
            while await serving.one(self.session, service, handler):
                pass
        await end_down(machine, flow)


class _Serving:
    """One connection to a service."""

    def __init__(self, machine: socket.socket, flow: Flow) -> None:
        self._machine = machine
        self._flow = flow
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=LARGEST_HEAD)

    async def one(self, session: str, service: str, handler: Handler) -> bool:
        """Answer one request; return whether there may be another."""
        event = await self._event()
        if not isinstance(event, h11.Request):
            return False
        call = Call(
            session,
            service,
            event.method.decode("ascii"),
            event.target.decode("ascii", "replace"),
            tuple((bytes(name), bytes(value)) for name, value in event.headers),
            self._body(),
        )
        try:
            reply = await handler(call)
        except Exception as error:
            # A handler's fault is the handler's: the machine is told that there is one.
            _report(error)
            reply = _text(500, "The service failed.")
        await self._answer(reply)
        if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            self._flow.unread = True
            return False
        self._h11.start_next_cycle()
        return True

    async def _event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while (event := self._h11.next_event()) is h11.NEED_DATA:
            if self._h11.they_are_waiting_for_100_continue:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            try:
                data = self._machine.recv(PIECE)
            except BlockingIOError:
                await readable(self._machine)
                continue
            self._flow.sent(len(data))
            self._h11.receive_data(data)
        return event

    async def _body(self) -> AsyncIterator[bytes]:
        while isinstance(event := await self._event(), h11.Data):
            yield bytes(event.data)

    async def _answer(self, reply: Reply) -> None:
        headers = list(reply.headers)
        if isinstance(reply.body, bytes):
            headers.append((b"content-length", b"%d" % len(reply.body)))
        await self._send(h11.Response(status_code=reply.status, headers=headers))
        if isinstance(reply.body, bytes):
            await self._send(h11.Data(data=reply.body))
        else:
            async for piece in reply.body:
                await self._send(h11.Data(data=piece))
        await self._send(h11.EndOfMessage())

    async def _send(self, event: h11.Event) -> None:
        data = self._h11.send(event)
        if data:
            self._flow.received(len(data))
            await send_down(self._machine, data, self._flow)


def _report(error: Exception) -> None:
    asyncio.get_running_loop().call_exception_handler(
        {"message": "A service of the wall failed.", "exception": error}
    )
