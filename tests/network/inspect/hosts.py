"""Hosts that requests of the tests go to: real servers, with TLS."""

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h11

from tests.certificates import Authority


def server_context(authority: Authority, name: str, *protocols: str) -> ssl.SSLContext:
    """Return what a host called ``name`` serves with."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate, key = authority.vouch(name, called=name)
    context.load_cert_chain(certificate, key)
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context


@dataclass
class Asked:
    """A request as a host got it."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes = b""
    trailers: list[tuple[str, str]] = field(default_factory=list)

    def all(self, name: str) -> list[str]:
        return [value for each, value in self.headers if each == name]


class Exchange:
    """One request at a host of HTTP/1.1, and how it is answered."""

    def __init__(
        self, asked: Asked, conn: h11.Connection, reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:  # fmt: skip
        self.asked, self.conn, self.reader, self.writer = asked, conn, reader, writer

    async def send(self, event: Any) -> None:
        self.writer.write(self.conn.send(event) or b"")
        await self.writer.drain()

    async def start(self, status: int = 200, **headers: str) -> None:
        pairs = [(name.replace("_", "-"), value) for name, value in headers.items()]
        await self.send(h11.Response(status_code=status, headers=pairs))

    async def data(self, data: bytes) -> None:
        await self.send(h11.Data(data=data))

    async def end(self, **trailers: str) -> None:
        await self.send(h11.EndOfMessage(headers=list(trailers.items())))

    async def event(self) -> Any:
        while (event := self.conn.next_event()) is h11.NEED_DATA:
            self.conn.receive_data(await self.reader.read(1 << 16))
        return event

    async def body(self) -> bytes:
        body = b""
        while isinstance(event := await self.event(), h11.Data):
            body += event.data
        assert isinstance(event, h11.EndOfMessage)
        self.asked.trailers = [(a.decode(), b.decode()) for a, b in event.headers]
        self.asked.body = body
        return body


Handler = Callable[[Exchange], Awaitable[None]]


async def tell(exchange: Exchange) -> None:
    """Answer with what was asked, as JSON."""
    asked = exchange.asked
    await exchange.body()
    said = {
        "method": asked.method, "target": asked.target, "headers": asked.headers,
        "body": asked.body.decode("latin-1"), "trailers": asked.trailers,
    }  # fmt: skip
    body = json.dumps(said).encode()
    await exchange.start(content_length=str(len(body)))
    await exchange.data(body)
    await exchange.end()


class Host1:
    """A host of HTTP/1.1. ``asked`` is all it was asked, ``connections`` how often it was
    connected to."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.asked: list[Asked] = []
        self.connections = 0
        self.port = 0
        self.ended: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            conn = h11.Connection(h11.SERVER)
            while True:
                exchange = Exchange(Asked("", "", []), conn, reader, writer)
                event = await exchange.event()
                if not isinstance(event, h11.Request):
                    return
                exchange.asked.method = event.method.decode()
                exchange.asked.target = event.target.decode("latin-1")
                exchange.asked.headers = [
                    (a.decode(), b.decode("latin-1")) for a, b in event.headers
                ]
                self.asked.append(exchange.asked)
                await self.handler(exchange)
                if {conn.our_state, conn.their_state} != {h11.DONE}:
                    return
                conn.start_next_cycle()
        except (OSError, h11.ProtocolError) as error:
            self.ended.append(repr(error))
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@asynccontextmanager
async def host1(context: ssl.SSLContext, handler: Handler = tell) -> AsyncIterator[Host1]:
    """A host of HTTP/1.1 while the block runs."""
    host = Host1(handler)
    server = await asyncio.start_server(host.serve, "127.0.0.1", 0, ssl=context)
    host.port = server.sockets[0].getsockname()[1]
    try:
        yield host
    finally:
        server.close()
        await asyncio.sleep(0)


class Talk2:
    """One connection of HTTP/2, from either end. What is sent waits for windows."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, client: bool
    ) -> None:
        self.reader, self.writer = reader, writer
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=client, header_encoding="latin-1")
        )
        self.events: list[h2.events.Event] = []
        self.acknowledges = True
        self.ended = False

    async def begin(self) -> None:
        self.h2.initiate_connection()
        await self.flush()

    async def flush(self) -> None:
        self.writer.write(self.h2.data_to_send())
        await self.writer.drain()

    async def take(self) -> None:
        """Take in what comes next."""
        data = await self.reader.read(1 << 16)
        if not data:
            self.ended = True
            return
        for event in self.h2.receive_data(data):
            self.events.append(event)
            if self.acknowledges and isinstance(event, h2.events.DataReceived):
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        await self.flush()

    async def until(self, kind: Any, stream: int | None = None) -> Any:
        """Return the next event of a kind (of a stream)."""
        async with asyncio.timeout(20):
            while True:
                for at, event in enumerate(self.events):
                    if isinstance(event, kind) and stream in (
                        None, getattr(event, "stream_id", None)
                    ):  # fmt: skip
                        return self.events.pop(at)
                if self.ended:
                    raise ConnectionError(f"it ended before {kind}: {self.events}")
                await self.take()

    async def request(
        self, stream: int, *rest: tuple[str, str], method: str = "GET", path: str = "/",
        authority: str = "api.example.test", end: bool = True,
    ) -> None:  # fmt: skip
        head = [
            (":method", method),
            (":scheme", "https"),
            (":authority", authority),
            (":path", path),
        ]
        self.h2.send_headers(stream, [*head, *rest], end_stream=end)
        await self.flush()

    async def data(self, stream: int, data: bytes, *, end: bool = False) -> None:
        """Send data as the windows allow."""
        while data:
            room = min(
                self.h2.local_flow_control_window(stream),
                self.h2.max_outbound_frame_size,
                len(data),
            )
            if room <= 0:
                await self.take()
                continue
            self.h2.send_data(stream, data[:room], end_stream=end and room == len(data))
            data = data[room:]
            await self.flush()

    async def answer(self, stream: int) -> tuple[dict[str, str], bytes, dict[str, str]]:
        """Return headers, body and trailers of an answer."""
        head = dict((await self.until(h2.events.ResponseReceived, stream)).headers)
        await self.until(h2.events.StreamEnded, stream)
        body, trailers = b"", {}
        for event in list(self.events):
            if getattr(event, "stream_id", None) != stream:
                continue
            if isinstance(event, h2.events.DataReceived):
                body += event.data
            if isinstance(event, h2.events.TrailersReceived):
                trailers = dict(event.headers)
            self.events.remove(event)
        return head, body, trailers


Handler2 = Callable[[Talk2], Awaitable[None]]


@asynccontextmanager
async def host2(context: ssl.SSLContext, handler: Handler2) -> AsyncIterator[int]:
    """A host of HTTP/2 while the block runs: its port."""
    failed: list[BaseException] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = Talk2(reader, writer, client=False)
        try:
            await talk.begin()
            await handler(talk)
        except (ConnectionError, h2.exceptions.ProtocolError):
            pass  # it has ended
        except BaseException as error:
            failed.append(error)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.sleep(0)
    assert not failed, failed


async def tell2(talk: Talk2) -> None:
    """Answer each stream with what was asked, as JSON."""
    bodies: dict[int, tuple[list[Any], bytearray]] = {}
    while not talk.ended:
        while talk.events:
            event = talk.events.pop(0)
            number = getattr(event, "stream_id", 0)
            if isinstance(event, h2.events.RequestReceived):
                bodies[number] = (list(event.headers), bytearray())
            elif number not in bodies:
                continue  # a stream that was reset before
            elif isinstance(event, h2.events.DataReceived):
                bodies[number][1].extend(event.data)
            elif isinstance(event, h2.events.StreamReset):
                del bodies[number]
            elif isinstance(event, h2.events.StreamEnded):
                headers, body = bodies.pop(number)
                said = {"headers": headers, "body": body.decode("latin-1")}
                talk.h2.send_headers(number, [(":status", "200"), ("x-from", "host")])
                await talk.data(number, json.dumps(said).encode(), end=True)
        await talk.take()


async def connect(port: int) -> socket.socket:
    """Return a socket that is connected to a port of this computer."""
    sock = socket.socket()
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    except OSError:
        sock.close()
        raise
    return sock
