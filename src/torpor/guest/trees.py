"""Whole trees of files, as work of a process of its own: walked, listed, removed.

A tree is walked by descriptors, never by path, so that whoever exchanges a directory for a link
meanwhile leads nobody out of it; and with one descriptor at a time, so that depth costs none.
"""

import errno
import fnmatch
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torpor.guest.errors import describe
from torpor.guest.files import describe_status
from torpor.guest.work import write_all, write_line

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
VANISHED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""What a directory's name gives that is gone meanwhile, or that is no directory any more."""
LINES = 32 << 10
"""Characters of a listing that are written at once."""
PATIENCE = 0.2
"""Seconds after which fewer are written too: digests may take long."""


class Entry(NamedTuple):
    """Something in a tree: its name in ``directory`` (a descriptor that is good until the walk goes
    on), its path from the tree's root, and what ``lstat`` says. ``left`` says that this is a
    directory which has been walked through, told once more."""

    directory: int
    name: str
    path: str
    status: os.stat_result
    left: bool = False


class _Level(NamedTuple):
    entry: Entry
    device: int
    inode: int
    rest: list[Entry]


def _fail(_path: str, error: OSError) -> None:
    raise error


def walk(
    root: int,
    *,
    wanted: Callable[[Entry], bool] = lambda _entry: True,
    failed: Callable[[str, OSError], None] = _fail,
    leaving: bool = False,
) -> Iterator[Entry]:
    """Yield what is below the directory ``root``: of each directory first the files, then each
    directory in it followed at once by what is in that. (GNU tar gives a directory its time when
    an archive goes on outside of it.)

    What is not ``wanted`` is neither yielded nor entered. What vanishes meanwhile is left out;
    what cannot be read goes to ``failed``. With ``leaving`` a directory is yielded once more after
    what was in it. Raises OSError.
    """
    fd = os.open(".", DIRECTORY, dir_fd=root)
    found = os.fstat(fd)
    levels = [_Level(Entry(-1, "", "", found), found.st_dev, found.st_ino, [])]
    try:
        yield from _files(fd, levels[-1], wanted, failed)
        while True:
            if levels[-1].rest:
                entry = levels[-1].rest.pop()._replace(directory=fd)
                yield entry
                try:
                    inner = os.open(entry.name, DIRECTORY, dir_fd=fd)
                except OSError as error:
                    if error.errno not in VANISHED:
                        failed(entry.path, error)
                    continue
                os.close(fd)
                fd = inner
                found = os.fstat(fd)
                levels.append(_Level(entry, found.st_dev, found.st_ino, []))
                yield from _files(fd, levels[-1], wanted, failed)
            elif len(levels) > 1:
                left = levels.pop().entry
                fd = _climb(fd, levels[-1])
                if leaving:
                    yield Entry(fd, left.name, left.path, left.status, left=True)
            else:
                return
    finally:
        os.close(fd)


def _files(
    fd: int,
    level: _Level,
    wanted: Callable[[Entry], bool],
    failed: Callable[[str, OSError], None],
) -> Iterator[Entry]:
    """Yield what is in one directory but for the directories, which are put aside."""
    for entry in scan(fd, level.entry.path, failed):
        if wanted(entry):
            if stat.S_ISDIR(entry.status.st_mode):
                level.rest.append(entry)
            else:
                yield entry


def scan(fd: int, path: str, failed: Callable[[str, OSError], None]) -> Iterator[Entry]:
    """Yield what is in the directory ``fd``, which has this path."""
    above = f"{path}/" if path else ""
    try:
        entries = os.scandir(fd)
    except OSError as error:
        failed(path, error)
        return
    with entries:
        for each in entries:
            try:
                found = os.stat(each.name, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError as error:
                failed(above + each.name, error)
                continue
            yield Entry(fd, each.name, above + each.name, found)


def _climb(fd: int, level: _Level) -> int:
    """Go back to the directory above, and make sure that it is the one that we came from."""
    above = os.open("..", DIRECTORY, dir_fd=fd)
    found = os.fstat(above)
    if (found.st_dev, found.st_ino) != (level.device, level.inode):
        os.close(above)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), level.entry.path or ".")
    os.close(fd)
    return above


def excluding(patterns: Sequence[str], device: int | None = None) -> Callable[[Entry], bool]:
    """Return what tells whether an entry matches none of ``patterns``: one with a slash is for the
    path from the tree's root, one without for the name. Stars match slashes too. With ``device``
    it must be in that file system too."""
    paths = [fnmatch.translate(each.lstrip("/")) for each in patterns if "/" in each]
    names = [fnmatch.translate(each) for each in patterns if "/" not in each]
    path, name = (re.compile("|".join(each)) if each else None for each in (paths, names))

    def wanted(entry: Entry) -> bool:
        return not (
            (path is not None and path.match(entry.path))
            or (name is not None and name.match(entry.name))
            or (device is not None and entry.status.st_dev != device)
        )

    return wanted


# Listing


def list_directory(
    path: str, recursive: bool = False, digest: bool = False, exclude: Sequence[str] = ()
) -> None:
    """Write a line for each thing in a directory: its ``path`` from there, and what ``file.stat``
    says of it, with ``digest`` also the ``sha256`` of each file.

    What cannot be read has an ``error`` in its line, or a line of its own.
    """
    lines: list[str] = []
    size, written = 0, time.monotonic()
    root = os.open(path, DIRECTORY & ~os.O_NOFOLLOW)
    is_wanted = excluding(exclude)
    unread: list[tuple[str, OSError]] = []

    def failed(where: str, why: OSError) -> None:
        unread.append((where, why))

    if recursive:
        entries = walk(root, wanted=is_wanted, failed=failed)
    else:
        entries = filter(is_wanted, scan(root, "", failed))
    for entry in entries:
        line = _line({"path": entry.path, **_describe(entry, digest)})
        lines.append(line)
        size += len(line)
        if unread:
            lines += [_line({"path": where, "error": describe(why)}) for where, why in unread]
            unread.clear()
        if size >= LINES or time.monotonic() - written > PATIENCE:
            write_all("".join(lines).encode("ascii"))
            lines.clear()
            size, written = 0, time.monotonic()
    lines += [_line({"path": where, "error": describe(why)}) for where, why in unread]
    write_all("".join(lines).encode("ascii"))


def _line(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"


def _describe(entry: Entry, digest: bool) -> dict[str, Any]:
    said = describe_status(entry.status)
    try:
        if stat.S_ISLNK(entry.status.st_mode):
            said["target"] = os.readlink(entry.name, dir_fd=entry.directory)
        elif digest and stat.S_ISREG(entry.status.st_mode):
            said["sha256"] = _sha256(entry)
    except OSError as error:
        said["error"] = describe(error)
    return said


def _sha256(entry: Entry) -> str:
    import hashlib

    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(entry.name, flags, dir_fd=entry.directory), "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Removing


def remove(path: str) -> None:
    """Remove a file or a whole directory; write how many things were removed.

    Mount points inside are emptied and then refused, as the kernel refuses them.
    """
    above, name = os.path.split(os.path.normpath(path))
    if name in ("", ".", ".."):
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
    parent = os.open(above or ".", DIRECTORY & ~os.O_NOFOLLOW)
    count = 0
    try:
        os.unlink(name, dir_fd=parent)
    except IsADirectoryError:
        root = os.open(name, DIRECTORY, dir_fd=parent)
        for entry in walk(root, leaving=True):
            count += _remove_entry(entry)
        os.rmdir(name, dir_fd=parent)
    write_line({"removed": count + 1})


def _remove_entry(entry: Entry) -> int:
    """Remove what can go now: a directory when the walk leaves it, all else at once."""
    if stat.S_ISDIR(entry.status.st_mode) and not entry.left:
        return 0
    try:
        if entry.left:
            os.rmdir(entry.name, dir_fd=entry.directory)
        else:
            os.unlink(entry.name, dir_fd=entry.directory)
    except FileNotFoundError:
        return 0  # somebody else was quicker
    return 1
