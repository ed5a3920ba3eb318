"""What comes in as HTTP/1.1: one request after the other, each with a parser of its own."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable

import h11

from torpor.api.preview.headers import Pairs
from torpor.api.preview.inbound import BadBodyError, GoneError, Inbound, Peer
from torpor.network.heads import LARGEST, Head, HeadError, judge, whole

HEAD_SECONDS = 15.0
"""How long the head of a request may take from its first byte on, and the first one from none."""
IDLE_SECONDS = 75.0
"""How long a connection may be idle between two requests."""
LINGER_SECONDS, LINGER_BYTES = 2.0, 1 << 20
"""How much is still taken of a body that nobody reads, so that its sender gets the answer."""
PIECE = 64 << 10

Serve = Callable[[Inbound], Awaitable[None]]
Refuse = Callable[[Inbound, HeadError], Awaitable[None]]


class Http1Connection:
    """One connection, from its first byte to its end. ``begun`` is what was read of it already."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer: Peer,
        begun: bytes = b"",
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.peer = peer
        self.pending = begun
        """What was read and belongs to no request yet."""
        self.idle = True
        """Whether no request is under way."""
        self._stopping = False

    def stop(self) -> None:
        """Take no more requests after the one that is under way."""
        self._stopping = True

    async def run(self, serve: Serve, refuse: Refuse) -> None:
        """Serve requests, until one of both ends has enough."""
        first = True
        while True:
            self.idle = True
            try:
                found = await self._head(first=first)
            except HeadError as error:
                self.idle = False
                exchange = Http1Exchange(self, unread())
                await refuse(exchange, error)
                await self._linger()
                return
            if found is None:
                return
            self.idle = first = False
            head, raw = found
            exchange = Http1Exchange(self, head)
            try:
                exchange.open(raw)
            except h11.RemoteProtocolError as error:
                await refuse(exchange, HeadError(400, str(error)))
                await self._linger()
                return
            await serve(exchange)
            if not exchange.finish() or self._stopping:
                if not exchange.aborted:
                    await self._linger()
                return

    async def _head(self, *, first: bool) -> tuple[Head, bytes] | None:
        """Return the next head, judged, and as it came; None if there is none any more."""
        try:
            if not self.pending:
                async with asyncio.timeout(HEAD_SECONDS if first else IDLE_SECONDS):
                    self.pending = await self.more()
            async with asyncio.timeout(HEAD_SECONDS):
                looked = 0
                while self.pending:
                    end = whole(self.pending, looked)
                    looked = len(self.pending)
                    if end is not None:
                        raw, self.pending = self.pending[:end], self.pending[end:]
                        return judge(raw), raw
                    more = await self.more()
                    if not more:
                        return None
                    self.pending += more
        except TimeoutError:
            pass
        return None

    async def more(self) -> bytes:
        """Return what comes next, nothing when the client has gone."""
        try:
            return await self.reader.read(PIECE)
        except OSError:
            return b""

    async def _linger(self) -> None:
        """Have whoever sends more than was read get what was answered, and no reset."""
        with contextlib.suppress(OSError, TimeoutError, RuntimeError):
            await self.writer.drain()
            if self.writer.can_write_eof():
                self.writer.write_eof()
            async with asyncio.timeout(LINGER_SECONDS):
                left = LINGER_BYTES
                while left > 0 and (data := await self.reader.read(PIECE)):
                    left -= len(data)


def unread() -> Head:
    """Return the head of a request whose own could not be read."""
    return Head("GET", "/", "", (), 0)


class Http1Exchange(Inbound):
    """One request on a connection, and its answer."""

    def __init__(self, connection: Http1Connection, head: Head) -> None:
        super().__init__(head, connection.peer)
        self._connection = connection
        self._whole = False
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=2 * LARGEST)

    def open(self, raw: bytes) -> None:
        """Take the head as it came. Raises :exc:`h11.RemoteProtocolError`."""
        self._h11.receive_data(raw)
        event = self._h11.next_event()
        if not isinstance(event, h11.Request):
            raise h11.RemoteProtocolError("the head is none of a request")
        if self.head.length != 0 and self._connection.pending:  # to h11 nothing is the end
            self._h11.receive_data(self._connection.pending)
            self._connection.pending = b""

    async def receive(self) -> bytes:
        """See :meth:`Inbound.receive`."""
        while not self._whole:
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                raise BadBodyError(str(error)) from error
            if event is h11.NEED_DATA:
                data = await self._connection.more()
                if not data:
                    raise GoneError
                self._h11.receive_data(data)
            elif isinstance(event, h11.Data):
                return bytes(event.data)
            else:
                self._whole = True
                self._connection.pending += bytes(self._h11.trailing_data[0])
        return b""

    async def gone(self) -> None:
        """See :meth:`Inbound.gone`."""
        while len(self._connection.pending) < LARGEST:
            data = await self._connection.more()
            if not data:
                return
            self._connection.pending += data
        await asyncio.Event().wait()  # it has sent a good deal ahead, and is still there

    async def inform(self, status: int, headers: Pairs) -> None:
        """See :meth:`Inbound.inform`."""
        if self.head.version == 1:
            await self._send(h11.InformationalResponse(status_code=status, headers=headers))

    async def switch(self, headers: Pairs) -> None:
        """See :meth:`Inbound.switch`."""
        self.status = 101
        await self._send(h11.InformationalResponse(status_code=101, headers=headers))

    async def start(self, status: int, headers: Pairs, reason: bytes = b"") -> None:
        """See :meth:`Inbound.start`."""
        self.status = status
        if not self._whole and self.head.length != 0:
            headers = [*headers, (b"connection", b"close")]
        await self._send(h11.Response(status_code=status, headers=headers, reason=reason))

    async def send(self, data: bytes) -> None:
        """See :meth:`Inbound.send`."""
        await self._send(h11.Data(data=data))

    async def end(self, trailers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """See :meth:`Inbound.end`."""
        await self._send(h11.EndOfMessage(headers=list(trailers)))

    async def _send(self, event: h11.Event) -> None:
        data = self._h11.send(event)
        if data:
            await self.write(data)

    def abort(self) -> None:
        """See :meth:`Inbound.abort`."""
        self.aborted = True
        self._connection.writer.transport.abort()

    async def read(self) -> bytes:
        """See :meth:`Inbound.read`."""
        if self._connection.pending:
            data, self._connection.pending = self._connection.pending, b""
            return data
        return await self._connection.more()

    async def write(self, data: bytes) -> None:
        """See :meth:`Inbound.write`."""
        try:
            self._connection.writer.write(data)
            await self._connection.writer.drain()
        except OSError as error:
            raise GoneError from error

    def finish(self) -> bool:
        """Return whether there may be another request on this connection."""
        if self.aborted or self._h11.our_state is not h11.DONE:
            return False
        if self._h11.their_state is h11.SEND_BODY and self.head.length == 0:
            self._h11.next_event()  # the end of a body that there is none of
        return self._h11.their_state is h11.DONE
