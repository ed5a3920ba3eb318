"""One end of a TLS connection over a socket, for coroutines.

No transport owns the socket: a transport that is closed late closes whatever has got its number
meanwhile. Nothing is read ahead, and who writes waits until the kernel has taken it, so that one
side that is slow makes the other wait.
"""

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable

PIECE = 64 << 10
"""Bytes that are read at once."""
LINGER_SECONDS = 2.0
"""How long what the other side still sends is read and dropped at the end: a socket that is closed
with unread bytes takes back what it has sent last (RFC 9112, 9.6)."""


class Tls:
    """Reads and writes what is inside. It may be read and written at the same time."""

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        server_name: str | None = None,
        before_writing: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Be the server on a socket, or the client of ``server_name`` if there is one. What is
        written waits for ``before_writing``."""
        sock.setblocking(False)
        self._sock = sock
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._inside = context.wrap_bio(
            self._in, self._out, server_side=server_name is None, server_hostname=server_name
        )
        self._before_writing = before_writing
        self._sending = asyncio.Lock()
        self._ended = False
        self._cut = False

    @property
    def protocol(self) -> str | None:
        """The protocol (ALPN) that was chosen, once there was a handshake."""
        return self._inside.selected_alpn_protocol()

    async def handshake(self) -> None:
        """Greet each other. Raises :exc:`ssl.SSLError` and :exc:`OSError`."""
        while True:
            try:
                self._inside.do_handshake()
            except ssl.SSLWantReadError:
                await self._send()
                await self._receive()
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    await self._send()  # the alert that says why
                raise
            else:
                await self._send()
                return

    async def read(self) -> bytes:
        """Return some bytes; none when the other side has said that it sends no more.

        Raises :exc:`OSError`; :exc:`ssl.SSLEOFError` of them if it is gone without a word.
        """
        while True:
            try:
                piece = self._inside.read(PIECE)
            except ssl.SSLWantReadError:
                # An answer to a change of keys, for example.
                if self._out.pending:
                    await self._send()
                await self._receive()
            except ssl.SSLZeroReturnError:
                return b""
            else:
                return piece + self._more(PIECE - len(piece)) if piece else b""

    def _more(self, most: int) -> bytes:
        """Return what else is there already: a record has 16 KiB at most, and each piece that is
        handed on costs the same."""
        pieces = []
        while most > 0:
            try:
                piece = self._inside.read(most)
            except ssl.SSLError:
                break  # the next read tells what it is
            if not piece:
                break
            pieces.append(piece)
            most -= len(piece)
        return b"".join(pieces)

    async def write(self, data: bytes) -> None:
        """Write all of something. Raises :exc:`OSError`."""
        if self._before_writing is not None:
            await self._before_writing()
        async with self._sending:
            rest = memoryview(data)
            while rest:
                count = self._inside.write(rest[:PIECE])
                rest = rest[count:]
                await self._send_locked()

    async def end(self) -> None:
        """Say that nothing more is written; what comes can still be read."""
        if self._ended:
            return
        self._ended = True
        with contextlib.suppress(OSError):
            try:
                self._inside.unwrap()
            except ssl.SSLError:
                pass  # it waits for the other side's word, which may come much later
            await self._send()
            self._sock.shutdown(socket.SHUT_WR)

    async def close(self) -> None:
        """End, in a way that lets the last that was written arrive."""
        try:
            with contextlib.suppress(OSError):
                async with asyncio.timeout(LINGER_SECONDS):
                    await self.end()
                    while await asyncio.get_running_loop().sock_recv(self._sock, PIECE):
                        pass
        finally:
            self._sock.close()

    def reset(self) -> None:
        """End at once, so that the other side sees that it was not the end of what there is."""
        with contextlib.suppress(OSError):
            linger = struct.pack("ii", 1, 0)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._sock.close()

    async def _send(self) -> None:
        async with self._sending:
            await self._send_locked()

    async def _send_locked(self) -> None:
        while data := self._out.read():
            if self._cut:
                raise ConnectionAbortedError("what was written before was cut off")
            self._cut = True  # if it is cancelled in between, nothing can follow
            await asyncio.get_running_loop().sock_sendall(self._sock, data)
            self._cut = False

    async def _receive(self) -> None:
        data = await asyncio.get_running_loop().sock_recv(self._sock, PIECE)
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()  # TLS knows whether it is the end or a cut
