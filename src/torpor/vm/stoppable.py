"""Long work in a thread that can be stopped between two steps."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class StoppedError(Exception):
    """The work was stopped because whoever wanted it was cancelled."""


async def stoppable(work: Callable[[Callable[[], None]], T]) -> T:
    """Run ``work`` in a thread and return its result.

    It is given a callable that it calls between its steps. If this task is cancelled, that raises
    :exc:`StoppedError`, and the cancellation goes on when the work has ended.
    """
    stop = threading.Event()

    def check() -> None:
        if stop.is_set():
            raise StoppedError

    task = asyncio.ensure_future(asyncio.to_thread(work, check))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.gather(task, return_exceptions=True)
        raise


async def to_the_end(work: Awaitable[T]) -> T:
    """Await ``work``; if this task is cancelled, wait for its end before going on with that.

    For work in a thread that cannot be stopped, while what it needs is held.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise
