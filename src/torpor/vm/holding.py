"""A machine that is held: QEMU has stopped it, because the host's disk has no room for a write of
its, and tries the write again when the machine is let go on."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from torpor.vm.errors import HeldError
from torpor.vm.sizes import free_bytes

Result = TypeVar("Result")

SPACE = 64 << 20
"""Bytes that must be free before a held machine is let go on."""
SPACE_POLL = 1.0
"""Seconds between two looks for free space."""


class Holding:
    """Whether one machine is held, for all who wait for something of it."""

    def __init__(self) -> None:
        self.why: str | None = None
        """The reason in a few words, or None if it is not held."""
        self._machine = ""
        self._watchers: list[Callable[[], None]] = []
        self._begun, self._over = asyncio.Event(), asyncio.Event()
        self._over.set()

    def begin(self, machine: str, directory: Path) -> None:
        """Note that the machine is held, and tell all who watch."""
        if self.why is None:
            self.why = f"the host's disk is full ({directory})"
            self._machine = machine
            self._over.clear()
            self._begun.set()
            self._tell()

    def end(self) -> None:
        """Note that it goes on, and tell all who watch."""
        if self.why is not None:
            self.why = None
            self._begun.clear()
            self._over.set()
            self._tell()

    def error(self) -> HeldError | None:
        """Return a new error that says why nothing can be had of the machine, None if it goes."""
        if self.why is None:
            return None
        return HeldError(
            f"Machine {self._machine} is held: {self.why}.",
            state="It goes on by itself when there is space; what was under way may be done then.",
            todo="Make space.",
        )

    def check(self) -> None:
        """Raise :exc:`HeldError` if it is held."""
        error = self.error()
        if error is not None:
            raise error

    async def over(self) -> None:
        """Return when it is not held."""
        await self._over.wait()

    async def unless_held(self, wanted: Coroutine[Any, Any, Result]) -> Result:
        """Await ``wanted``, or raise :exc:`HeldError` as soon as the machine is held."""
        task = asyncio.ensure_future(wanted)
        held = asyncio.ensure_future(self._begun.wait())
        try:
            await asyncio.wait({task, held}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self.check()
            return await task
        finally:
            for each in (task, held):
                each.cancel()
            await asyncio.gather(task, held, return_exceptions=True)

    def watch(self, call: Callable[[], None]) -> None:
        """Call ``call`` at each change, until :meth:`unwatch`."""
        self._watchers.append(call)

    def unwatch(self, call: Callable[[], None]) -> None:
        """Call ``call`` no more."""
        if call in self._watchers:
            self._watchers.remove(call)

    def _tell(self) -> None:
        for call in list(self._watchers):
            call()


async def until_space(directory: Path) -> None:
    """Return when there is space again on the disk of ``directory``; not at once."""
    while True:
        await asyncio.sleep(SPACE_POLL)
        if free_bytes(directory) > SPACE:
            return
