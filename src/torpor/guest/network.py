"""The machine's network card, set up by asking the kernel; no process is started for it.

At boot, and at each wake again: whoever is root in the machine may have changed it, and a thaw is
to give a machine that works. What the kernel has is left as it is where it is right.
"""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

from torpor.guest.card import ADDRESS, MAC, MTU, PREFIX, WALL, WALL_MAC
from torpor.guest.netlink import ask, attribute

CARDS = "/sys/class/net"
RESOLV_CONF = "/etc/resolv.conf"
OUR_RESOLVER = (
    f"# Written by Torpor: the wall answers, whatever address is asked.\nnameserver {WALL}\n"
)
UNUSABLE = ("127.0.0.53", "127.0.0.54")
"""Where systemd-resolved listens, which nothing starts in a machine."""

RTM_NEWLINK, RTM_NEWADDR, RTM_NEWROUTE, RTM_NEWNEIGH = 16, 20, 24, 28  # linux/rtnetlink.h
CREATE, REPLACE = 0x400, 0x100  # linux/netlink.h
IFF_UP = 1
NUD_PERMANENT = 0x80
MAIN, STATIC, UNIVERSE, UNICAST = 254, 4, 0, 1  # a route's table, protocol, scope and type


def begin() -> None:
    """Set the card up when the machine has booted. What cannot be is told by the next wake, which
    tries again."""
    with suppress(OSError):
        if set_up():
            name_resolver()


def set_up() -> bool:
    """Give the machine's card its address, its route and the wall as its neighbour; say whether
    there is a card. Raises OSError."""
    name = find()
    if name is None:
        return False
    # The wall lets IPv6 nowhere. Without addresses of it programs know at once that there is none,
    # and need not wait for an answer; ::1 stays.
    with suppress(FileNotFoundError):  # a kernel without IPv6
        _write(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6", "1")
    index = socket.if_nametoindex(name)
    here, wall = socket.inet_aton(ADDRESS), socket.inet_aton(WALL)
    inet = socket.AF_INET
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as route:
        link = struct.pack("BxHiII", 0, 0, index, IFF_UP, IFF_UP)
        ask(route, RTM_NEWLINK, 0, link + attribute(4, struct.pack("I", MTU)))
        address = struct.pack("BBBBI", inet, PREFIX, 0, 0, index)
        address += attribute(1, here) + attribute(2, here)
        ask(route, RTM_NEWADDR, CREATE | REPLACE, address)
        default = struct.pack("BBBBBBBBI", inet, 0, 0, 0, MAIN, STATIC, UNIVERSE, UNICAST, 0)
        default += attribute(5, wall) + attribute(4, struct.pack("I", index))
        ask(route, RTM_NEWROUTE, CREATE | REPLACE, default)
        # It is the same on every wire, so nobody need ask who has its address, now or ever again.
        neighbour = struct.pack("BxxxiHBB", inet, index, NUD_PERMANENT, 0, 0)
        neighbour += attribute(1, wall) + attribute(2, bytes.fromhex(WALL_MAC.replace(":", "")))
        ask(route, RTM_NEWNEIGH, CREATE | REPLACE, neighbour)
    return True


def find() -> str | None:
    """Return the name of the card, or None if the machine has none."""
    for name in os.listdir(CARDS):
        with suppress(OSError), open(f"{CARDS}/{name}/address") as file:
            # What root in the machine puts over it (a bridge, a VLAN) has its address as well.
            if file.read().strip() == MAC and os.path.exists(f"{CARDS}/{name}/device"):
                return name
    return None


def name_resolver(path: str = RESOLV_CONF) -> None:
    """Let programs ask the wall for names, unless the image says whom they are to ask.

    What it says is right as it is: the wall answers at every address. Not where nobody can be:
    where there is no file, or a link to one that something makes which does not run here. Raises
    OSError.
    """
    place = os.path.realpath(path)
    try:
        with open(place, errors="replace") as file:
            if any(map(_usable, _resolvers(file.read(1 << 16)))):
                return
    except FileNotFoundError:
        os.makedirs(os.path.dirname(place), 0o755, exist_ok=True)
    _write(place, OUR_RESOLVER)


def _resolvers(text: str) -> Iterator[str]:
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == "nameserver":
            yield words[1]


def _usable(address: str) -> bool:
    return ":" not in address and address not in UNUSABLE


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
