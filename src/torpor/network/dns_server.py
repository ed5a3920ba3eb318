"""Serves a machine's DNS on the sockets of its link, whatever address it asks.

Any resolver that a machine asks is this one, so answers over UDP must come from the address that
was asked: the kernel tells it with each datagram, and is told it with each answer (IP_PKTINFO,
ip(7)).
"""

import asyncio
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

Answer = Callable[[bytes, bool], Awaitable[bytes | None]]
"""Returns the answer to a query; the second argument says whether it came over UDP."""

MOST_AT_ONCE: Final = 128
"""Queries of one machine that are being answered; over UDP others are dropped meanwhile."""
CONNECTIONS: Final = 16
IDLE: Final = 10.0
"""Seconds that a connection may be silent, or take for a query."""
LIFETIME: Final = 120.0
"""Seconds that a connection may live."""
_LONGEST_DATAGRAM: Final = 65_535
_DATAGRAMS_AT_ONCE: Final = 64
"""After so many the loop has its turn."""
IP_PKTINFO: Final = 8
"""From linux/in.h; Python's socket module has it from 3.14 on."""
_PKTINFO: Final = struct.Struct("=i4s4s")
"""struct in_pktinfo: index of the interface, local address, destination of the datagram."""


class Pace:
    """How often something may be: ``per_second``, and twice as much at once after a rest."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._left = 2 * per_second
        self._at = clock()

    def take(self) -> bool:
        """Take one turn; say whether there was one left."""
        now = self._clock()
        since, self._at = now - self._at, now
        self._left = min(2 * self._per_second, self._left + since * self._per_second)
        if self._left < 1:
            return False
        self._left -= 1
        return True


class DnsServer:
    """Serves the queries of one machine.

    ``udp`` is bound, and has IP_PKTINFO set; ``tcp`` listens. Both stay the caller's to close.
    Queries beyond ``pace`` are dropped over UDP, and end the connection over TCP.
    """

    def __init__(self, udp: socket.socket, tcp: socket.socket, answer: Answer, pace: Pace) -> None:
        udp.setblocking(False)
        tcp.setblocking(False)
        self._udp = udp
        self._tcp = tcp
        self._answer = answer
        self._pace = pace
        self._at_once = asyncio.Semaphore(MOST_AT_ONCE)
        self._connections = asyncio.Semaphore(CONNECTIONS)

    async def run(self) -> None:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._datagrams(tasks))
            tasks.create_task(self._accept(tasks))

    # UDP

    async def _datagrams(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            await _readable(self._udp)
            for _ in range(_DATAGRAMS_AT_ONCE):
                try:
                    query, ancillary, _, sender = self._udp.recvmsg(
                        _LONGEST_DATAGRAM, socket.CMSG_SPACE(_PKTINFO.size)
                    )
                except BlockingIOError:
                    break
                except OSError:
                    # What an ICMP message says of an answer of before.
                    continue
                if self._pace.take() and not self._at_once.locked():
                    await self._at_once.acquire()
                    tasks.create_task(self._datagram(query, _asked_address(ancillary), sender))
            await asyncio.sleep(0)

    async def _datagram(self, query: bytes, asked: bytes, sender: tuple[str, int]) -> None:
        try:
            answer = await self._answer(query, True)
        finally:
            self._at_once.release()
        if answer is None:
            return
        source = (socket.IPPROTO_IP, IP_PKTINFO, _PKTINFO.pack(0, asked, bytes(4)))
        # A full queue, or a machine that is gone: it asks again.
        with suppress(OSError):
            self._udp.sendmsg([answer], [source], 0, sender)

    # TCP

    async def _accept(self, tasks: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._connections.acquire()
            try:
                connection, _ = await loop.sock_accept(self._tcp)
            except OSError:
                # The connection is gone already, or descriptors are used up for now.
                self._connections.release()
                await asyncio.sleep(0.1)
                continue
            except BaseException:
                self._connections.release()
                raise
            tasks.create_task(self._connection(connection))

    async def _connection(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError, TimeoutError, EOFError):
                connection.setblocking(False)
                async with asyncio.timeout(LIFETIME):
                    while await self._message(connection):
                        pass
        finally:
            self._connections.release()

    async def _message(self, connection: socket.socket) -> bool:
        """Answer one query; say whether another may follow."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(IDLE):
            length = int.from_bytes(await _exactly(connection, 2))
            query = await _exactly(connection, length)
        if not self._pace.take():
            return False
        async with self._at_once:
            answer = await self._answer(query, False)
        if answer is None:
            return False
        async with asyncio.timeout(IDLE):
            await loop.sock_sendall(connection, len(answer).to_bytes(2) + answer)
        return True


def _asked_address(ancillary: list[tuple[int, int, bytes]]) -> bytes:
    """Return the address that a datagram was sent to; any (0.0.0.0) if the kernel did not say."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.IPPROTO_IP, IP_PKTINFO):
            return bytes(_PKTINFO.unpack_from(data)[2])
    return bytes(4)


async def _exactly(connection: socket.socket, count: int) -> bytes:
    """Read so many bytes. Raises EOFError if there are fewer."""
    loop = asyncio.get_running_loop()
    read = bytearray()
    while len(read) < count:
        piece = await loop.sock_recv(connection, count - len(read))
        if not piece:
            raise EOFError
        read += piece
    return bytes(read)


async def _readable(listening: socket.socket) -> None:
    """Wait until a socket has something to read."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def ready() -> None:
        if not future.done():
            future.set_result(None)

    loop.add_reader(listening, ready)
    try:
        await future
    finally:
        loop.remove_reader(listening)
