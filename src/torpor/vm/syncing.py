"""What is written, forced to the disk."""

import os
from pathlib import Path


def fsync(path: Path) -> None:
    """Force a file or directory to disk. Blocks; raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
