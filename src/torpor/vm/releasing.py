"""How a machine that is held goes on: when there is space, and with its processes running."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from torpor.vm.errors import HeldError, VmError
from torpor.vm.holding import Holding, until_space

AGAIN = 1.0
"""Seconds after which a guest that did not take up its processes is asked once more."""

log = logging.getLogger(__name__)


class Release:
    """Lets one machine go on.

    ``cont`` lets its vCPUs run, ``resume`` its guest's processes; either only while nothing else is
    done with the machine (``exclusive``).
    """

    def __init__(
        self,
        machine: str,
        directory: Path,
        holding: Holding,
        exclusive: asyncio.Lock,
        cont: Callable[[], Awaitable[None]],
        resume: Callable[[], Awaitable[None]],
    ) -> None:
        self._machine = machine
        self._directory = directory
        self._holding = holding
        self._exclusive = exclusive
        self._cont = cont
        self._resume = resume
        self._releasing: asyncio.Task[None] | None = None
        self._resuming: asyncio.Task[None] | None = None

    def hold(self) -> None:
        """Note that QEMU has stopped the machine for want of space, and let it go on when there is
        some."""
        self._holding.begin(self._machine, self._directory)
        if self._releasing is None or self._releasing.done():
            self._releasing = asyncio.create_task(self._release(), name="held for space")

    async def _release(self) -> None:
        while self._holding.why is not None:
            await until_space(self._directory)
            async with self._exclusive:
                self._holding.end()  # a write that fails again is told again
                try:
                    await self._cont()
                except VmError:
                    self._holding.begin(self._machine, self._directory)

    async def wait_for_space(self) -> None:
        """Return when there is space; until then the machine, which need not run, counts as
        held."""
        self._holding.begin(self._machine, self._directory)
        try:
            await until_space(self._directory)
        finally:
            self._holding.end()

    def resume_later(self) -> None:
        """Have the guest take up its processes again, as soon as the machine is not held."""
        if self._resuming is None or self._resuming.done():
            self._resuming = asyncio.create_task(self._take_up(), name="taking up again")

    async def _take_up(self) -> None:
        while True:
            await self._holding.over()
            try:
                async with self._exclusive:  # not in the middle of another freeze
                    await self._resume()
                return
            except HeldError:
                continue
            except VmError as error:
                log.warning("the processes of machine %s rest: %s", self._machine, error)
                await asyncio.sleep(AGAIN)

    def close(self) -> None:
        """Do nothing more; what is held stays so."""
        for task in (self._releasing, self._resuming):
            if task is not None:
                task.cancel()
