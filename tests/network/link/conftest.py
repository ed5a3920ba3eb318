"""A link with a kernel of its own at the machine's end: frames go from one tap to the other."""

import os
import selectors
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from torpor.network.link import BuildError, Ends, Link, build
from torpor.network.link.link import receive
from torpor.vm import Wire

OTHER_END = Path(__file__).with_name("other_end.py")
HEADER = 10
"""Bytes before each frame, as long as nobody says otherwise (``struct virtio_net_hdr``)."""
NOBODY = 65534
ANYWHERE = ("93.184.216.34", 80)
LIMIT = 20.0
"""Seconds after which whatever was waited for will not come any more."""

DROP = f"""
import ctypes, os, shutil, socket, sys
os.setgroups([])
os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
ctypes.CDLL(None).prctl(4, 1)  # what a program that was root is not, and one of theirs is: dumpable
if not os.access(sys.executable, os.X_OK):  # in somebody's home
    sys.executable = shutil.which("python3", path="/usr/bin:/bin")
"""
ORDINARY = f"""
from torpor.network.link import build
{DROP}
link = build()
ends = link.ends
sockets = [ends.tcp, ends.udp, ends.dns_udp, ends.dns_tcp, ends.raw]
given = [link.wire.tap, link.wire.users, link.wire.network, *(each.fileno() for each in sockets)]
socket.send_fds(socket.socket(fileno=int(sys.argv[1])), [b"built"], given)
"""
TUN = """
set -e
# Where no udev has opened it to everybody, it is root's alone.
mount -t tmpfs tun "$0"
mknod -m 666 "$0/tun" c 10 200
mount --bind "$0/tun" /dev/net/tun
exec "$@"
"""


def with_tun(place: Path, *command: str) -> list[str]:
    """Return a command that root runs where everybody may open /dev/net/tun."""
    return ["unshare", "--mount", "sh", "-c", TUN, str(place), *command]


def built_by_an_ordinary_user(place: Path) -> Link:
    """Return a link that a user without any rights has built."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.settimeout(LIMIT)
        fd = theirs.fileno()
        process = subprocess.Popen(
            with_tun(place, sys.executable, "-c", ORDINARY, str(fd)),
            pass_fds=(fd,),
        )
        theirs.close()
        try:
            return receive(ours)
        finally:
            process.wait()


def builders() -> list[str]:
    """Return as whom links are built in tests."""
    if os.geteuid() == 0 and shutil.which("setpriv"):
        return ["root", "ordinary"]
    return ["ordinary"]


@pytest.fixture(params=builders())
def link(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Link]:
    """A link, built by root and by an ordinary user."""
    try:
        if request.param == "ordinary" and os.geteuid() == 0:
            made = built_by_an_ordinary_user(tmp_path)
        else:
            made = build()
    except BuildError as error:
        pytest.skip(f"this host cannot build links: {error}")
    yield made
    made.close()


@pytest.fixture
def ends(link: Link) -> Ends:
    """The wall's end of it; whoever waits there is told when it is too long."""
    for each in (link.ends.tcp, link.ends.udp, link.ends.dns_udp, link.ends.dns_tcp):
        each.settimeout(LIMIT)
    return link.ends


def dialled(ends: Ends) -> socket.socket:
    """Return the next connection that arrives."""
    ends.tcp.settimeout(LIMIT)
    return ends.tcp.accept()[0]


class OtherEnd:
    """The machine's end: a namespace in which sockets are made, and the wire to it."""

    def __init__(self, wire: Wire) -> None:
        self._mouth, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._mouth.settimeout(LIMIT)
        with theirs:
            fd = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, str(OTHER_END), str(fd)], pass_fds=(fd,)
            )
        _, (self._tap,), _, _ = socket.recv_fds(self._mouth, 16, 1)
        self._stop, self._stopped = os.pipe()
        self._sockets: list[socket.socket] = []
        self._pump = threading.Thread(target=self._carry, args=(wire.tap,))
        self._pump.start()

    def _carry(self, wall: int) -> None:
        os.set_blocking(wall, False)
        with selectors.DefaultSelector() as selector:
            selector.register(wall, selectors.EVENT_READ, self._tap)
            selector.register(self._tap, selectors.EVENT_READ, wall)
            selector.register(self._stop, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fd == self._stop:
                        return
                    os.write(key.data, os.read(key.fd, 1 << 17))

    def new_socket(
        self, kind: int, family: int = socket.AF_INET, protocol: int = 0
    ) -> socket.socket:
        """Return a new socket of the machine's."""
        self._mouth.send(f"{int(family)} {int(kind)} {protocol}".encode())
        _, (fd,), _, _ = socket.recv_fds(self._mouth, 16, 1)
        made = socket.socket(fileno=fd)
        made.settimeout(LIMIT)
        self._sockets.append(made)
        return made

    def dial(self, to: tuple[str, int]) -> socket.socket:
        """Return a connection of the machine's."""
        dialling = self.new_socket(socket.SOCK_STREAM)
        dialling.connect(to)
        return dialling

    def frame(self, frame: bytes) -> None:
        """Put a frame on the wire, past the machine's kernel."""
        with self.new_socket(socket.SOCK_RAW, socket.AF_PACKET) as packets:
            packets.sendto(frame, ("eth0", 0))

    def close(self) -> None:
        """Take it away."""
        for each in self._sockets:
            each.close()
        os.write(self._stopped, b"x")
        self._pump.join()
        for fd in (self._stop, self._stopped, self._tap):
            os.close(fd)
        self._mouth.close()
        self._process.wait()


@pytest.fixture
def machine(link: Link) -> Iterator[OtherEnd]:
    """The machine's end of the link."""
    other = OtherEnd(link.wire)
    yield other
    other.close()
