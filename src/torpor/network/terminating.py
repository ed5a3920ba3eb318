"""What the proxy asks of whoever ends TLS at the wall, and what it offers them."""

import socket
from collections.abc import Awaitable, Callable
from typing import Protocol

from torpor.network.verdicts import Destination


class Watch(Protocol):
    """One connection, as it is watched while somebody else serves it."""

    def used(self, secret: str) -> None:
        """Note that a secret of this name was put in."""

    def told(self, why: str) -> None:
        """Note that something on it was refused, and why."""

    def sent(self, count: int) -> None:
        """Count bytes from the machine, without TLS. Raises
        :exc:`~torpor.network.flow.CutError` when there may be no more."""

    def received(self, count: int) -> None:
        """Count bytes for the machine; otherwise as :meth:`sent`."""


class Terminator(Protocol):
    """Ends TLS at the wall, for one machine.

    ``awake`` returns once that does not sleep; the wall gives it.
    """

    awake: Callable[[], Awaitable[None]]

    async def wanted(self, to: Destination) -> bool:
        """Say whether it is needed for a destination, whatever the policy says of inspection."""

    async def serve(
        self,
        machine: socket.socket,
        to: Destination,
        dial: Callable[[], Awaitable[socket.socket]],
        watch: Watch,
    ) -> None:
        """Serve a connection on which a ClientHello waits, untouched, whose name is allowed.

        Each ``dial`` makes a new connection to what was checked, the receiver's to close; raises
        :exc:`~torpor.network.dial.DeniedError` and :exc:`~torpor.network.dial.UnreachableError`.
        Both ends are closed when this is over, also by being cancelled.
        """
