"""What files take on disk, told apart from what they promise."""

import contextlib
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path


def store_files(root: Path) -> Iterator[Path]:
    """Yield all paths in the parts of a store; a home may hold other things beside them."""
    for part in ("snapshots", "bases", "layers", "imports"):
        yield from (root / part).rglob("*")


def free_bytes(place: Path) -> int:
    """Return what is free on the disk of ``place`` for whoever is not root. Raises OSError."""
    disk = os.statvfs(place)
    return disk.f_bavail * disk.f_frsize


def stored_bytes(files: Iterable[Path]) -> int:
    """Return the bytes that files take on disk, each inode once."""
    inodes = {}
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            status = file.lstat()
            if stat.S_ISREG(status.st_mode):
                inodes[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(inodes.values())


def unshared_bytes(files: Iterable[Path]) -> int:
    """Return the bytes on disk that would be free without ``files``: those of no other hard
    link."""
    links: Counter[tuple[int, int]] = Counter()
    total = 0
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            status = file.lstat()
            if not stat.S_ISREG(status.st_mode):
                continue
            links[status.st_dev, status.st_ino] += 1
            if links[status.st_dev, status.st_ino] == status.st_nlink:
                total += status.st_blocks * 512
    return total
