"""Names looked up below a directory, and never outside of it."""

import ctypes
import errno
import os
import struct

OPENAT2 = 437
"""The number of the system call, the same on all architectures."""
NO_MAGIC_LINKS, BENEATH, IN_ROOT = 0x02, 0x08, 0x10
"""openat2(2): no links of /proc; an error where the way leads out; the directory as root."""
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class Below:
    """A directory in which names are looked up. Links that stay within are followed.

    In ``/`` links that begin with a slash lead where they always do; elsewhere they lead out.
    """

    def __init__(self, path: str) -> None:
        self.root = os.open(path, DIRECTORY)
        at_top = os.path.samestat(os.fstat(self.root), os.stat("/"))
        self._resolve = NO_MAGIC_LINKS | (IN_ROOT if at_top else BENEATH)
        self._path: bytes | None = None
        self._found = -1

    def directory(self, path: bytes, *, make: bool = False) -> int:
        """Return a descriptor of the directory at ``path``, good until the next call; with
        ``make`` those that are missing are made. Raises OSError, EXDEV if it leads out."""
        if path == self._path:
            return self._found
        try:
            fd = self._open(path or b".")
        except FileNotFoundError:
            if not make:
                raise
            fd = self._make(path)
        if self._found >= 0:
            os.close(self._found)
        self._path, self._found = path, fd
        return fd

    def _make(self, path: bytes) -> int:
        """Make a directory and those above it that are missing, and open it."""
        parts = path.split(b"/")
        for count in range(1, len(parts) + 1):
            above = self._open(b"/".join(parts[: count - 1]) or b".")
            try:
                os.mkdir(parts[count - 1], 0o755, dir_fd=above)
            except FileExistsError:
                pass
            finally:
                os.close(above)
        return self._open(path)

    def _open(self, path: bytes) -> int:
        how = struct.pack("QQQ", DIRECTORY, 0, self._resolve)
        while True:
            fd = _libc.syscall(
                ctypes.c_long(OPENAT2),
                ctypes.c_int(self.root),
                ctypes.c_char_p(path),
                ctypes.c_char_p(how),
                ctypes.c_size_t(len(how)),
            )
            if fd >= 0:
                return int(fd)
            number = ctypes.get_errno()
            # EAGAIN: something was renamed meanwhile, and the kernel is not sure.
            if number not in (errno.EAGAIN, errno.EINTR):
                raise OSError(number, os.strerror(number), os.fsdecode(path))


def split_name(name: bytes) -> tuple[bytes, bytes]:
    """Return directory and last part of an archive's name, without slashes at its ends or ``.``
    in it; both empty for the root. Raises OSError (EXDEV) for a name with ``..``."""
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise OSError(errno.EXDEV, "leads out of the directory", os.fsdecode(name))
    if not parts:
        return b"", b""
    return b"/".join(parts[:-1]), parts[-1]
