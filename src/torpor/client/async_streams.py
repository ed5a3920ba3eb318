"""Streams for coroutines. One task reads, others may write."""

import asyncio
import time
from collections.abc import AsyncIterator
from types import TracebackType

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from torpor.client import exec_stream, sockets
from torpor.client.errors import ClientError, UnreachableError
from torpor.client.exec_stream import (
    FIRST_PATIENCE,
    INPUT_PIECE,
    Disconnected,
    Exit,
    Item,
    Reading,
    Reconnected,
    Unsure,
)
from torpor.client.machine_records import Terminal
from torpor.client.target import Target
from torpor.client.tries import Outage, passes


class AsyncExecStream:
    """The stream of one command: a context, in which iterating yields its output, up to its
    :class:`Exit`. Leaving it leaves the command running."""

    def __init__(
        self, target: Target, session: str, exec_id: str, seq: int, patience: float | None
    ) -> None:
        self._target, self._session, self.exec_id = target, session, exec_id
        self._patience = patience
        self._reading = Reading(seq)
        self._unsure = Unsure()
        self._closed = False
        # What writers wait for: a connection, or that there will be none any more.
        self._changed = asyncio.Condition()
        self._socket: ClientConnection | None = None

    @property
    def exit(self) -> Exit | None:
        """How the command ended, once all of its output was read."""
        return self._reading.exit

    @property
    def seq(self) -> int:
        """The number of the next byte of output: what to attach with to go on here."""
        return self._reading.seq

    async def __aiter__(self) -> AsyncIterator[Item]:
        """Yield what happens, up to the command's end."""
        while self._reading.exit is None and self._socket is not None:
            try:
                message = await self._socket.recv()
            except ConnectionClosed as error:
                if self._closed:
                    return
                async for item in self._found_again(error):
                    yield item
            else:
                for item in self._reading.take(message):
                    yield item

    async def _found_again(self, closed: ConnectionClosed) -> AsyncIterator[Item]:
        await self._put(None)
        refused = sockets.closing(closed, self._reading.refused)
        if refused is not None:
            await self.close()
            raise refused from closed
        unsure = self._unsure.lost(time.monotonic())
        yield Disconnected(sockets.said(closed))
        try:
            await self._put(await self._found(self._patience))
        except ClientError:
            await self.close()
            raise
        yield Reconnected(unsure)

    async def _found(self, patience: float | None) -> ClientConnection:
        outage = Outage(patience)
        while True:
            try:
                return await self._open()
            except ClientError as error:
                wait = outage.wait(time.monotonic()) if passes(error) else None
                if wait is None:
                    raise
            await asyncio.sleep(wait)

    async def _open(self) -> ClientConnection:
        where = exec_stream.stream_path(self._session, self.exec_id, self._reading.seq)
        return await _open(self._target, where)

    async def _put(self, socket: ClientConnection | None) -> None:
        async with self._changed:
            self._socket = socket
            self._changed.notify_all()

    async def write(self, data: bytes) -> None:
        """Give the command input; it wakes a session that is paused. While the connection is lost
        this waits for it."""
        for start in range(0, len(data), INPUT_PIECE):
            await self._send(data[start : start + INPUT_PIECE])

    async def close_input(self) -> None:
        """Tell the command that there is no more input."""
        await self._send(exec_stream.END_OF_INPUT)

    async def resize(self, terminal: Terminal) -> None:
        """Tell the command that its terminal has another size."""
        await self._send(exec_stream.resize(terminal))

    async def signal(self, number: int) -> None:
        """Send the command a signal."""
        await self._send(exec_stream.signal(number))

    async def _send(self, message: str | bytes) -> None:
        lost: ClientConnection | None = None
        while (socket := await self._waited_for(lost)) is not None:
            if isinstance(message, bytes):
                self._unsure.sent(len(message), time.monotonic())
            try:
                await socket.send(message)
            except ConnectionClosed:
                if isinstance(message, str):
                    lost = socket
                    continue
                # A part of it may have arrived, so it is not sent again. The reader is told.
            return

    async def _waited_for(self, lost: ClientConnection | None) -> ClientConnection | None:
        """Return a connection that is not the lost one; None once there is nobody to write to.
        Raises :exc:`UnreachableError` if there will be none."""
        async with self._changed:
            while self._reading.exit is None:
                if self._closed:
                    raise UnreachableError(self._target.url, "the stream is closed")
                if self._socket is not None and self._socket is not lost:
                    return self._socket
                await self._changed.wait()
        return None

    async def close(self) -> None:
        """Stop following; the command runs on."""
        self._closed = True
        async with self._changed:
            self._changed.notify_all()
        if self._socket is not None:
            await self._socket.close()

    async def __aenter__(self) -> "AsyncExecStream":
        await self._put(await self._found(FIRST_PATIENCE))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class AsyncPortStream:
    """A connection to a port in a session's machine: a context."""

    def __init__(self, target: Target, session: str, port: int) -> None:
        self._target = target
        self._path = exec_stream.port_path(session, port)
        self._socket: ClientConnection | None = None

    async def read(self) -> bytes:
        """Return the bytes that came next, nothing at the end."""
        try:
            message = await self._opened().recv()
        except ConnectionClosed as error:
            return sockets.ended(error, self._target.url)
        return message if isinstance(message, bytes) else message.encode()

    async def write(self, data: bytes) -> None:
        """Send bytes. Raises :exc:`UnreachableError` once the other end is closed."""
        await self._send(data)

    async def close_input(self) -> None:
        """Tell the other end that no more is sent to it; what it sends is still to be read."""
        await self._send(exec_stream.END_OF_INPUT)

    async def _send(self, message: str | bytes) -> None:
        try:
            await self._opened().send(message)
        except ConnectionClosed as error:
            raise UnreachableError(self._target.url, sockets.said(error), sent=True) from error

    def _opened(self) -> ClientConnection:
        if self._socket is None:
            raise ValueError("a connection to a port is a context: use it in `async with`")
        return self._socket

    async def __aenter__(self) -> "AsyncPortStream":
        self._socket = await _open(self._target, self._path)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._socket is not None:
            await self._socket.close()


async def _open(target: Target, where: str) -> ClientConnection:
    try:
        return await connect(target.websocket(where), **sockets.settings(target))
    except (OSError, InvalidHandshake, ConnectionClosed) as error:
        raise sockets.refusal(error, target.url) from error
