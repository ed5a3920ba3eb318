"""A machine's end of a wire, without a machine: a network namespace with a card like one's.

Run as `python other_end.py SOCKET`. Sends the descriptor of its tap over it, and then a socket made
in its namespace for each "family kind protocol" that it is asked for.
"""

import ctypes
import fcntl
import os
import socket
import struct
import sys

from torpor.guest import network
from torpor.guest.card import MAC
from torpor.network.link.build import (
    IFF_NO_PI,
    IFF_TAP,
    IFF_VNET_HDR,
    TUNSETIFF,
    make_namespaces,
    write,
)

NAME = "eth0"
SIOCSIFHWADDR = 0x8924
SIOCGIFFLAGS, SIOCSIFFLAGS = 0x8913, 0x8914


def main(mouth: socket.socket) -> None:
    """Be the other end until ``mouth`` is closed."""
    make_namespaces()
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", NAME.encode(), flags))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        mac = bytes.fromhex(MAC.replace(":", ""))
        request = struct.pack("16sH6s16x", NAME.encode(), 1, mac)
        fcntl.ioctl(any_socket, SIOCSIFHWADDR, request)
        lo = bytearray(struct.pack("16sH22x", b"lo", 0))
        fcntl.ioctl(any_socket, SIOCGIFFLAGS, lo)
        lo[16] |= 1
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, lo)
    write("/proc/sys/net/ipv4/ping_group_range", "1 1")  # its only group
    network.find = lambda: NAME  # /sys is that of the namespace in which it was mounted
    network.set_up()
    socket.send_fds(mouth, [b"tap"], [tap])
    while wanted := mouth.recv(256):
        made = socket.socket(*map(int, wanted.split()))
        socket.send_fds(mouth, [b"socket"], [made.fileno()])
        made.close()


if __name__ == "__main__":
    assert ctypes
    main(socket.socket(fileno=int(sys.argv[1])))
