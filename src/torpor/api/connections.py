"""Connections, bounded in time and in number as long as nobody has shown a valid token on them.

uvicorn waits for ever for the head of a request that was begun, or never was, and for the rest of a
body that nobody reads any more.
"""

import asyncio
import resource
from collections.abc import Mapping
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 15.0
"""How long a client may take for the head of a request, or for the rest of one that was answered
before it was complete. (Between two requests it is uvicorn's ``timeout_keep_alive``.)"""
MOST_STRANGERS = 1000
"""Connections on which no valid token was shown yet, at most a quarter of the descriptors that this
process may have."""
KNOWN = "known"
"""Where in a request's state there is what the gate is to call when it has found a valid token."""


def most_strangers() -> int:
    """Return how many connections of strangers one port may have."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(MOST_STRANGERS, descriptors // 4)


class Strangers:
    """The connections on which no valid token was shown, the oldest first."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most or most_strangers()
        self._there: dict[Connection, None] = {}

    def add(self, connection: "Connection") -> None:
        """Take in one more; the oldest goes if there are too many."""
        if len(self._there) >= self._most:
            oldest = next(iter(self._there))
            self.remove(oldest)
            oldest.end()
        self._there[connection] = None

    def remove(self, connection: "Connection") -> None:
        """Forget one that is none any more, or that is gone."""
        self._there.pop(connection, None)


class Connection(H11Protocol):
    """uvicorn's, which ends when its client takes too long. A WebSocket begins as one."""

    def __init__(self, strangers: Strangers, **given: Any) -> None:
        super().__init__(**given)
        self._strangers = strangers
        self._limit: asyncio.TimerHandle | None = None
        self.app_state = {**self.app_state, KNOWN: self._known}

    def _known(self) -> None:
        self._strangers.remove(self)

    def end(self) -> None:
        """End the connection at once."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._strangers.add(self)
        self._look()

    def data_received(self, data: bytes) -> None:
        """Take what has come, and see what is still to come."""
        super().data_received(data)
        self._look()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand over to a WebSocket, which the gate judges at once."""
        super().handle_websocket_upgrade(event)
        self._leave()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._leave()
        self._stop()

    def _leave(self) -> None:
        self._strangers.remove(self)
        self.app_state = {}  # that knows us, and would be garbage for the collector

    def _look(self) -> None:
        """Have the time limit run while the client owes something."""
        theirs = self.conn.their_state
        owed = theirs is h11.IDLE or (theirs is h11.SEND_BODY and self.conn.our_state is h11.DONE)
        if not owed:
            self._stop()
        elif self._limit is None:
            self._limit = self.loop.call_later(HEAD_SECONDS, self.end)

    def _stop(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None


def welcome(state: Mapping[str, Any]) -> None:
    """Note that a valid token was shown on a request's connection."""
    known = state.get(KNOWN)
    if known is not None:
        known()
