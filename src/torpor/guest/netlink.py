"""Messages of netlink(7), one at a time."""

import os
import socket
import struct
from collections.abc import Iterator

REQUEST, ACK, DUMP = 0x01, 0x04, 0x300  # linux/netlink.h
ERROR, DONE = 2, 3
HEADER = struct.Struct("IHHII")
"""Length with it, type, flags, sequence, port."""
_PIECE = 1 << 16


def attribute(kind: int, value: bytes) -> bytes:
    """Return an attribute with its padding."""
    length = 4 + len(value)
    return struct.pack("HH", length, kind) + value + bytes(-length % 4)


def ask(netlink: socket.socket, kind: int, flags: int, body: bytes) -> None:
    """Have the kernel do something. Raises OSError if it does not."""
    length = HEADER.size + len(body)
    netlink.send(HEADER.pack(length, kind, flags | REQUEST | ACK, 0, 0) + body)
    (number,) = struct.unpack_from("i", netlink.recv(_PIECE), HEADER.size)
    if number:
        raise OSError(-number, os.strerror(-number))


def listed(netlink: socket.socket, kind: int, body: bytes) -> Iterator[bytes]:
    """Ask for a list, and yield the body of each entry. Raises OSError."""
    length = HEADER.size + len(body)
    netlink.send(HEADER.pack(length, kind, REQUEST | DUMP, 0, 0) + body)
    while True:
        data = netlink.recv(_PIECE)
        at = 0
        while at < len(data):
            size, said, _, _, _ = HEADER.unpack_from(data, at)
            if said == DONE:
                return
            if said == ERROR:
                (number,) = struct.unpack_from("i", data, at + HEADER.size)
                raise OSError(-number, os.strerror(-number))
            yield data[at + HEADER.size : at + size]
            at += size + -size % 4
