"""A machine, its wall, the host and an internet, as four network namespaces of this kernel.

A machine is a namespace whose one card is a wire to the wall's; the proxy dials from the host's,
into which the thread that runs the test goes. Sockets of all four are used by one event loop.

    machine 198.19.255.2 -- 198.19.255.1 wall    host 203.0.113.1 -- 203.0.113.2 ... internet

Addresses of documentation ranges count as public. The internet also has private addresses and one
of a metadata service, so that what must not be reached could be.
"""

import contextlib
import ctypes
import os
import socket
import subprocess
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from torpor.guest.card import ADDRESS, MAC, MTU, WALL, WALL_MAC
from torpor.lab.benches.network_town import program
from torpor.network.link import Ends
from torpor.network.link.rules import DNS_PORT, RULES, TAP, TCP_PORT, UDP_PORT

building = program()
MACHINE = ADDRESS
HOST = "203.0.113.1"
HOST_TOO = "203.0.113.3"
"""A second address of the host's card."""
ANYWHERE = "0.0.0.0"  # noqa: S104 - of a namespace
GOOD, EVIL, CDN, OTHER, DEAD = (f"203.0.113.{number}" for number in (10, 11, 12, 13, 99))
PRIVATE, METADATA = "10.9.8.7", "169.254.169.254"
CLONE_NEWNET = 0x40000000
T = TypeVar("T")


def enter(namespace: int) -> None:
    """Have this thread be in a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Namespace:
    """A network namespace, and a thread in it that makes sockets."""

    def __init__(self) -> None:
        # It ends with its input: with this process, at the latest.
        self.holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE)
        here = Path("/proc/self/ns/net").stat().st_ino
        there = Path(f"/proc/{self.holder.pid}/ns/net")
        while there.stat().st_ino == here:
            pass
        self.fd = os.open(there, os.O_RDONLY | os.O_CLOEXEC)
        self._thread = ThreadPoolExecutor(1, initializer=lambda: enter(self.fd))

    def call(self, work: Callable[[], T]) -> T:
        """Do something in it."""
        return self._thread.submit(work).result()

    def run(self, *command: str, words: str = "") -> str:
        """Run a command in it, to its end."""
        inside = self.command(*command)
        done = subprocess.run(
            inside, input=words, check=True, capture_output=True, text=True, pass_fds=(self.fd,)
        )
        return done.stdout

    def command(self, *command: str) -> list[str]:
        """Return a command that runs in it; it is to be given the descriptor ``fd``."""
        return ["nsenter", f"--net=/proc/self/fd/{self.fd}", *command]

    def unbound(
        self, kind: int = socket.SOCK_STREAM, family: int = socket.AF_INET
    ) -> socket.socket:
        """Return a new socket in it, which does not block."""
        made = self.call(lambda: socket.socket(family, kind))
        made.setblocking(False)
        return made

    def listening(self, address: str, port: int) -> socket.socket:
        """Return a socket that listens in it."""
        made = self.unbound()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, port))
        made.listen(1024)
        return made

    def close(self) -> None:
        """Let go of it."""
        self._thread.shutdown()
        os.close(self.fd)
        self.holder.communicate()


class Wire:
    """A machine and its wall, with nobody at the wall's sockets yet. The wall's end is as of a
    link, but for the card, which is one of a pair and not a tap."""

    def __init__(self) -> None:
        self.machine, self.wall = Namespace(), Namespace()
        self.wall.run(
            "ip",
            "link", "add", TAP, "type", "veth",
            "peer", "name", "eth0", "address", MAC, "netns", str(self.machine.holder.pid),
        )  # fmt: skip
        self.wall.call(lambda: building.load_rules(RULES))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # it is meant for a process that ends
            self.wall.call(lambda: building.set_up(TAP, WALL, WALL_MAC, MACHINE, MAC, MTU))
        self.machine.run(
            "ip", "-batch", "-",
            words=f"link set lo up\nlink set eth0 up\naddr add {MACHINE}/24 dev eth0\n"
            f"route add default via {WALL}\n",
        )  # fmt: skip
        made = self.wall.call(lambda: building.make_sockets(TCP_PORT, UDP_PORT, DNS_PORT))
        self.ends = Ends(*(socket.socket(fileno=each.detach()) for each in made))

    def close(self) -> None:
        self.ends.close()
        self.machine.close()
        self.wall.close()


class Internet:
    """The host, and what it can reach."""

    def __init__(self) -> None:
        self.host, self.far = Namespace(), Namespace()
        self.host.run(
            "ip", "-batch", "-",
            words=f"link add wan type veth peer name eth0 netns {self.far.holder.pid}\n"
            f"link set lo up\nlink set wan up\naddr add {HOST}/24 dev wan\n"
            f"addr add {HOST_TOO}/24 dev wan\nroute add default via 203.0.113.2\n",
        )  # fmt: skip
        addresses = ("203.0.113.2", GOOD, EVIL, CDN, OTHER)
        words = "link set lo up\nlink set eth0 up\n"
        words += "".join(f"addr add {each}/24 dev eth0\n" for each in addresses)
        words += f"addr add {PRIVATE}/32 dev lo\naddr add {METADATA}/32 dev lo\n"
        self.far.run("ip", "-batch", "-", words=words)

    @contextlib.contextmanager
    def from_host(self) -> Iterator[None]:
        """Have this thread be on the host within."""
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        enter(self.host.fd)
        try:
            yield
        finally:
            enter(here)
            os.close(here)

    def close(self) -> None:
        self.host.close()
        self.far.close()


needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="the thread of a test goes to a namespace and back: needs root"
)
