"""The wire of a machine's card: what QEMU needs to know of the network, which is three descriptors.

QEMU runs inside the network namespace at whose other end the wall is, so one that was taken over
has no other network either. Who makes wires, and what is at their other end, is known above
(:mod:`torpor.network.link`).
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Wire:
    """Open descriptors of a tap, and of the network namespace that it is in and the user namespace
    that owns it. They are whose :class:`Link` it is; who starts QEMU only uses them."""

    tap: int
    users: int
    network: int


class Link(Protocol):
    """A wire with whatever is at its other end. It may outlive a machine's process: another one can
    take its place on the same wire."""

    @property
    def wire(self) -> Wire:
        """The machine's end."""


class Links(Protocol):
    """Makes links for the machines of a host."""

    async def take(self) -> Link:
        """Return a new link, the caller's own. Raises :exc:`torpor.vm.HostError`."""

    async def rebuilt(self, pid: int) -> Link:
        """Return a link on the wire of a QEMU that runs, for whoever has adopted it. Raises
        :exc:`torpor.vm.HostError`."""

    def let_go(self, link: Link) -> None:
        """Close a link, in the background."""

    async def close(self) -> None:
        """Let go of what was prepared, and return when all that was let go of is closed."""


class Wired:
    """What a machine's network card is connected to, and whose that is: the machine's own if
    ``links`` made it for the machine, else somebody else's."""

    def __init__(self, link: Link | None = None, links: Links | None = None) -> None:
        self.link = link
        self._links = links

    @property
    def wire(self) -> Wire | None:
        """Its wire, or None if there is no card."""
        return None if self.link is None else self.link.wire

    def take(self) -> Link | None:
        """Return the link, which is the caller's from now on, to be closed after the machine has
        ended."""
        self._links = None
        return self.link

    def let_go(self) -> None:
        """Close the link, if it is the machine's own; a process that runs keeps its wire."""
        links, self._links = self._links, None
        if self.link is not None and links is not None:
            links.let_go(self.link)
            self.link = None
