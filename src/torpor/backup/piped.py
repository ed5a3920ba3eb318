"""What a thread writes, as pieces for coroutines: held up when nobody takes them."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any, BinaryIO, cast

from torpor.vm.stoppable import StoppedError

AHEAD = 4
"""Pieces that wait at most."""


async def piped(
    work: Callable[[BinaryIO, Callable[[], None]], object],
) -> AsyncGenerator[bytes, None]:
    """Run ``work`` in a thread and yield what it writes.

    It is given what to write to, and a callable to call between its steps, which raises
    :exc:`StoppedError` when nobody wants the rest. An error of it comes behind what it has written.
    """
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes] = asyncio.Queue(AHEAD)
    out = _Pipe(loop, pieces)
    task = asyncio.ensure_future(asyncio.to_thread(work, cast("BinaryIO", out), out.check))
    try:
        while not task.done() or not pieces.empty():
            coming = asyncio.ensure_future(pieces.get())
            await asyncio.wait({coming, task}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)
            if not coming.cancelled():
                yield coming.result()
        task.result()
    finally:
        out.stop()
        while not task.done():
            while not pieces.empty():
                pieces.get_nowait()
            await asyncio.wait({task}, timeout=0.05)
        if not task.cancelled():
            task.exception()


class _Pipe:
    """Where the thread writes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pieces: "asyncio.Queue[bytes]") -> None:
        self._loop = loop
        self._pieces = pieces
        self._stopped = threading.Event()

    def write(self, data: Any) -> int:
        """Hand on a piece; wait until there is room for it."""
        self.check()
        piece = bytes(data)
        asyncio.run_coroutine_threadsafe(self._pieces.put(piece), self._loop).result()
        return len(piece)

    def flush(self) -> None:
        """Do nothing: no piece is held back."""

    def check(self) -> None:
        """Raise :exc:`StoppedError` if nobody wants the rest."""
        if self._stopped.is_set():
            raise StoppedError

    def stop(self) -> None:
        """Have the thread end soon."""
        self._stopped.set()
