"""Watching a directory for changes, as work of a process of its own.

What is below it is named by nodes and not by paths, so that a directory which is moved takes all
that is in it along at once.
"""

import ctypes
import errno
import os
import select
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from torpor.guest.trees import DIRECTORY, VANISHED, walk
from torpor.guest.work import write_line

MODIFY, ATTRIBUTES, CLOSE_WRITE = 0x2, 0x4, 0x8
MOVED_FROM, MOVED_TO, CREATE, DELETE, DELETE_SELF, MOVE_SELF = (
    0x40,
    0x80,
    0x100,
    0x200,
    0x400,
    0x800,
)
UNMOUNTED, OVERFLOW, IGNORED = 0x2000, 0x4000, 0x8000
ONLY_DIRECTORY, NO_FOLLOW, IS_DIRECTORY = 0x1000000, 0x2000000, 0x40000000
WATCHED = (
    MODIFY | ATTRIBUTES | CLOSE_WRITE | MOVED_FROM | MOVED_TO | CREATE | DELETE
    | DELETE_SELF | MOVE_SELF
)  # fmt: skip
PLAIN = {
    MODIFY: "modified",
    ATTRIBUTES: "attributes",
    CLOSE_WRITE: "written",
    CREATE: "created",
    DELETE: "deleted",
}
LIMIT = 8192
"""Directories that are watched unless another number is asked for."""
PAIR_MS = 20
"""How long the second half of a move is waited for: the kernel queues both at once, but the queue
may be read in between."""
_EVENT = struct.Struct("iIII")


class Event(NamedTuple):
    """An event as the kernel tells it."""

    watch: int
    mask: int
    cookie: int
    name: str


@dataclass
class Node:
    """A directory that is watched; ``told`` are the names in it that were told as created when it
    was first looked through, of which the kernel's own event may still come."""

    watch: int
    parent: "Node | None"
    name: str
    children: dict[str, "Node"] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)

    def path(self, name: str = "") -> str:
        """Return the path of something in this directory, from the root of the watch."""
        parts = [name] if name else []
        node: Node | None = self
        while node is not None and node.parent is not None:
            parts.append(node.name)
            node = node.parent
        return "/".join(reversed(parts))


def watch(path: str, recursive: bool = False, limit: int = LIMIT) -> None:
    """Write a line for each change of the file or directory ``path``, until that is gone.

    The first line is ``{"event": "ready"}``: what happens from then on is told. Raises OSError:
    ENOSPC if more than ``limit`` directories would have to be watched.
    """
    _Watch(path, recursive, limit).run()


class _Watch:
    def __init__(self, path: str, recursive: bool, limit: int) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = _checked(self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK), path)
        self._recursive = recursive
        self._limit = limit
        self._nodes: dict[int, Node] = {}
        self._root_is_directory = os.path.isdir(path)
        self._path = path
        mask = WATCHED | (ONLY_DIRECTORY if self._root_is_directory else 0)
        self._top = Node(self._add(path, mask), None, "")
        self._nodes[self._top.watch] = self._top
        self._from: tuple[Event, Node] | None = None
        self._gone = False

    def run(self) -> None:
        """Tell what happens, until the top is gone."""
        self._look_from_top()
        write_line({"event": "ready"})
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        while not self._gone:
            if not poll.poll(PAIR_MS if self._from is not None else None):
                self._moved_out()
                continue
            try:
                data = os.read(self._fd, 64 << 10)
            except BlockingIOError:
                continue
            for event in _events(data):
                self._take(event)

    # Events

    def _take(self, event: Event) -> None:
        if event.mask & OVERFLOW:
            self._moved_out()
            self._overflow()
            return
        node = self._nodes.get(event.watch)
        if node is None:
            return
        if self._from is not None and (
            not event.mask & MOVED_TO or event.cookie != self._from[0].cookie
        ):
            self._moved_out()
        if event.mask & (IGNORED | UNMOUNTED):
            self._forget(node)
        elif event.mask & (DELETE_SELF | MOVE_SELF):
            # Of a directory below, the one above tells.
            if node is self._top:
                self._end()
        elif event.mask & MOVED_FROM:
            self._from = (event, node)
        elif event.mask & MOVED_TO:
            self._moved_to(event, node)
        else:
            self._plain(event, node)

    def _plain(self, event: Event, node: Node) -> None:
        if event.mask & CREATE and event.name in node.told:
            node.told.discard(event.name)
            return
        if event.mask & DELETE:
            node.told.discard(event.name)
        for bit, word in PLAIN.items():
            if event.mask & bit:
                self._tell(word, event, node)
        if event.mask & CREATE:
            self._enter(event, node)

    def _moved_to(self, event: Event, node: Node) -> None:
        if self._from is None:
            if event.name in node.told:  # it came while we looked through
                node.told.discard(event.name)
                return
            self._tell("moved_in", event, node)
            self._enter(event, node)
            return
        first, before = self._from
        self._from = None
        before.told.discard(first.name)
        line = {"event": "moved", "path": node.path(event.name), "from": before.path(first.name)}
        write_line(line | _directory(event))
        moved = before.children.pop(first.name, None)
        replaced = node.children.pop(event.name, None)
        if replaced is not None:
            self._drop(replaced)
        if moved is not None:
            moved.parent, moved.name = node, event.name
            node.children[event.name] = moved
        else:
            self._enter(event, node)

    def _moved_out(self) -> None:
        """The first half of a move has no second: it left what is watched."""
        if self._from is None:
            return
        event, node = self._from
        self._from = None
        node.told.discard(event.name)
        self._tell("moved_out", event, node)
        moved = node.children.pop(event.name, None)
        if moved is not None:
            self._drop(moved)

    def _tell(self, word: str, event: Event, node: Node) -> None:
        write_line({"event": word, "path": node.path(event.name)} | _directory(event))

    def _end(self) -> None:
        self._moved_out()
        write_line({"event": "gone"})
        self._gone = True

    # Directories

    def _enter(self, event: Event, node: Node) -> None:
        """Watch a directory that has come, and tell what came into it before it was watched."""
        if not (self._recursive and event.mask & IS_DIRECTORY):
            return
        above = self._open(node)
        if above is None:
            return
        try:
            entered = self._watch_below(node, above, event.name)
            if entered is not None:
                self._look_through(entered, above, event.name)
        except FileNotFoundError:
            pass  # gone again
        finally:
            os.close(above)

    def _open(self, node: Node) -> int | None:
        """Open a directory that is watched; None if it is not there any more. It is found from the
        top by its names, none of which may be a link."""
        fd = os.open(self._path, DIRECTORY & ~os.O_NOFOLLOW)
        for part in node.path().split("/") if node is not self._top else ():
            try:
                inner = os.open(part, DIRECTORY, dir_fd=fd)
            except OSError as error:
                if error.errno not in VANISHED:
                    raise
                return None
            finally:
                os.close(fd)
            fd = inner
        return fd

    def _watch_below(self, parent: Node, above: int, name: str) -> Node | None:
        try:
            number = self._add(
                f"/proc/self/fd/{above}/{name}", WATCHED | ONLY_DIRECTORY | NO_FOLLOW
            )
        except OSError as error:
            if error.errno in VANISHED:
                return None
            if error.errno != errno.EACCES:
                raise
            write_line({"event": "unreadable", "path": parent.path(name), "directory": True})
            return None
        known = self._nodes.get(number)
        if known is not None and known.parent is not None:
            # Moved meanwhile: its events are still to come.
            known.parent.children.pop(known.name, None)
        node = Node(number, parent, name)
        if known is not None:
            node.children = known.children
            for child in node.children.values():
                child.parent = node
        self._nodes[number] = node
        parent.children[name] = node
        return node

    def _look_through(self, top: Node, above: int, name: str, *, tell: bool = True) -> None:
        """Watch the directories below one, each before it is looked into."""
        try:
            root = os.open(name, DIRECTORY, dir_fd=above)
        except OSError as error:
            if error.errno not in VANISHED:
                raise
            return
        nodes = {"": top}
        try:
            # What cannot be read was told when it was to be watched.
            for entry in walk(root, failed=lambda _path, _error: None):
                node = nodes.get(entry.path.rpartition("/")[0])
                if node is None:
                    continue
                directory = stat.S_ISDIR(entry.status.st_mode)
                if tell:
                    node.told.add(entry.name)
                    line = {"event": "created", "path": node.path(entry.name)}
                    write_line(line | ({"directory": True} if directory else {}))
                if directory:
                    below = self._watch_below(node, entry.directory, entry.name)
                    if below is not None:
                        nodes[entry.path] = below
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            self._overflow()  # it was moved about under our feet
        finally:
            os.close(root)

    def _overflow(self) -> None:
        """Begin anew, for nothing that is known need be so, and tell that something was missed.

        It is told last: whoever keeps account looks anew then, and what happens later is told.
        """
        for node in list(self._top.children.values()):
            self._drop(node)
        self._top.children.clear()
        self._top.told.clear()
        self._look_from_top()
        write_line({"event": "overflow"})

    def _look_from_top(self) -> None:
        if not (self._recursive and self._root_is_directory):
            return
        try:
            top = os.open(self._path, DIRECTORY & ~os.O_NOFOLLOW)
        except FileNotFoundError:
            self._end()
            return
        try:
            self._look_through(self._top, top, ".", tell=False)
        finally:
            os.close(top)

    def _add(self, path: str, mask: int) -> int:
        if len(self._nodes) >= self._limit:
            why = f"more than {self._limit} directories to watch"
            raise OSError(errno.ENOSPC, why, self._path)
        return _checked(
            self._libc.inotify_add_watch(self._fd, os.fsencode(path), ctypes.c_uint32(mask)), path
        )

    def _drop(self, node: Node) -> None:
        """Watch a directory and all below it no more."""
        dropped = [node]
        while dropped:
            node = dropped.pop()
            self._libc.inotify_rm_watch(self._fd, node.watch)
            self._nodes.pop(node.watch, None)
            dropped += node.children.values()

    def _forget(self, node: Node) -> None:
        self._nodes.pop(node.watch, None)
        if node is self._top:
            if not self._gone:
                self._end()
        elif node.parent is not None and node.parent.children.get(node.name) is node:
            del node.parent.children[node.name]


def _directory(event: Event) -> dict[str, bool]:
    return {"directory": True} if event.mask & IS_DIRECTORY else {}


def _checked(result: int, path: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return result


def _events(data: bytes) -> Iterator[Event]:
    offset = 0
    while offset < len(data):
        number, mask, cookie, size = _EVENT.unpack_from(data, offset)
        offset += _EVENT.size
        name = data[offset : offset + size].split(b"\0", 1)[0]
        offset += size
        yield Event(number, mask, cookie, os.fsdecode(name))
