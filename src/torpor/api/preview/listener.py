"""The port of previews: its connections, from the first byte to their end."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

from torpor.api.connections import most_strangers
from torpor.api.preview.admission import Admission
from torpor.api.preview.http1 import HEAD_SECONDS, PIECE, Http1Connection
from torpor.api.preview.inbound import Peer
from torpor.api.preview.links import Links
from torpor.api.preview.passing import Passing
from torpor.api.preview.serving import Serving
from torpor.api.preview.upstream import Upstreams
from torpor.api.wiring import Parts

if TYPE_CHECKING:
    from torpor.api.preview.http2 import Http2Connection

log = logging.getLogger("torpor.preview")

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a connection in HTTP/2 begins with (RFC 9113, 3.4)."""
Connection: TypeAlias = "Http1Connection | Http2Connection"


class Listener:
    """Accepts connections and serves them. Connections on which nobody was admitted yet are
    bounded: with one more, the oldest is closed."""

    def __init__(self, serving: Serving, strangers: int) -> None:
        self._serving = serving
        self._most = strangers
        self._connections: dict[asyncio.Task[None], Connection | None] = {}
        self._strangers: dict[asyncio.Task[None], None] = {}
        self._names: WeakKeyDictionary[ssl.SSLObject, str] = WeakKeyDictionary()
        self._closing = False

    async def accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        task = asyncio.current_task()
        assert task is not None
        if self._closing:
            writer.transport.abort()
            return
        if len(self._strangers) >= self._most:
            oldest = next(iter(self._strangers))
            self._strangers.pop(oldest)
            oldest.cancel()
        self._strangers[task] = None
        self._connections[task] = None
        try:
            await self._serve(task, reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()  # the server stops, or makes room
        except OSError:
            pass  # it has gone, or said nothing in time
        except Exception:
            log.exception("a connection to a preview failed")
        finally:
            self._strangers.pop(task, None)
            del self._connections[task]
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                async with asyncio.timeout(HEAD_SECONDS):
                    await writer.wait_closed()

    async def _serve(
        self,
        task: "asyncio.Task[None]",
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        address = (writer.get_extra_info("peername") or ("",))[0]
        tls = writer.get_extra_info("ssl_object")
        name = None if tls is None else self._names.get(tls)

        def known() -> None:
            self._strangers.pop(task, None)

        peer = Peer(address, name, known)
        if tls is None:
            begun = await _first_bytes(reader)
            newer = begun == PREFACE
        else:
            begun = b""
            newer = tls.selected_alpn_protocol() == "h2"
        connection: Connection
        if newer:
            from torpor.api.preview.http2 import Http2Connection  # few need it, none to start

            connection = Http2Connection(reader, writer, peer, begun)
        else:
            connection = Http1Connection(reader, writer, peer, begun)
        self._connections[task] = connection
        await connection.run(self._serving.serve, self._serving.refuse)

    def named(self, context: ssl.SSLContext) -> ssl.SSLContext:
        """Have a context remember for which name each connection is made; return it."""

        def note(tls: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
            if name is not None:
                self._names[tls] = name

        context.sni_callback = note
        return context

    async def close(self, seconds: float, hurried: asyncio.Event) -> None:
        """End all connections: those on which nothing is asked at once, the others in so many
        seconds, or as soon as it is ``hurried``."""
        self._closing = True
        for task, connection in list(self._connections.items()):
            if connection is None or connection.idle:
                task.cancel()
            else:
                connection.stop()
        left = set(self._connections)
        if left:
            hurry = asyncio.ensure_future(hurried.wait())
            ending = asyncio.ensure_future(asyncio.wait(left, timeout=seconds))
            await asyncio.wait({hurry, ending}, return_when=asyncio.FIRST_COMPLETED)
            for each in (hurry, ending, *left):
                each.cancel()
            await asyncio.gather(hurry, ending, *left, return_exceptions=True)


async def _first_bytes(reader: asyncio.StreamReader) -> bytes:
    """Return the preface of HTTP/2, or the first bytes that are not of it. Raises TimeoutError."""
    begun = b""
    async with asyncio.timeout(HEAD_SECONDS):
        while begun != PREFACE and PREFACE.startswith(begun):
            more = await reader.read(len(PREFACE) - len(begun))
            if not more:
                break
            begun += more
    return begun


@asynccontextmanager
async def serving_previews(
    listener: socket.socket,
    parts: Parts,
    *,
    context: ssl.SSLContext | None = None,
    grace: float,
    hurried: asyncio.Event,
) -> AsyncIterator[None]:
    """Serve previews on a socket while the block lasts, or until the server is about to stop.
    ``context`` is that of TLS, if it is spoken; ``grace`` and ``hurried`` as in
    :meth:`Listener.close`."""
    assert parts.previews is not None
    sessions, upstreams = parts.sessions, Upstreams(parts.sessions.ports)
    links = Links(parts.signer, sessions.previews, parts.bearers)
    admission = Admission(parts.previews, parts.bearers, links)
    passing = Passing(sessions.ports, upstreams, parts.closing)
    serving = Serving(parts.previews, admission, parts.bearers, sessions, passing, parts.metrics)
    accepting = Listener(serving, most_strangers())
    server = await asyncio.start_server(
        accepting.accepted,
        sock=listener,
        limit=PIECE,
        ssl=None if context is None else accepting.named(context),
        ssl_handshake_timeout=None if context is None else HEAD_SECONDS,
    )

    async def stop() -> None:
        await parts.closing.wait()
        server.close()
        await accepting.close(grace, hurried)

    log.info("previews are at %s", parts.previews.origin)
    stopping = asyncio.create_task(stop(), name="end of previews")
    try:
        yield
    finally:
        parts.closing.set()
        await stopping
        upstreams.close()
