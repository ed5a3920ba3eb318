"""Connections that a fork has inherited, and that are still its parent's.

Both have the same connection in mind, and the wall has one. In the child it is destroyed, so that
programs hear of it at once: they would not by themselves as long as they send nothing, for nobody
is there who could tell them. The parent notices nothing, being on another wire.
"""

import errno
import socket
import struct

from torpor.guest.card import ADDRESS
from torpor.guest.netlink import ask, listed

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY, SOCK_DESTROY = 20, 21  # linux/sock_diag.h
ID = 48
"""Bytes of ``struct inet_diag_sockid``: two ports, two addresses of 16 bytes, the card's number and
a cookie of 8."""
LISTENING, ALL = 1 << 10, 0xFFF
"""States of TCP as bits (``net/tcp_states.h``)."""
CONNECTED = 1 << 1
"""The state of a socket of UDP that has a peer."""
PROTOCOLS = ((socket.IPPROTO_TCP, ALL & ~LISTENING), (socket.IPPROTO_UDP, CONNECTED))

_HERE = socket.inet_aton(ADDRESS)
_FORMS = {
    socket.AF_INET: _HERE + bytes(12),
    socket.AF_INET6: bytes(10) + b"\xff\xff" + _HERE,  # an IPv6 socket that speaks IPv4
}


def destroy_inherited() -> int:
    """Destroy the connections over the machine's card, and return how many there were. Those within
    the machine stay. Raises OSError."""
    destroyed = 0
    with socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG
    ) as diag:
        for family, here in _FORMS.items():
            for protocol, states in PROTOCOLS:
                wanted = struct.pack("BBBxI", family, protocol, 0, states)
                found = list(listed(diag, SOCK_DIAG_BY_FAMILY, wanted + bytes(ID)))
                for each in found:
                    ident = each[4 : 4 + ID]
                    if ident[4:20] != here or ident[20:36] == here:
                        continue
                    try:
                        ask(diag, SOCK_DESTROY, 0, wanted + ident)
                        destroyed += 1
                    except OSError as error:
                        if error.errno != errno.ENOENT:  # it has gone by itself meanwhile
                            raise
    return destroyed
