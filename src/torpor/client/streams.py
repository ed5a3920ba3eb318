"""Streams for programs that wait. One thread reads, others may write."""

import threading
import time
from collections.abc import Iterator
from types import TracebackType

from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import ClientConnection, connect

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


class ExecStream:
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
        self._changed = threading.Condition()
        self._socket: ClientConnection | None = None

    @property
    def exit(self) -> Exit | None:
        """How the command ended, once all of its output was read."""
        return self._reading.exit

    @property
    def seq(self) -> int:
        """The number of the next byte of output: what to attach with to go on here."""
        return self._reading.seq

    def __iter__(self) -> Iterator[Item]:
        """Yield what happens, up to the command's end."""
        while self._reading.exit is None and self._socket is not None:
            try:
                message = self._socket.recv()
            except ConnectionClosed as error:
                if self._closed:
                    return
                yield from self._found_again(error)
            else:
                yield from self._reading.take(message)

    def _found_again(self, closed: ConnectionClosed) -> Iterator[Item]:
        self._put(None)
        refused = sockets.closing(closed, self._reading.refused)
        if refused is not None:
            self.close()
            raise refused from closed
        unsure = self._unsure.lost(time.monotonic())
        yield Disconnected(sockets.said(closed))
        try:
            self._put(self._found(self._patience))
        except ClientError:
            self.close()
            raise
        yield Reconnected(unsure)

    def _found(self, patience: float | None) -> ClientConnection:
        outage = Outage(patience)
        while True:
            try:
                return self._open()
            except ClientError as error:
                wait = outage.wait(time.monotonic()) if passes(error) else None
                if wait is None:
                    raise
            time.sleep(wait)

    def _open(self) -> ClientConnection:
        where = exec_stream.stream_path(self._session, self.exec_id, self._reading.seq)
        return _open(self._target, where)

    def _put(self, socket: ClientConnection | None) -> None:
        with self._changed:
            self._socket = socket
            self._changed.notify_all()

    def write(self, data: bytes) -> None:
        """Give the command input; it wakes a session that is paused. While the connection is lost
        this waits for it."""
        for start in range(0, len(data), INPUT_PIECE):
            self._send(data[start : start + INPUT_PIECE])

    def close_input(self) -> None:
        """Tell the command that there is no more input."""
        self._send(exec_stream.END_OF_INPUT)

    def resize(self, terminal: Terminal) -> None:
        """Tell the command that its terminal has another size."""
        self._send(exec_stream.resize(terminal))

    def signal(self, number: int) -> None:
        """Send the command a signal."""
        self._send(exec_stream.signal(number))

    def _send(self, message: str | bytes) -> None:
        lost: ClientConnection | None = None
        while (socket := self._waited_for(lost)) is not None:
            if isinstance(message, bytes):
                self._unsure.sent(len(message), time.monotonic())
            try:
                socket.send(message)
            except ConnectionClosed:
                if isinstance(message, str):
                    lost = socket
                    continue
                # A part of it may have arrived, so it is not sent again. The reader is told.
            return

    def _waited_for(self, lost: ClientConnection | None) -> ClientConnection | None:
        """Return a connection that is not the lost one; None once there is nobody to write to.
        Raises :exc:`UnreachableError` if there will be none."""
        with self._changed:
            while self._reading.exit is None:
                if self._closed:
                    raise UnreachableError(self._target.url, "the stream is closed")
                if self._socket is not None and self._socket is not lost:
                    return self._socket
                self._changed.wait(1)
        return None

    def close(self) -> None:
        """Stop following; the command runs on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._socket is not None:
            self._socket.close()

    def __enter__(self) -> "ExecStream":
        self._put(self._found(FIRST_PATIENCE))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class PortStream:
    """A connection to a port in a session's machine: a context."""

    def __init__(self, target: Target, session: str, port: int) -> None:
        self._target = target
        self._path = exec_stream.port_path(session, port)
        self._socket: ClientConnection | None = None

    def read(self) -> bytes:
        """Return the bytes that came next, nothing at the end."""
        try:
            message = self._opened().recv()
        except ConnectionClosed as error:
            return sockets.ended(error, self._target.url)
        return message if isinstance(message, bytes) else message.encode()

    def write(self, data: bytes) -> None:
        """Send bytes. Raises :exc:`UnreachableError` once the other end is closed."""
        self._send(data)

    def close_input(self) -> None:
        """Tell the other end that no more is sent to it; what it sends is still to be read."""
        self._send(exec_stream.END_OF_INPUT)

    def _send(self, message: str | bytes) -> None:
        try:
            self._opened().send(message)
        except ConnectionClosed as error:
            raise UnreachableError(self._target.url, sockets.said(error), sent=True) from error

    def _opened(self) -> ClientConnection:
        if self._socket is None:
            raise ValueError("a connection to a port is a context: use it in `with`")
        return self._socket

    def __enter__(self) -> "PortStream":
        self._socket = _open(self._target, self._path)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._socket is not None:
            self._socket.close()


def _open(target: Target, where: str) -> ClientConnection:
    try:
        opened = connect(target.websocket(where), **sockets.settings(target))
        # It is to be a context, says websockets 17; ours lives in another one.
        found: ClientConnection = opened.__enter__()
    except (OSError, InvalidHandshake, ConnectionClosed) as error:
        raise sockets.refusal(error, target.url) from error
    return found
