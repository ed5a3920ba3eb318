"""IPv4 packets to a machine that no socket of ours could send: datagrams from addresses that are
not ours, and the message that nobody listens at a port (RFC 791, 768, 792)."""

import struct
from ipaddress import IPv4Address

MTU = 1500
LARGEST = 65507
"""Bytes of a datagram."""

_IP = struct.Struct("!BBHHHBBH4s4s")
_UDP = struct.Struct("!HHHH")
_ICMP = struct.Struct("!BBHI")
_ICMP_PROTOCOL, _UDP_PROTOCOL = 1, 17
_UNREACHABLE, _PORT = 3, 3
_MORE = 0x2000

Place = tuple[IPv4Address, int]
"""An address and a port."""


def datagram(source: Place, to: Place, data: bytes, number: int) -> list[bytes]:
    """Return a datagram as packets, more than one if it must be cut into pieces. ``number`` tells
    the pieces of different ones apart."""
    header = _UDP.pack(source[1], to[1], _UDP.size + len(data), 0)
    pseudo = source[0].packed + to[0].packed + struct.pack("!BBH", 0, _UDP_PROTOCOL, 8 + len(data))
    # None would be said by zero (RFC 768).
    checksum = _checksum(pseudo + header + data) or 0xFFFF
    whole = header[:6] + struct.pack("!H", checksum) + data
    size = (MTU - _IP.size) // 8 * 8
    packets = []
    for place in range(0, len(whole), size):
        piece = whole[place : place + size]
        more = _MORE if place + size < len(whole) else 0
        head = _header(source[0], to[0], _UDP_PROTOCOL, len(piece), number, more | place // 8)
        packets.append(head + piece)
    return packets


def nobody_listens(source: Place, to: Place) -> bytes:
    """Return the message that a datagram from ``to`` to ``source`` found nobody."""
    quoted = _header(to[0], source[0], _UDP_PROTOCOL, _UDP.size, 0, 0)
    quoted += _UDP.pack(to[1], source[1], _UDP.size, 0)
    message = _ICMP.pack(_UNREACHABLE, _PORT, 0, 0) + quoted
    message = message[:2] + struct.pack("!H", _checksum(message)) + message[4:]
    return _header(source[0], to[0], _ICMP_PROTOCOL, len(message), 0, 0) + message


def _header(
    source: IPv4Address, to: IPv4Address, protocol: int, length: int, number: int, fragment: int
) -> bytes:
    # The kernel puts the checksum in (raw(7)), but not into one that is quoted.
    fields = (0x45, 0, _IP.size + length, number & 0xFFFF, fragment, 64, protocol)
    header = _IP.pack(*fields, 0, source.packed, to.packed)
    return _IP.pack(*fields, _checksum(header), source.packed, to.packed)


def _checksum(data: bytes) -> int:
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
