"""A file of one's own in a directory that others may write to as well, such as ``/tmp``.

What is put there holds the memory of machines. Somebody else may have left a link under its name,
so that another file is written over, or a file that is theirs to read.
"""

import errno
import os
import stat
from pathlib import Path

from torpor.vm.errors import HostError


def open_own(file: Path) -> int:
    """Open a file to be read and written, made if it is missing, and return its descriptor.

    Nobody else may read it then. Raises :exc:`HostError` for a link, for what is no plain file, and
    for a file that is somebody else's or has other names; and OSError.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        fd = os.open(file, flags, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _not_own(file) from None
        raise
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
            raise _not_own(file)
        os.fchmod(fd, 0o600)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _not_own(file: Path) -> HostError:
    return HostError(
        f"{file} is a link, or no file of yours alone.",
        state="Nothing was written.",
        todo="Remove it if it is yours; else write to a directory that only you can write to.",
    )
