"""Packing a tree into a tar archive on standard output, as work of a process of its own."""

import contextlib
import errno
import fcntl
import json
import os
import stat
from collections.abc import Sequence

from torpor.guest import tar
from torpor.guest.files import data_ranges
from torpor.guest.tar import Member
from torpor.guest.trees import DIRECTORY, Entry, excluding, walk
from torpor.guest.work import write_all

GATHERED = 256 << 10
"""Bytes of headers and small files that are written at once."""
SMALL = 64 << 10
"""A run of at most so many bytes is read and gathered; a longer one goes from file to pipe without
passing through this process."""
HOLE = 64 << 10
"""A hole that is smaller is sent as zeros: the map of a file in shreds would outgrow them."""
PIPE = 1 << 20
NAMED = 20
"""Files that changed meanwhile of which the name is told."""


def pack(
    path: str,
    root: str | None = None,
    exclude: Sequence[str] = (),
    one_file_system: bool = False,
) -> None:
    """Write what is at ``path`` to standard output as a tar archive, as ``root`` (its own name if
    None; ``.`` leaves the leading directory away).

    The last line of standard error says how many ``members`` there were, and which ``changed``
    meanwhile: a file that became shorter is filled up with zeros. Raises OSError.
    """
    widen_pipe(1)
    found = os.lstat(path)
    own = os.path.basename(os.path.normpath(path))
    packer = _Packer((own or ".") if root is None else root)
    if stat.S_ISDIR(found.st_mode):
        top = os.open(path, DIRECTORY)
        packer.add(Entry(top, ".", "", os.fstat(top)))
        device = found.st_dev if one_file_system else None
        for entry in walk(top, wanted=excluding(exclude, device)):
            packer.add(entry)
    else:
        above = os.open(os.path.dirname(path) or ".", DIRECTORY & ~os.O_NOFOLLOW)
        packer.add(Entry(above, own, "", found))
    packer.end()


def widen_pipe(fd: int) -> None:
    """Let a pipe hold as much as any may, if it is one: fewer turns between its two ends."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE)


class _Packer:
    """Writes members; keeps what waits to be written, and the names of what has more than one."""

    def __init__(self, root: str) -> None:
        self._root = os.fsencode(root)
        self._gathered = bytearray()
        self._names: dict[tuple[int, int], bytes] = {}
        self._members = 0
        self._changed: list[str] = []
        self._changed_count = 0
        self._sockets = 0

    def add(self, entry: Entry) -> None:
        """Write one thing; what has vanished is left out."""
        found = entry.status
        mode = found.st_mode
        name = self._root + b"/" + os.fsencode(entry.path) if entry.path else self._root
        if stat.S_ISSOCK(mode):
            self._sockets += 1
            return
        if not stat.S_ISDIR(mode) and found.st_nlink > 1:
            first = self._names.get((found.st_dev, found.st_ino))
            if first is not None:
                self._header(_member(name, tar.HARD_LINK, found, target=first))
                return
        try:
            if stat.S_ISREG(mode):
                self._file(name, entry)
            else:
                self._special(name, entry)
        except FileNotFoundError:
            self._note_change(entry.path)
            return
        if not stat.S_ISDIR(mode) and found.st_nlink > 1:
            self._names[found.st_dev, found.st_ino] = name

    def end(self) -> None:
        """Write the end of the archive, and the report."""
        self._gathered += tar.ZERO * 2
        self._flush()
        report = {
            "members": self._members,
            "sockets": self._sockets,
            "changed": self._changed,
            "changed_count": self._changed_count,
        }
        os.write(2, json.dumps(report).encode("ascii") + b"\n")

    def _special(self, name: bytes, entry: Entry) -> None:
        found = entry.status
        xattrs = read_xattrs(f"/proc/self/fd/{entry.directory}/{entry.name}")
        if stat.S_ISDIR(found.st_mode):
            member = _member(name.rstrip(b"/") + b"/", tar.DIRECTORY, found)
        elif stat.S_ISLNK(found.st_mode):
            target = os.fsencode(os.readlink(entry.name, dir_fd=entry.directory))
            member = _member(name, tar.LINK, found, target=target)
        elif stat.S_ISFIFO(found.st_mode):
            member = _member(name, tar.FIFO, found)
        else:
            kind = tar.CHARACTER if stat.S_ISCHR(found.st_mode) else tar.BLOCK_DEVICE
            member = _member(name, kind, found)
            member.major, member.minor = os.major(found.st_rdev), os.minor(found.st_rdev)
        member.xattrs = xattrs
        self._header(member)

    def _file(self, name: bytes, entry: Entry) -> None:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        try:
            fd = os.open(entry.name, flags, dir_fd=entry.directory)
        except OSError as error:
            if error.errno == errno.ELOOP:  # exchanged for a link meanwhile
                raise FileNotFoundError from error
            error.filename = entry.path or entry.name
            raise
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise FileNotFoundError
            member = _member(name, tar.FILE, found)
            member.xattrs = read_xattrs(fd)
            ranges = [(0, found.st_size)]
            start = b""
            if found.st_blocks * 512 < found.st_size:
                member.map = sparse_map(fd, found.st_size)
                ranges = member.map
                start = tar.encode_map(ranges)
            member.size = found.st_size
            member.stored = len(start) + sum(size for _, size in ranges)
            self._header(member)
            self._gathered += start
            missing = sum(self._copy(fd, offset, size) for offset, size in ranges)
            self._gathered += tar.padding(member.stored)
        finally:
            os.close(fd)
        if missing:
            self._note_change(entry.path)

    def _copy(self, fd: int, offset: int, size: int) -> int:
        """Write ``size`` bytes of a file; return how many are zeros because it has become
        shorter."""
        end = offset + size
        if size > SMALL:
            self._flush()
            offset = _send(fd, offset, end)
        while offset < end:
            data = os.pread(fd, min(end - offset, SMALL), offset)
            if not data:
                break
            self._gathered += data
            offset += len(data)
            self._flush_if_due()
        missing = end - offset
        while offset < end:
            self._gathered += bytes(min(end - offset, SMALL))
            offset += min(end - offset, SMALL)
            self._flush_if_due()
        return missing

    def _header(self, member: Member) -> None:
        self._members += 1
        self._gathered += tar.encode_header(member)
        self._flush_if_due()

    def _note_change(self, path: str) -> None:
        self._changed_count += 1
        if len(self._changed) < NAMED:
            self._changed.append(path)

    def _flush_if_due(self) -> None:
        if len(self._gathered) >= GATHERED:
            self._flush()

    def _flush(self) -> None:
        write_all(bytes(self._gathered))
        self._gathered.clear()


def _send(fd: int, offset: int, end: int) -> int:
    """Send a run of a file to standard output within the kernel; return how far it went."""
    try:
        while offset < end:
            sent = os.sendfile(1, fd, offset, min(end - offset, 1 << 30))
            if not sent:
                break
            offset += sent
    except OSError as error:
        # Of a file system that cannot: the caller reads instead.
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    return offset


def _member(name: bytes, kind: str, found: os.stat_result, target: bytes = b"") -> Member:
    return Member(
        name,
        kind,
        stat.S_IMODE(found.st_mode),
        found.st_uid,
        found.st_gid,
        found.st_mtime_ns,
        target=target,
    )


def sparse_map(fd: int, size: int) -> list[tuple[int, int]]:
    """Return offset and size of each run of data in a file, whole blocks but for the last.

    A file that ends in a hole has an empty run at its end: readers take the size from there.
    """
    found: list[tuple[int, int]] = []
    for start, end in data_ranges(fd, size):
        start -= start % tar.BLOCK
        end = min(size, end + -end % tar.BLOCK)
        if found and start - sum(found[-1]) < HOLE:
            start = found.pop()[0]
        found.append((start, end - start))
    if not found or sum(found[-1]) < size:
        found.append((size, 0))
    return found


def read_xattrs(file: int | str) -> dict[str, bytes]:
    """Return the extended attributes of a file, or of a link itself."""
    follow = isinstance(file, int)
    try:
        names = os.listxattr(file, follow_symlinks=follow)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EACCES, errno.EPERM, errno.EINVAL):
            return {}
        raise
    values = {}
    for name in names:
        with contextlib.suppress(OSError):  # gone meanwhile, or not for this user
            values[name] = os.getxattr(file, name, follow_symlinks=follow)
    return values
