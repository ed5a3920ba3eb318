"""What a connection whose TLS is ended at the wall tells while it goes on."""

from typing import Protocol


class Watch(Protocol):
    """Takes it in, at once: whoever calls goes on only then. What it raises ends the connection."""

    def used(self, secret: str) -> None:
        """A secret was put into a request."""

    def told(self, why: str) -> None:
        """A request was refused, or a secret was not used although one is bound to the host."""

    def sent(self, count: int) -> None:
        """So many bytes, without TLS, went on to the other side."""

    def received(self, count: int) -> None:
        """So many came from it."""
