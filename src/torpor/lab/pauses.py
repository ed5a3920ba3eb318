"""A pause, as a user has it: freeze, the machine is gone, thaw."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from torpor.vm import Host, Machine, Wanted


@dataclass(frozen=True)
class Pause:
    """One pause. ``machine`` is the one after it.

    ``began`` is the wall clock when the freeze had ended, ``ended`` when the thaw began, in ns.
    """

    machine: Machine
    began: int
    ended: int


async def pause(
    host: Host,
    machine: Machine,
    seconds: float = 0.0,
    *,
    clock: Callable[[], int] = time.time_ns,
) -> Pause:
    """Freeze ``machine``, wait with nothing running, thaw; the snapshot is removed afterwards."""
    frozen = await host.freeze(machine, Wanted("stop"))
    began = clock()
    await asyncio.sleep(seconds)
    ended = clock()
    thawed = await host.thaw(frozen.manifest.id)
    await host.remove(frozen.manifest.id)
    return Pause(thawed, began, ended)
