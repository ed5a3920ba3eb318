"""What the wall is asked and what it answers, as plain data."""

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Literal, Protocol

Transport = Literal["tcp", "udp"]
Spoken = Literal["tls", "http", "raw"]
"""What a machine's first bytes on a connection are: a ClientHello, an HTTP request, or neither (or
none, where the other side speaks first)."""


@dataclass(frozen=True)
class Destination:
    """Where a machine wants to go: ``name`` is the one that the dialled ``address`` stands for, or
    None where the machine dialled an address of its own accord."""

    name: str | None
    address: IPv4Address
    port: int
    transport: Transport = "tcp"


@dataclass(frozen=True)
class Verdict:
    """Whether something may be, and why.

    ``rule`` is the rule that decided, as it was written, or the policy's mode. Where it may not be,
    ``why`` says so for people and ``add`` is a rule that would allow it (empty if none would).
    ``inspect`` says that TLS to it is ended at the wall. ``name`` is the name by which it may be,
    where the destination itself has none: then the dialled address must be one of this name's, and
    :meth:`Judge.dialled` is asked for a destination with this name.
    """

    allowed: bool
    rule: str
    why: str = ""
    add: str = ""
    inspect: bool = False
    name: str = ""


class Judge(Protocol):
    """A policy, ready to decide. Names are lower case, ASCII, without the last dot."""

    @property
    def hidden_names(self) -> bool:
        """Whether a ClientHello that hides its name (ECH) may pass."""

    def name(self, name: str) -> Verdict:
        """Say whether a name may be looked up. Nothing of a denied one reaches any resolver."""

    def destination(self, to: Destination) -> Verdict:
        """Say whether a connection may be begun, before anything was said on it."""

    def spoken(self, to: Destination, how: Spoken, said: str | None) -> Verdict:
        """Say whether it may go on, knowing what it speaks and which name it said (SNI or Host;
        None if none)."""

    def heeds(self, to: Destination) -> bool:
        """Say whether what is said on a connection to it can change what :meth:`spoken` says."""

    def dialled(self, to: Destination, address: IPv4Address | IPv6Address) -> Verdict:
        """Say whether the wall may connect to an address that it found for a destination."""
