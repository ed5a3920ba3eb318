"""A request from outside and its answer, whatever version of HTTP it came in."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torpor.api.preview.headers import Pairs
from torpor.network.heads import Head


class GoneError(Exception):
    """Whoever has asked has gone."""


class BadBodyError(Exception):
    """A body that is none."""


@dataclass(frozen=True)
class Peer:
    """Who is at the other end of a connection: its address, and the name for which it was made, if
    TLS told one. ``known`` is called when it has turned out to be somebody."""

    address: str
    name: str | None
    known: Callable[[], None]


class Inbound(ABC):
    """One request. ``status`` is that of the answer, 0 as long as that has not begun."""

    def __init__(self, head: Head, peer: Peer) -> None:
        self.head = head
        self.peer = peer
        self.status = 0
        self.aborted = False

    @abstractmethod
    async def receive(self) -> bytes:
        """Return a piece of the body, nothing at its end. Raises :exc:`GoneError`,
        :exc:`BadBodyError`."""

    @abstractmethod
    async def gone(self) -> None:
        """Return when the client has gone; to be called after the whole body was received."""

    @abstractmethod
    async def inform(self, status: int, headers: Pairs) -> None:
        """Send an answer before the answer, if the client understands such."""

    @abstractmethod
    async def switch(self, headers: Pairs) -> None:
        """Change the protocol of the connection, as the client has asked for: from now on there are
        :meth:`read` and :meth:`write`. Raises :exc:`GoneError`."""

    @abstractmethod
    async def start(self, status: int, headers: Pairs, reason: bytes = b"") -> None:
        """Send the head of the answer. Raises :exc:`GoneError`, as the next two do."""

    @abstractmethod
    async def send(self, data: bytes) -> None:
        """Send a piece of its body."""

    @abstractmethod
    async def end(self, trailers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Send its end."""

    @abstractmethod
    def abort(self) -> None:
        """End an answer that is not whole, so that nobody takes it for whole."""

    @abstractmethod
    async def read(self) -> bytes:
        """Return bytes of the protocol to which this was changed, nothing at the end."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Send bytes of it. Raises :exc:`GoneError`."""
