"""What comes in as HTTP/2: many requests side by side on one connection (RFC 9113)."""

import asyncio
import base64
import contextlib
import hashlib
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import H2Error, NoSuchStreamError, StreamClosedError
from h2.settings import SettingCodes, Settings

from torpor.api.preview.headers import Pairs
from torpor.api.preview.heads2 import head_of
from torpor.api.preview.http1 import HEAD_SECONDS, IDLE_SECONDS, PIECE, Refuse, Serve, unread
from torpor.api.preview.inbound import GoneError, Inbound, Peer
from torpor.network.heads import LARGEST, Head, HeadError

WINDOW = 1 << 20
"""Bytes of bodies that may be under way, of one request and of all of a connection."""
MOST_STREAMS = 100
MOST_RESETS, RESETS_SECONDS = 100, 10.0
"""Requests that a client may take back in so many seconds, and stay connected."""
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""What a server of WebSockets puts behind the key (RFC 6455)."""


class Http2Connection:
    """One connection, from its preface to its end. ``begun`` is what was read of it already."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer: Peer,
        begun: bytes = b"",
    ) -> None:
        self.peer = peer
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        # Changed later, they would be told later, and be in force here before that.
        self.h2.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: MOST_STREAMS,
                SettingCodes.INITIAL_WINDOW_SIZE: WINDOW,
                SettingCodes.MAX_HEADER_LIST_SIZE: LARGEST,
                SettingCodes.ENABLE_CONNECT_PROTOCOL: 1,
            },
        )
        self._reader = reader
        self._writer = writer
        self._begun = begun
        self._streams: dict[int, Http2Exchange] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()
        self._resets: deque[float] = deque(maxlen=MOST_RESETS)
        self._stopping = False
        self._asked = False

    @property
    def idle(self) -> bool:
        """Whether no request is under way."""
        return not self._tasks

    def stop(self) -> None:
        """Take no more requests, and end with the last of those that are under way."""
        self._stopping = True

    async def run(self, serve: Serve, refuse: Refuse) -> None:
        """Serve requests, until one of both ends has enough."""
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(WINDOW)
        try:
            await self.flush()
            while data := await self._more():
                for event in self.h2.receive_data(data):
                    if isinstance(event, ConnectionTerminated):
                        return
                    self._take(event, serve, refuse)
                await self.flush()
        except H2Error:
            with contextlib.suppress(GoneError):
                await self.flush()  # with the reason
        except GoneError:
            pass
        finally:
            for stream in list(self._streams.values()):
                stream.lose()
            self._room.set()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _more(self) -> bytes:
        """Return what comes next, nothing when the client has gone, or is idle for too long."""
        if self._begun:
            data, self._begun = self._begun, b""
            return data
        while True:
            limit = IDLE_SECONDS if self._asked else HEAD_SECONDS
            try:
                async with asyncio.timeout(limit):
                    return await self._reader.read(PIECE)
            except TimeoutError:
                if self.idle:
                    return b""
            except OSError:
                return b""

    def _take(self, event: Event, serve: Serve, refuse: Refuse) -> None:
        stream = self._streams.get(getattr(event, "stream_id", None) or 0)
        if isinstance(event, RequestReceived):
            self._begin(event, serve, refuse)
        elif isinstance(event, DataReceived):
            size = event.flow_controlled_length or 0
            if stream is None:
                self.h2.acknowledge_received_data(size, event.stream_id)
            else:
                stream.came(bytes(event.data or b""), size)
        elif isinstance(event, StreamEnded) and stream is not None:
            stream.ended()
        elif isinstance(event, StreamReset):
            if stream is not None:
                stream.lose()
            self._resets.append(time.monotonic())
            if (
                len(self._resets) == MOST_RESETS
                and self._resets[-1] - self._resets[0] < RESETS_SECONDS
            ):
                self.h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
                raise H2Error("too many requests are taken back")
        elif isinstance(event, WindowUpdated | RemoteSettingsChanged):
            self._room.set()
            self._room = asyncio.Event()

    def _begin(self, event: RequestReceived, serve: Serve, refuse: Refuse) -> None:
        number = event.stream_id
        assert number is not None
        if self._stopping or len(self._tasks) >= MOST_STREAMS:
            self.h2.reset_stream(number, ErrorCodes.REFUSED_STREAM)
            return
        self._asked = True
        whole = event.stream_ended is not None
        problem: HeadError | None = None
        try:
            head, tunnel = head_of(list(event.headers or ()), whole=whole)
        except HeadError as error:
            head, tunnel, problem = unread(), None, error
        exchange = Http2Exchange(self, number, head, tunnel)
        self._streams[number] = exchange
        task = asyncio.create_task(self._serve(exchange, problem, serve, refuse))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(
        self, exchange: "Http2Exchange", problem: HeadError | None, serve: Serve, refuse: Refuse
    ) -> None:
        try:
            if problem is None:
                await serve(exchange)
            else:
                await refuse(exchange, problem)
        finally:
            self._streams.pop(exchange.number, None)
            exchange.leave()
            with contextlib.suppress(GoneError):
                await self.flush()
            if self._stopping and len(self._tasks) == 1:
                self._writer.close()  # it was the last one, and ends here

    async def flush(self) -> None:
        """Send what there is to be sent. Raises :exc:`GoneError`."""
        data = self.h2.data_to_send()
        try:
            if data:
                self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise GoneError from error

    def send_now(self) -> None:
        """Send it without waiting for its way to be free."""
        self._writer.write(self.h2.data_to_send())

    async def room(self) -> None:
        """Wait for news of how much the client takes."""
        await self._room.wait()


class Http2Exchange(Inbound):
    """One request on a connection, and its answer. ``key`` is that of a WebSocket, for which
    HTTP/1.1 has one and HTTP/2 has none (RFC 8441)."""

    def __init__(
        self, connection: Http2Connection, number: int, head: Head, key: bytes | None
    ) -> None:
        super().__init__(head, connection.peer)
        self.number = number
        self._connection = connection
        self._key = key
        self._pieces: deque[tuple[bytes, int]] = deque()
        self._ended = False
        self._lost = asyncio.Event()
        self._news = asyncio.Event()
        self._done = False

    # What comes in

    def came(self, data: bytes, size: int) -> None:
        """Take in a piece of the body, which counts as so many bytes."""
        self._pieces.append((data, size))
        self._news.set()

    def ended(self) -> None:
        """Take in that there is no more."""
        self._ended = True
        self._news.set()

    def lose(self) -> None:
        """Take in that the client has gone, or has taken the request back."""
        self._lost.set()
        self._news.set()

    async def receive(self) -> bytes:
        """See :meth:`Inbound.receive`."""
        return b"" if self._key is not None else await self._next()

    async def read(self) -> bytes:
        """See :meth:`Inbound.read`."""
        return await self._next()

    async def _next(self) -> bytes:
        while True:
            if self._lost.is_set():
                raise GoneError
            if self._pieces:
                data, size = self._pieces.popleft()
                self._acknowledge(size)
                await self._connection.flush()
                if data:
                    return data
            elif self._ended:
                return b""
            else:
                self._news.clear()
                await self._news.wait()

    async def gone(self) -> None:
        """See :meth:`Inbound.gone`."""
        await self._lost.wait()

    # What goes out

    async def inform(self, status: int, headers: Pairs) -> None:
        """See :meth:`Inbound.inform`."""
        await self._head(status, headers, end=False)

    async def switch(self, headers: Pairs) -> None:
        """See :meth:`Inbound.switch`. The client hears 200, and nothing of the key."""
        own = (b"connection", b"upgrade", b"sec-websocket-accept")
        if self._key is not None:
            accepted = [value for name, value in headers if name == b"sec-websocket-accept"]
            if accepted != [_accept(self._key)]:
                raise GoneError  # what listens there is no WebSocket
        self.status = 101
        await self._head(200, [each for each in headers if each[0] not in own], end=False)

    async def start(self, status: int, headers: Pairs, reason: bytes = b"") -> None:
        """See :meth:`Inbound.start`."""
        self.status = status
        await self._head(status, headers, end=False)

    async def _head(self, status: int, headers: Pairs, *, end: bool) -> None:
        said: list[Any] = [(b":status", str(status).encode()), *headers]
        await self._sent(lambda h2: h2.send_headers(self.number, said, end_stream=end))

    async def send(self, data: bytes) -> None:
        """See :meth:`Inbound.send`."""
        while data:
            room = self._room()
            if room <= 0:
                await self._connection.room()
                continue
            piece, data = data[:room], data[room:]
            await self._sent(lambda h2, piece=piece: h2.send_data(self.number, piece))

    def _room(self) -> int:
        """Return how many bytes the client takes now."""
        if self._lost.is_set():
            raise GoneError
        h2 = self._connection.h2
        try:
            window = h2.local_flow_control_window(self.number)
        except (NoSuchStreamError, StreamClosedError) as error:
            raise GoneError from error
        return min(window, h2.max_outbound_frame_size)

    async def end(self, trailers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """See :meth:`Inbound.end`."""
        self._done = True
        await self._sent(lambda h2: h2.end_stream(self.number))

    async def write(self, data: bytes) -> None:
        """See :meth:`Inbound.write`."""
        await self.send(data)

    async def _sent(self, send: Any) -> None:
        if self._lost.is_set():
            raise GoneError
        try:
            send(self._connection.h2)
        except H2Error as error:  # it was taken back
            raise GoneError from error
        await self._connection.flush()

    def abort(self) -> None:
        """See :meth:`Inbound.abort`."""
        self.aborted = True
        self._reset(ErrorCodes.INTERNAL_ERROR)

    def leave(self) -> None:
        """Forget the request, and whatever comes of it still."""
        for _, size in self._pieces:
            self._acknowledge(size)
        self._pieces.clear()
        if self.status == 101 and not self._done:
            with contextlib.suppress(H2Error):
                self._connection.h2.end_stream(self.number)
        if not self._ended and not self._lost.is_set() and not self.aborted:
            self._reset(ErrorCodes.NO_ERROR)

    def _reset(self, code: ErrorCodes) -> None:
        with contextlib.suppress(H2Error):
            self._connection.h2.reset_stream(self.number, code)
            self._connection.send_now()

    def _acknowledge(self, size: int) -> None:
        with contextlib.suppress(H2Error):
            self._connection.h2.acknowledge_received_data(size, self.number)


def _accept(key: bytes) -> bytes:
    """Return what a server of WebSockets answers to a key."""
    return base64.b64encode(hashlib.sha1(key + _MAGIC, usedforsecurity=False).digest())
