"""Which protocols a machine offers in its ClientHello (ALPN, RFC 7301), without taking it from the
socket: TLS is what reads it."""

import asyncio
import socket
import struct

MOST = 64 << 10
"""Bytes of a ClientHello, of all its records."""
LOOK_AGAIN_SECONDS = 0.005
ALPN = 16


async def offered_protocols(sock: socket.socket) -> tuple[str, ...]:
    """Return the protocols that are offered, in the machine's order; none if it offers none.

    Raises ValueError if it is no ClientHello, and :exc:`OSError`. Whoever calls sets a time limit.
    """
    loop = asyncio.get_running_loop()
    while True:
        await _readable(loop, sock)
        seen = sock.recv(MOST + 1, socket.MSG_PEEK)
        hello = _hello(seen)
        if hello is not None:
            return _protocols(hello)
        if not seen or len(seen) > MOST:
            raise ValueError("the ClientHello has no end")
        # What was peeked stays readable: waiting for "readable" again would return at once.
        await asyncio.sleep(LOOK_AGAIN_SECONDS)


async def _readable(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    ready = asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)


def _hello(seen: bytes) -> bytes | None:
    """Return the body of the ClientHello in the records that were seen; None if more must come."""
    joined, at = b"", 0
    while at < len(seen):
        if seen[at] != 22:
            raise ValueError("it does not begin with a handshake")
        if at + 5 > len(seen):
            return None
        (length,) = struct.unpack_from("!H", seen, at + 3)
        joined += seen[at + 5 : at + 5 + length]
        at += 5 + length
        if joined and joined[0] != 1:
            raise ValueError("it does not begin with a ClientHello")
        if len(joined) >= 4 and len(joined) >= 4 + (size := int.from_bytes(joined[1:4], "big")):
            return joined[4 : 4 + size]
    return None


def _protocols(hello: bytes) -> tuple[str, ...]:
    try:
        at = 2 + 32  # version and random number
        at += 1 + hello[at]  # session
        at += 2 + int.from_bytes(hello[at : at + 2], "big")  # cipher suites
        at += 1 + hello[at]  # compression
        at += 2  # length of the extensions
        while at + 4 <= len(hello):
            kind, length = struct.unpack_from("!HH", hello, at)
            if kind == ALPN:
                return tuple(_names(hello[at + 6 : at + 4 + length]))
            at += 4 + length
    except (IndexError, struct.error) as error:
        raise ValueError("the ClientHello is cut off") from error
    return ()


def _names(listed: bytes) -> list[str]:
    names, at = [], 0
    while at < len(listed):
        length = listed[at]
        names.append(listed[at + 1 : at + 1 + length].decode("latin-1"))
        at += 1 + length
    return names
