"""What can go wrong at the wall.

Each error says what happened, what state things are in now, and what to do, in this order.
"""

from torpor.vm import HostError


class NetworkError(Exception):
    """The root of this package's errors."""

    def __init__(self, happened: str, *, state: str = "", todo: str = "") -> None:
        super().__init__(" ".join(part for part in (happened, state, todo) if part))
        self.happened = happened
        self.state = state
        self.todo = todo


class LinkError(NetworkError, HostError):
    """A machine's link could not be built, or this host cannot build any."""


class PolicyError(NetworkError):
    """A policy says something that the wall would not do. ``where`` is the place in what was
    written, as in ``egress.hosts[3]``."""

    def __init__(self, where: str, happened: str, *, todo: str = "") -> None:
        super().__init__(
            f"{where}: {happened.rstrip('.')}.", state="Nothing was changed.", todo=todo
        )
        self.where = where
