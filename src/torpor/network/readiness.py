"""Waiting for sockets on the event loop, and what is told of them by the kernel.

asyncio's own ``sock_recv_into`` and ``sock_sendall`` do the same, but nothing can come between two
pieces of what they send, and nobody knows how much of it was sent when they are cut off.
"""

import array
import asyncio
import contextlib
import fcntl
import select
import socket
import struct
import termios
from collections.abc import Iterator

_ESTABLISHED, _CLOSED = 1, 7
_RTO_MAX_MS = 44
"""TCP_RTO_MAX_MS, since Linux 6.15 (linux/tcp.h)."""
_LINGER = struct.Struct("ii")
_LONGEST_MS = (1 << 31) - 1


async def readable(sock: socket.socket) -> None:
    """Wait until there is something to read, or an end, or an error."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(sock.fileno(), _done, ready)
    try:
        await ready
    finally:
        loop.remove_reader(sock.fileno())


async def writable(sock: socket.socket) -> None:
    """Wait until something can be written."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_writer(sock.fileno(), _done, ready)
    try:
        await ready
    finally:
        loop.remove_writer(sock.fileno())


async def either_readable(one: socket.socket, other: socket.socket) -> socket.socket:
    """Wait for the first of two sockets at which there is something to read; the first of them if
    there is at both."""
    if (found := _readable_now(one, other)) is not None:
        return found
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(one.fileno(), _done, ready)
    loop.add_reader(other.fileno(), _done, ready)
    try:
        await ready
    finally:
        loop.remove_reader(one.fileno())
        loop.remove_reader(other.fileno())
    return _readable_now(one, other) or other


def _readable_now(one: socket.socket, other: socket.socket) -> socket.socket | None:
    look = select.poll()  # select(2) knows no descriptors from 1024 on
    look.register(one, select.POLLIN)
    look.register(other, select.POLLIN)
    ready = {fd for fd, _ in look.poll(0)}
    return one if one.fileno() in ready else other if other.fileno() in ready else None


def _done(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


def prepare(sock: socket.socket) -> None:
    """Make a connected socket one that waits for nothing, and whose end is told as a reset unless
    it comes in order: also when this process is killed, so that no half of a transfer looks whole
    to whoever reads it."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER.pack(1, 0))


def outlast_sleep(sock: socket.socket, seconds: float) -> None:
    """Have a connection to a machine outlast its sleep, with what was sent and not taken before it:
    for so many seconds, and sent again within two once it is awake, not within the two minutes that
    the kernel takes after many tries."""
    limit = min(int(seconds * 1000), _LONGEST_MS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit)
    with contextlib.suppress(OSError):  # an older kernel
        sock.setsockopt(socket.IPPROTO_TCP, _RTO_MAX_MS, 2000)


def keep_alive(sock: socket.socket) -> None:
    """Notice within five minutes that the other side of a connection is gone."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 120)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6)


def close_in_order(sock: socket.socket) -> None:
    """Close a connection so that the other side gets what was sent, and an end and no reset."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER.pack(0, 0))
    sock.close()


@contextlib.contextmanager
def in_order(sock: socket.socket) -> Iterator[socket.socket]:
    """Close a connection in order at the end of what is done with it; with a reset if that fails
    or is cut off."""
    try:
        yield sock
    except BaseException:
        sock.close()
        raise
    close_in_order(sock)


def has_ended(sock: socket.socket) -> bool:
    """Say whether the other side of a connection sends no more."""
    return _state(sock) != _ESTABLISHED


def _state(sock: socket.socket) -> int:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def unacknowledged(sock: socket.socket) -> int:
    """Return how many bytes that were written the other side's kernel has not taken yet, and may
    yet take: the end of a connection counts as one."""
    if _state(sock) == _CLOSED:
        return 0
    count = array.array("i", [0])
    fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, count)  # SIOCOUTQ has the same number
    return count[0]
