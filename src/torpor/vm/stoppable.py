"""Long work in a thread that can be stopped between two steps."""

import asyncio
import threading
from collections.abc import Callable
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
