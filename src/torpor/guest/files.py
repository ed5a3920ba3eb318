"""Reading and writing files of the machine, in pieces that fit a frame."""

import os
import stat
from typing import Any

MAX_PIECE = 512 << 10
"""Largest piece of a file in one request or reply, in bytes."""


def read(wanted: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Return a piece of the file ``path`` from ``offset``: at most ``size`` bytes. Raises
    OSError."""
    fd = os.open(wanted["path"], os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        kind = os.fstat(fd)
        if stat.S_ISDIR(kind.st_mode):
            raise IsADirectoryError(21, "a directory", wanted["path"])
        data = os.pread(fd, min(int(wanted["size"]), MAX_PIECE), int(wanted["offset"]))
        return {"size": kind.st_size}, data
    finally:
        os.close(fd)


def write(wanted: dict[str, Any], data: bytes) -> dict[str, Any]:
    """Write ``data`` at ``offset`` of ``path``, made with ``mode`` if it is not there.

    ``truncate`` empties the file first; ``parents`` makes missing directories. Raises OSError.
    """
    path = wanted["path"]
    if wanted.get("parents"):
        os.makedirs(os.path.dirname(path) or "/", exist_ok=True)
    # Without O_NONBLOCK a FIFO that nobody reads would hold the agent for ever.
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    if wanted.get("truncate"):
        flags |= os.O_TRUNC
    mode = int(wanted.get("mode", 0o644))
    try:
        fd = os.open(path, flags | os.O_EXCL, mode)
        os.fchmod(fd, mode)  # whatever the umask
    except FileExistsError:
        fd = os.open(path, flags, mode)
    try:
        offset = int(wanted["offset"])
        written = 0
        while written < len(data):
            written += os.pwrite(fd, data[written:], offset + written)
        return {"written": written}
    finally:
        os.close(fd)


def status(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return what ``lstat`` says of ``path``. Raises OSError."""
    found = os.lstat(wanted["path"])
    return {
        "mode": found.st_mode,
        "size": found.st_size,
        "uid": found.st_uid,
        "gid": found.st_gid,
        "mtime_ns": found.st_mtime_ns,
    }
