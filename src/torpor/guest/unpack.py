"""Unpacking a tar archive from standard input, as work of a process of its own."""

import contextlib
import errno
import json
import os
import stat
from dataclasses import dataclass

from torpor.guest import tar
from torpor.guest.below import Below, split_name
from torpor.guest.members import Source, read_members
from torpor.guest.pack import widen_pipe
from torpor.guest.tar import ArchiveError, Member
from torpor.guest.users import find_user

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def unpack(path: str, owner: str | None = None, parents: bool = False) -> None:
    """Unpack standard input below the directory ``path``, which ``parents`` makes.

    Owners are those in the archive, by number, or all ``owner``; only root can give them. Names
    from the root on are taken from ``path`` on; a name that leads out of it, by ``..`` or by a
    link, ends the work with an error. A file that is there is replaced, a directory kept.

    The last line of standard error says how many ``members`` there were, how many ``attributes``
    could not be given, and how many members were ``skipped`` as of a kind that makes no file.
    Raises OSError, :exc:`ArchiveError`.
    """
    widen_pipe(0)
    if parents:
        os.makedirs(path, exist_ok=True)
    unpacker = _Unpacker(path, owner)
    source = Source(0)
    for member in read_members(source):
        unpacker.add(member, source)
    unpacker.end()
    source.drain()


@dataclass
class _Later:
    """A directory whose attributes are given last: it may not let itself be written to."""

    path: bytes
    member: Member
    inode: tuple[int, int]


class _Unpacker:
    def __init__(self, path: str, owner: str | None) -> None:
        self._below = Below(path)
        self._owner = None if owner is None else find_user(owner)
        self._root = os.geteuid() == 0
        self._later: list[_Later] = []
        self._report = {"members": 0, "attributes": 0, "skipped": 0}

    def add(self, member: Member, source: Source) -> None:
        """Make one thing, and take what is its content from ``source``."""
        above, name = split_name(member.name)
        self._report["members"] += 1
        try:
            if member.type == tar.DIRECTORY:
                self._directory(member, above, name)
                source.skip(member.stored)
                return
            if not name:
                raise ArchiveError("a file without a name")
            parent = self._below.directory(above, make=True)
            if member.type in tar.FILES:
                self._file(member, parent, name, source)
            elif not self._special(member, above, name):
                self._report["skipped"] += 1
                # POSIX: a type that is not known is taken for a file; here it makes none.
                source.skip(member.stored)
        except OSError as error:
            if error.errno == errno.EXDEV:
                error.strerror = "leads out of the directory"
            error.filename = os.fsdecode(member.name)
            raise

    def end(self) -> None:
        """Give the directories their attributes, the inner ones first, and tell the report."""
        for later in reversed(self._later):
            try:
                fd = self._below.directory(later.path)
            except (FileNotFoundError, NotADirectoryError):
                continue  # replaced by a later member
            found = os.fstat(fd)
            if (found.st_dev, found.st_ino) == later.inode:
                self._attributes(fd, later.member)
        os.write(2, json.dumps(self._report).encode("ascii") + b"\n")

    def _directory(self, member: Member, above: bytes, name: bytes) -> None:
        path = above + b"/" + name if above else name
        if name:
            parent = self._below.directory(above, make=True)
            try:
                os.mkdir(name, 0o700, dir_fd=parent)
            except FileExistsError:
                found = os.stat(name, dir_fd=parent, follow_symlinks=False)
                if not stat.S_ISDIR(found.st_mode) and not stat.S_ISLNK(found.st_mode):
                    os.unlink(name, dir_fd=parent)
                    os.mkdir(name, 0o700, dir_fd=parent)
        fd = self._below.directory(path)
        found = os.fstat(fd)
        with contextlib.suppress(PermissionError):
            os.fchmod(fd, found.st_mode & 0o7777 | 0o700)
        self._later.append(_Later(path, member, (found.st_dev, found.st_ino)))

    def _file(self, member: Member, parent: int, name: bytes, source: Source) -> None:
        fd = self._new_file(parent, name)
        try:
            if member.map is None:
                source.copy_to(fd, 0, member.stored)
            else:
                for offset, size in member.map:
                    source.copy_to(fd, offset, size)
                os.ftruncate(fd, member.size)
            source.skip_padding(member.stored)
            self._attributes(fd, member)
        finally:
            os.close(fd)

    def _new_file(self, parent: int, name: bytes) -> int:
        try:
            return os.open(name, NEW, 0o600, dir_fd=parent)
        except FileExistsError:
            _make_room(parent, name)
            return os.open(name, NEW, 0o600, dir_fd=parent)

    def _special(self, member: Member, above: bytes, name: bytes) -> bool:
        if member.type == tar.HARD_LINK:
            target_above, target = split_name(member.target)
            # Of our own: the next look-up closes what the last one found.
            source = os.dup(self._below.directory(target_above))
            try:
                parent = self._below.directory(above)
                if _same(source, target, parent, name):
                    return True
                _make_room(parent, name)
                os.link(target, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
            finally:
                os.close(source)
            return True
        parent = self._below.directory(above)
        if member.type == tar.LINK:
            _make_room(parent, name)
            os.symlink(member.target, name, dir_fd=parent)
        elif member.type == tar.FIFO:
            _make_room(parent, name)
            os.mkfifo(name, 0o600, dir_fd=parent)
        elif member.type in (tar.CHARACTER, tar.BLOCK_DEVICE):
            _make_room(parent, name)
            kind = stat.S_IFCHR if member.type == tar.CHARACTER else stat.S_IFBLK
            number = os.makedev(member.major, member.minor)
            os.mknod(name, kind | 0o600, number, dir_fd=parent)
        else:
            return False
        self._attributes(f"/proc/self/fd/{parent}/{os.fsdecode(name)}", member)
        return True

    def _attributes(self, file: int | str, member: Member) -> None:
        """Give owner, mode, extended attributes and time, in this order: a new owner takes away
        set-user-ID and capabilities, and each but the last changes a time."""
        follow = isinstance(file, int)
        if self._root:
            uid, gid = member.uid, member.gid
            if self._owner is not None:
                uid, gid = self._owner.uid, self._owner.gid
            os.chown(file, uid, gid, follow_symlinks=follow)
        if member.type != tar.LINK:
            os.chmod(file, member.mode)
        for name, value in member.xattrs.items():
            try:
                os.setxattr(file, name, value, follow_symlinks=follow)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EPERM, errno.EACCES):
                    raise
                self._report["attributes"] += 1
        try:
            os.utime(file, ns=(member.mtime_ns, member.mtime_ns), follow_symlinks=follow)
        except OverflowError:
            self._report["attributes"] += 1


def _make_room(parent: int, name: bytes) -> None:
    """Remove what has the name of something new: anything but a directory that is not empty."""
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        pass
    except IsADirectoryError:
        os.rmdir(name, dir_fd=parent)


def _same(source: int, target: bytes, parent: int, name: bytes) -> bool:
    """Whether two names are those of one file already."""
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.stat(target, dir_fd=source, follow_symlinks=False))
