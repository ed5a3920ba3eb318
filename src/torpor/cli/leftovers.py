"""Laboratories that a killed program has left: found, and ended."""

import asyncio
import fcntl
import os
import shutil
from pathlib import Path

from torpor.images import Maker
from torpor.vm import Host


def leftovers(home: Path) -> list[Path]:
    """Return the directories of laboratories in ``home`` that no program has open any more.

    One without a lock is just being made, and is not among them.
    """
    try:
        return [lab for lab in sorted(home.glob("lab-*")) if _abandoned(lab / "host.lock")]
    except OSError:
        return []


def _abandoned(lock: Path) -> bool:
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


async def end(lab: Path, maker: Maker) -> None:
    """End what runs in an abandoned laboratory and remove it. Raises :exc:`torpor.vm.VmError`."""
    host = await Host.open(lab, maker.accelerator, maker.jail, golden=maker.store())
    try:
        machines = list(host.machines.values())
        await asyncio.gather(*(host.end(machine) for machine in machines))
    finally:
        await host.close()
    shutil.rmtree(lab, ignore_errors=True)
