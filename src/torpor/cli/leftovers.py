"""Laboratories that a killed program has left: found, and ended."""

import asyncio
import fcntl
import os
import shutil
from pathlib import Path
from typing import Literal

from torpor.images import Maker
from torpor.vm import Host


def leftovers(home: Path) -> list[Path]:
    """Return the directories of laboratories in ``home`` that no program has open any more.

    One without a lock is just being made, and is not among them. A soak, while its laboratory is
    open, lets go of its second directory now and then.
    """
    try:
        labs, soaks = sorted(home.glob("lab-*")), sorted(home.glob("soak-*"))
    except OSError:
        return []
    if any(_lock_of(lab) == "held" for lab in labs):
        soaks = []
    return [each for each in labs + soaks if _lock_of(each) == "free"]


def _lock_of(directory: Path) -> Literal["missing", "free", "held"]:
    try:
        fd = os.open(directory / "host.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return "missing"
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "held"
    finally:
        os.close(fd)
    return "free"


async def end(lab: Path, maker: Maker) -> None:
    """End what runs in an abandoned laboratory and remove it. Raises :exc:`torpor.vm.VmError`."""
    host = await Host.open(
        lab, maker.accelerator, maker.jail, golden=maker.store(), kernels=maker.kernels
    )
    try:
        machines = list(host.machines.values())
        await asyncio.gather(*(host.end(machine) for machine in machines))
    finally:
        await host.close()
    shutil.rmtree(lab, ignore_errors=True)
