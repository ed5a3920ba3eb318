"""A link: a machine's wire, and the sockets at the wall's end of it."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from os import close
from pathlib import Path

from torpor.guest.card import ADDRESS, MAC, MTU, WALL, WALL_MAC
from torpor.network.errors import LinkError
from torpor.network.link.rules import DNS_PORT, RULES, TAP, TCP_PORT, UDP_PORT
from torpor.vm import Wire

BUILD = Path(__file__).with_name("build.py")
BUILD_LIMIT = 30.0
"""Seconds that the process may take; it takes 0.04 where nothing else runs."""


@dataclass(frozen=True)
class Ends:
    """The sockets at which everything that a machine sends to the network arrives. None blocks.

    ``tcp`` listens for connections to any address and port but DNS; ``getsockname`` of an accepted
    one is what the machine dialled. ``udp`` gets all datagrams but those to ports 53 and 443, and
    with each its destination (``IP_RECVORIGDSTADDR``, 20). ``dns_udp`` and ``dns_tcp`` are port 53
    of every address; the first tells with each query which address was asked (``IP_PKTINFO``), and
    answers from that one if it is given back. ``raw`` sends whole IPv4 packets to the machine, as
    from anybody.
    """

    tcp: socket.socket
    udp: socket.socket
    dns_udp: socket.socket
    dns_tcp: socket.socket
    raw: socket.socket

    def close(self) -> None:
        """Close all of them: what the machine dials from then on is refused by the kernel."""
        for each in fields(self):
            getattr(self, each.name).close()


class Link:
    """A machine's link; it is there until it is closed, whoever uses the wire."""

    def __init__(self, ends: Ends, wire: Wire) -> None:
        self.ends = ends
        self.wire = wire
        self._closed = False

    def close(self) -> None:
        """Let go of it. It is gone with the last process that uses the wire. Blocks for some 30 ms,
        so call it in a thread."""
        if not self._closed:
            self._closed = True
            self.ends.close()
            for fd in (self.wire.tap, self.wire.users, self.wire.network):
                close(fd)


class BuildError(LinkError):
    """A link could not be built: ``step`` is what failed, ``number`` its errno, or 0."""

    def __init__(self, step: str, number: int, why: str) -> None:
        super().__init__(
            f"A machine's link to the network could not be built. To {step} failed: {why}.",
            state="Nothing of it is left.",
            todo="Run `torpor doctor`.",
        )
        self.step = step
        self.number = number
        self.why = why


def build(pid: int = 0) -> Link:
    """Build a new link; or with a ``pid``, that of a QEMU that runs, a link on its wire.

    Blocks for some 40 ms. Raises :exc:`BuildError`.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.settimeout(BUILD_LIMIT)
        numbers = map(str, (MTU, TCP_PORT, UDP_PORT, DNS_PORT, pid))
        wire = (TAP, WALL, WALL_MAC, ADDRESS, MAC)
        fd = theirs.fileno()
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(BUILD), str(fd), RULES, *wire, *numbers],
            stdin=subprocess.DEVNULL,
            pass_fds=(fd,),
        )
        theirs.close()
        try:
            return receive(ours)
        except TimeoutError:
            process.kill()
            raise BuildError("wait for it", 0, f"not there after {BUILD_LIMIT:g} s") from None
        finally:
            process.wait()


def receive(mouth: socket.socket) -> Link:
    """Return the link that a process hands over. Raises :exc:`BuildError` if it says that it has
    none, and TimeoutError."""
    said, given, _, _ = socket.recv_fds(mouth, 4096, 16)
    if said != b"built":
        step, number, why = _told(said)
        raise BuildError(step, number, why)
    return _link(given)


def _told(said: bytes) -> tuple[str, int, str]:
    """Return what failed and why, in the words of the process; it may have had none."""
    with contextlib.suppress(ValueError):
        step, number, why = said.decode().split("\n", 2)
        return step, int(number), why
    return "run the process that builds it", 0, "it ended without a word"


def _link(given: Sequence[int]) -> Link:
    tap, users, network, *sockets = given
    tcp, udp, dns_udp, dns_tcp, raw = (socket.socket(fileno=fd) for fd in sockets)
    return Link(Ends(tcp, udp, dns_udp, dns_tcp, raw), Wire(tap, users, network))
