"""Work that goes on by itself, and is waited for in the end."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

logger = logging.getLogger("torpor.sessions")


class Tasks:
    """The tasks of one program, none of which is forgotten: :meth:`close` returns only when all
    have ended."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Begin ``work``, for somebody who is going to await the task."""
        task = asyncio.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def background(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Begin ``work`` that nobody is going to wait for: what goes wrong is logged."""
        task = self.start(work, name)
        task.add_done_callback(_tell)
        return task

    async def whole(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Do ``work`` to its end and return its result, even if who asked for it goes away."""
        task = self.start(work, name)
        try:
            return await asyncio.shield(task)
        finally:
            if not task.done():
                task.add_done_callback(_tell)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)

    async def close(self, *, cancel: bool = False) -> None:
        """Wait for all that is under way; with ``cancel``, end it."""
        while self._running:
            for task in self._running if cancel else ():
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)


def _tell(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s failed", task.get_name(), exc_info=error)
