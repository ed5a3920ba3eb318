"""Where a machine's bytes went, in all: what a ledger and a data-protection review read."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from torpor.network.verdicts import Destination

MOST = 4096
"""Places of one machine that are counted by name; what goes elsewhere is counted together."""
OTHERS = "(others)"


@dataclass(frozen=True)
class Traffic:
    """What went to one ``host`` (a name, or an address that was dialled as such) and came from it
    since the wall stands: numbers that only grow. ``sent`` is bytes from the machine."""

    host: str
    connections: int
    sent: int
    received: int
    first: datetime
    last: datetime


class Count:
    """The bytes of one host, counted while they move."""

    __slots__ = ("connections", "first", "host", "last", "received", "sent")

    def __init__(self, host: str) -> None:
        self.host = host
        self.connections = self.sent = self.received = 0
        self.first = self.last = datetime.now(UTC)

    def plain(self) -> Traffic:
        """Return the numbers as they are now."""
        return Traffic(self.host, self.connections, self.sent, self.received, self.first, self.last)


class Counts:
    """The bytes of one machine by host."""

    def __init__(self) -> None:
        self._counts: dict[str, Count] = {}

    def begin(self, to: Destination) -> Count:
        """Count one more connection to a destination."""
        host = to.name or str(to.address)
        if host not in self._counts and len(self._counts) >= MOST:
            host = OTHERS
        count = self._counts.setdefault(host, Count(host))
        count.connections += 1
        count.last = datetime.now(UTC)
        return count

    def __iter__(self) -> Iterator[Traffic]:
        return (count.plain() for count in self._counts.values())

    @property
    def total(self) -> int:
        """Bytes in all, both ways."""
        return sum(each.sent + each.received for each in self._counts.values())
