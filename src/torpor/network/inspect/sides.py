"""The two ends of a connection of HTTP/2, and a stream that goes from one to the other."""

import asyncio
import contextlib
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

from torpor.network.inspect.decoding import Opening
from torpor.network.inspect.flow import Flow
from torpor.network.inspect.going_away import Frames
from torpor.network.inspect.requests import Passed
from torpor.network.inspect.tls import Tls
from torpor.network.redaction import Redactor

STREAMS = 100
"""Streams of one connection at a time; fewer if the host takes fewer."""
STREAM_WINDOW = 128 << 10
CONNECTION_WINDOW = STREAMS * STREAM_WINDOW
"""Bytes that may be on their way to somebody who does not read: no stream takes another's."""
LARGEST_HEADERS = 64 << 10

_Setting = h2.settings.SettingCodes


class EndedError(Exception):
    """The connection cannot go on."""


@dataclass
class Stream:
    """A request and its response. ``machine`` and ``upstream`` are its numbers at the two ends; the
    latter is None as long as it has not been begun there."""

    machine: int
    upstream: int | None = None
    up: Flow = field(default_factory=Flow)
    down: Flow = field(default_factory=Flow)
    waiting: Passed | None = None
    """The request, as long as its body is gathered."""
    method: bytes = b""
    redactor: Redactor | None = None
    opener: Opening | None = None


class Side:
    """One end of the connection."""

    def __init__(self, tls: Tls, *, client: bool) -> None:
        self.tls = tls
        config = h2.config.H2Configuration(client_side=client, header_encoding=None)
        self.h2 = h2.connection.H2Connection(config)
        self.frames = Frames(with_preface=not client)
        self._sending = asyncio.Lock()

    def begin(self, streams: int) -> None:
        """Greet, and allow so many streams at a time."""
        self.h2.local_settings = h2.settings.Settings(
            client=self.h2.config.client_side,
            initial_values={
                _Setting.ENABLE_PUSH: 0,
                _Setting.MAX_CONCURRENT_STREAMS: streams,
                _Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                _Setting.MAX_HEADER_LIST_SIZE: LARGEST_HEADERS,
            },
        )
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(CONNECTION_WINDOW - 65535)

    def take(self, data: bytes) -> list[h2.events.Event]:
        """Return what bytes from there mean. Raises :exc:`EndedError` if they mean nothing."""
        try:
            return self.h2.receive_data(data)
        except h2.exceptions.ProtocolError as error:
            raise EndedError(f"This is no HTTP/2: {error!r}.") from error

    def reset(self, stream: int, code: int) -> None:
        """End a stream, if it is there still."""
        with contextlib.suppress(h2.exceptions.ProtocolError):
            self.h2.reset_stream(stream, code)

    def acknowledge(self, count: int, stream: int) -> None:
        """Let it send so many bytes more."""
        with contextlib.suppress(h2.exceptions.ProtocolError):
            self.h2.acknowledge_received_data(count, stream)

    async def flush(self, after: bytes = b"") -> None:
        """Write what is to be said there, and ``after`` behind it. Raises :exc:`OSError`."""
        async with self._sending:
            data = self.h2.data_to_send() + after
            if data:
                await self.tls.write(data)
