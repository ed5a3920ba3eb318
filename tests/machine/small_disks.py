"""Disks that fill."""

import contextlib
import os
from pathlib import Path


def fill(disk: Path, leave: int) -> Path:
    space = os.statvfs(disk)
    ballast = disk / "ballast"
    with ballast.open("wb") as opened:
        os.posix_fallocate(opened.fileno(), 0, space.f_bavail * space.f_frsize - leave)
    return ballast


def fill_up(disk: Path) -> Path:
    rest = disk / "rest"
    with rest.open("wb", buffering=0) as opened, contextlib.suppress(OSError):
        while True:
            opened.write(bytes(4096))
    return rest
