"""What is left of machines that came to nothing and could not be ended: it is tried again."""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from torpor.vm.errors import VmError, told

FIRST, SLOWEST = 1.0, 60.0
"""Seconds before something is tried again: the pause doubles each time."""

log = logging.getLogger(__name__)


async def until_done(do: Callable[[], Awaitable[bool]], stop: asyncio.Event | None = None) -> bool:
    """Do something again and again, until it says that it is done: soon at first, then more slowly.
    Return whether it was done, and not left when ``stop`` was set."""
    stop = stop or asyncio.Event()
    pause = FIRST
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), pause)
            break
        if await do():
            return True
        pause = min(2 * pause, SLOWEST)
    return False


class Leftovers:
    """Removes what is left of machines in the background. ``end`` ends all processes of the machine
    with a name."""

    def __init__(self, end: Callable[[str], Awaitable[bool]]) -> None:
        self._end = end
        self._tasks: set[asyncio.Task[bool]] = set()

    async def clean(self, name: str, directory: Path) -> None:
        """End the processes of the machine ``name`` and remove its directory; if that cannot be
        now, later."""
        if not await self._clean(name, directory):
            task = asyncio.create_task(
                until_done(lambda: self._clean(name, directory)), name=f"ending {name}"
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _clean(self, name: str, directory: Path) -> bool:
        try:
            await self._end(name)
        except (VmError, OSError) as error:
            log.warning("machine %s cannot be ended, which is tried again: %s", name, told(error))
            return False
        shutil.rmtree(directory, ignore_errors=True)
        return True

    async def close(self) -> None:
        """Try no more; whoever opens the host next does."""
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks, return_exceptions=True)
