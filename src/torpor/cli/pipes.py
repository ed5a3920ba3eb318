"""Reading and writing the standard streams of a command line without holding up its event loop."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator

from torpor.cli.terminal import write_all

PIECE = 64 << 10


async def read(descriptor: int) -> AsyncIterator[bytes]:
    """Yield what comes on a descriptor, up to its end, a piece when the one before is done with.

    Nothing is read that is not asked for, and no thread is left waiting for what nobody gives.
    """
    while True:
        await _readable(descriptor)
        try:
            piece = os.read(descriptor, PIECE)
        except BlockingIOError:
            continue  # somebody who shares it was faster
        except OSError as error:
            if error.errno == errno.EIO:
                return  # the terminal has gone away
            raise
        if not piece:
            return
        yield piece


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    try:
        loop.add_reader(descriptor, _set, ready)
    except PermissionError:
        return  # a file, or /dev/null: epoll has no use for what is always readable
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


def _set(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


async def write(descriptor: int, data: bytes) -> None:
    """Write all of it, in a thread: a reader may be slow, and the loop has other things to do."""
    await asyncio.to_thread(write_all, descriptor, data)
