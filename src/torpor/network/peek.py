"""Looking at what a machine says on a connection without taking it, so that whatever serves the
connection afterwards finds it untouched."""

import asyncio
import socket
from collections.abc import Callable
from typing import TypeVar

from torpor.network.readiness import has_ended, readable

AGAIN = 0.005
"""Seconds until the next look when the kernel has woken us for nothing."""

T = TypeVar("T")


async def peek(sock: socket.socket, find: Callable[[bytes, bool], T | None], most: int) -> T | None:
    """Look at what comes until ``find``, which is told it all and whether that is all that there
    will be, finds something in it. None if it does not find anything in ``most`` bytes or to the
    end. Sets no time limit."""
    seen = 0
    try:
        while True:
            try:
                data = sock.recv(most, socket.MSG_PEEK)
            except BlockingIOError:
                await readable(sock)
                continue
            ended = not data or (len(data) == seen and has_ended(sock))
            found = find(data, ended or len(data) >= most)
            if found is not None or ended or len(data) >= most:
                return found
            # Readable alone would be true at once: what was seen lies there still. Woken by more
            # than that; and, when the kernel is short of memory for what is received, by nothing
            # new at all (tcp_data_ready in net/ipv4/tcp_input.c), and then again and again.
            if len(data) == seen:
                await asyncio.sleep(AGAIN)
            else:
                seen = len(data)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, seen + 1)
            await readable(sock)
    finally:
        if seen and sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
