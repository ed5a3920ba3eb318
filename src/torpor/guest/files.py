"""Small things done to files of the machine: each request is answered at once, or refused.

What takes long (whole trees, archives) is work of a process of its own, see
:mod:`torpor.guest.work`. Every request may name a ``user`` as whom it is done, else it is root.
"""

import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torpor.guest.users import find_user

MAX_PIECE = 512 << 10
"""Largest piece of a file in one request or reply, in bytes."""
MAX_RANGES = 4000
"""Ranges of data that one reply tells."""
RENAME_NOREPLACE = 1
AT_FDCWD = -100
KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character",
    stat.S_IFBLK: "block",
}


def do(op: str, wanted: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
    """Do what the request ``op`` asks for; return the answer. Raises OSError and what a request
    without sense raises."""
    with acting_as(wanted.get("user")):
        if op == "file.read":
            return read(wanted)
        if op == "file.write":
            return write(wanted, blob), b""
        return SMALL[op](wanted), b""


@contextmanager
def acting_as(name: str | None) -> Iterator[None]:
    """Do something as another user, with exactly that user's rights to files.

    The effective ids are what counts for files, and giving up the effective user id of root gives
    up root's capabilities too; the real id stays, so no user can send this process a signal.
    Raises ValueError for a user that the image does not have.
    """
    user = find_user(str(name or "0"))
    if not user.uid and not user.gid:
        yield
        return
    groups = os.getgroups()
    try:
        os.setgroups(user.groups)
        os.setegid(user.gid)
        os.seteuid(user.uid)
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


# Content


def read(wanted: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Return a piece of the file ``path`` from ``offset``: at most ``size`` bytes.

    ``end`` says that the file ends there. Of a file that does not know its size (in ``/proc``) it
    is not said; then an empty piece is the end. Raises OSError.
    """
    offset = int(wanted["offset"])
    fd = os.open(wanted["path"], os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(21, "a directory", wanted["path"])
        data = os.pread(fd, min(int(wanted["size"]), MAX_PIECE), offset)
        end = stat.S_ISREG(found.st_mode) and 0 < found.st_size <= offset + len(data)
        return {"size": found.st_size, "end": end}, data
    finally:
        os.close(fd)


def write(wanted: dict[str, Any], data: bytes) -> dict[str, Any]:
    """Write ``data`` at ``offset`` of ``path``, made with ``mode`` if it is not there.

    ``truncate`` empties the file first; ``parents`` makes missing directories; ``new`` refuses a
    file that is there. ``after`` is the size that the file must have come to (else ESTALE): of
    several pieces under way none is written whose forerunner was not, so the size of a file says
    up to where it is whole. Raises OSError.
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
        if wanted.get("new"):
            raise
        fd = os.open(path, flags, mode)
    try:
        if os.fstat(fd).st_size < int(wanted.get("after") or 0):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        offset = int(wanted["offset"])
        written = 0
        view = memoryview(data)
        while written < len(data):
            written += os.pwrite(fd, view[written:], offset + written)
        return {"written": written}
    finally:
        os.close(fd)


def ranges(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return where ``path`` has data from ``offset`` on: ``ranges`` of first byte and byte after
    the last, ``next`` from where to ask on (the size when all was told). Raises OSError."""
    offset = int(wanted.get("offset") or 0)
    fd = os.open(wanted["path"], os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        size = os.fstat(fd).st_size
        found = []
        for start, end in data_ranges(fd, size, offset):
            found.append((start, end))
            if len(found) == MAX_RANGES:
                return {"size": size, "ranges": found, "next": end}
        return {"size": size, "ranges": found, "next": size}
    finally:
        os.close(fd)


def data_ranges(fd: int, size: int, offset: int = 0) -> Iterator[tuple[int, int]]:
    """Yield where the first ``size`` bytes of a file have data. Raises OSError."""
    while offset < size:
        try:
            start = os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # a hole up to the end
            raise
        offset = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        if start < offset:
            yield start, offset


# Status


def status(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return what ``lstat`` says of ``path``, or ``stat`` with ``follow``. Raises OSError."""
    path = wanted["path"]
    found = os.stat(path, follow_symlinks=bool(wanted.get("follow")))
    said = describe_status(found)
    if stat.S_ISLNK(found.st_mode):
        said["target"] = os.readlink(path)
    return said


def describe_status(found: os.stat_result) -> dict[str, Any]:
    """Return a status as the host is told of it."""
    said = {
        "type": KINDS.get(stat.S_IFMT(found.st_mode), "unknown"),
        "mode": found.st_mode,
        "size": found.st_size,
        "stored": found.st_blocks * 512,
        "uid": found.st_uid,
        "gid": found.st_gid,
        "mtime_ns": found.st_mtime_ns,
        "links": found.st_nlink,
        "inode": found.st_ino,
        "device": found.st_dev,
    }
    if stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
        said["major"], said["minor"] = os.major(found.st_rdev), os.minor(found.st_rdev)
    return said


# Names


def make_directory(wanted: dict[str, Any]) -> dict[str, Any]:
    """Make a directory with ``mode``; ``parents`` makes those above it too, and is content with one
    that is there. Raises OSError."""
    path = wanted["path"]
    mode = int(wanted.get("mode", 0o755))
    if wanted.get("parents"):
        os.makedirs(os.path.dirname(path.rstrip("/")) or "/", exist_ok=True)
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not wanted.get("parents") or not os.path.isdir(path):
            raise
        return {"made": False}
    os.chmod(path, mode)  # whatever the umask
    return {"made": True}


def make_link(wanted: dict[str, Any]) -> dict[str, Any]:
    """Make the symbolic link ``path`` to ``target``. Raises OSError."""
    os.symlink(wanted["target"], wanted["path"])
    return {}


def move(wanted: dict[str, Any]) -> dict[str, Any]:
    """Give what is at ``path`` the name ``to``, in the same file system.

    What is there is replaced by it, or with ``replace`` false the move is refused. Raises OSError:
    EXDEV if the new name is in another file system.
    """
    path, to = wanted["path"], wanted["to"]
    if wanted.get("replace", True):
        os.rename(path, to)
        return {}
    names = [_name(path), _name(to)]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_NOREPLACE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), to if number == errno.EEXIST else path)
    return {}


def _name(path: str) -> bytes:
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError("a name has no null character")
    return name


def remove(wanted: dict[str, Any]) -> dict[str, Any]:
    """Remove a file, a link or an empty directory. Raises OSError."""
    path = wanted["path"]
    if stat.S_ISDIR(os.lstat(path).st_mode):
        os.rmdir(path)
    else:
        os.unlink(path)
    return {}


def change(wanted: dict[str, Any]) -> dict[str, Any]:
    """Change what is given of ``owner`` (``user`` or ``user:group``), ``mode``, ``size`` and
    ``mtime_ns``, in this order. Links are followed. Raises OSError, ValueError."""
    path = wanted["path"]
    if wanted.get("owner") is not None:
        owner = find_user(str(wanted["owner"]))
        os.chown(path, owner.uid, owner.gid)
    if wanted.get("mode") is not None:
        os.chmod(path, int(wanted["mode"]))
    if wanted.get("size") is not None:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            os.ftruncate(fd, int(wanted["size"]))
        finally:
            os.close(fd)
    if wanted.get("mtime_ns") is not None:
        os.utime(path, ns=(int(wanted["mtime_ns"]), int(wanted["mtime_ns"])))
    return {}


SMALL: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "file.stat": status,
    "file.ranges": ranges,
    "file.make_directory": make_directory,
    "file.make_link": make_link,
    "file.move": move,
    "file.remove": remove,
    "file.change": change,
}
OPS = frozenset({"file.read", "file.write", *SMALL})
