"""What the layers of an image come to: a tree in memory, without the files' contents.

Each layer's entries are laid over what is there, as the OCI image specification says ("layer.md":
applying changesets). A path is resolved inside the tree, as a chroot would; one that climbs out of
it is refused. So is what no honest builder writes, such as a file written over a symbolic link of
its own layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torpor.images.errors import HostileImageError
from torpor.images.tar_stream import Entry, Kind

WHITEOUT, OPAQUE = b".wh.", b".wh..wh..opq"
MAX_NAME, MAX_PATH, MAX_LINK = 255, 4095, 4095
MAX_DEPTH = 500
MAX_FOLLOWED = 40
"""As Linux follows symbolic links on the way to a file."""
MAX_STEPS = 4096
"""Names on the way to a file, those of links included."""
TEXT, TEXT_PER_ENTRY = 64 << 20, 512
"""Bytes of names, link targets and extended attributes that there may be in all, and for each entry
that there may be, if that is more: they are held in memory."""
XATTRS = ("user.", "trusted.", "security.", "system.posix_acl_")
"""How the names begin that ext4 knows."""
MAX_XATTRS = 3500
"""Bytes of names and values that an ext4 inode has room for, in itself and one block beside."""


@dataclass(eq=False, slots=True)
class Node:
    """One file (inode). ``layer`` is the one that has written it last; ``names`` counts its hard
    links; ``children`` are those of a directory; ``content`` is the name of the file that has its
    content, if it has any. ``cleared`` is the layer that has removed what was in a directory."""

    kind: Kind
    mode: int
    uid: int
    gid: int
    mtime: int
    layer: int
    size: int = 0
    link: bytes = b""
    device: tuple[int, int] = (0, 0)
    xattrs: dict[str, bytes] = field(default_factory=dict)
    children: dict[bytes, Node] = field(default_factory=dict)
    names: int = 1
    content: str = ""
    cleared: int = -1


class LayerTree:
    """The tree, to which layer after layer is added.

    ``acls`` counts the entries whose access control lists were not kept, ``xattrs`` the extended
    attributes of another system that were not. Without ``whiteouts``
    names that look like one are refused: in what is no layer they are files.
    """

    def __init__(self, *, max_entries: int, max_bytes: int, whiteouts: bool = True) -> None:
        self.acls = self.xattrs = 0
        self._whiteouts = whiteouts
        self.root = Node("dir", 0o755, 0, 0, 0, -1)
        self._left_entries, self._max_entries = max_entries, max_entries
        self._left_bytes, self._max_bytes = max_bytes, max_bytes
        self._left_text = self._max_text = max(TEXT, max_entries * TEXT_PER_ENTRY)

    def add(self, entry: Entry, layer: int, content: str = "") -> None:
        """Lay one entry over the tree. Layers come in order. Raises HostileImageError."""
        self._count(entry)
        self.acls += entry.acl
        path = split(entry.name)
        if not path:
            self._set_root(entry, layer)
            return
        name = path[-1]
        if name.startswith(WHITEOUT):
            if not self._whiteouts:
                raise _refused(entry.name, "has a name that means a removal in an image")
            self._white_out(path[:-1], name, layer)
            return
        parent = self._directory(path[:-1], layer, entry.name)
        old = parent.children.get(name)
        if entry.kind == "dir" and old is not None and old.kind == "dir":
            _update(old, entry, layer)
            return
        if old is not None and old.kind == "symlink" and old.layer == layer:
            raise _refused(entry.name, "is written over a symbolic link of the same layer")
        if entry.kind == "hard link":
            new = self._target(entry, layer)
            if new is old:
                return
            new.names += 1
        else:
            new = _node(entry, layer)
            new.content = content
        if old is not None:
            _drop(old)
        parent.children[name] = new

    def _count_one(self) -> None:
        self._left_entries -= 1
        if self._left_entries < 0:
            raise self._too_many(f"more than {self._max_entries} entries")

    def _too_many(self, what: str) -> HostileImageError:
        return HostileImageError(
            f"The layers have {what}.",
            "If the image is meant to be so: import it with a higher --max-entries.",
        )

    def _count(self, entry: Entry) -> None:
        self._count_one()
        self._left_bytes -= entry.size
        if self._left_bytes < 0:
            raise too_large(self._max_bytes)
        self.xattrs += len(entry.xattrs) - len(_known(entry.xattrs))
        xattrs = sum(len(name) + len(value) for name, value in entry.xattrs.items())
        if xattrs > MAX_XATTRS:
            raise _refused(entry.name, f"has more than {MAX_XATTRS} bytes of extended attributes")
        if any(not name.isprintable() for name in entry.xattrs):
            raise _refused(entry.name, "has an extended attribute of a name that is not printable")
        self._left_text -= len(entry.name) + len(entry.link) + xattrs
        if self._left_text < 0:
            what = f"more than {self._max_text} bytes of names, links and attributes"
            raise self._too_many(what)

    def _set_root(self, entry: Entry, layer: int) -> None:
        if entry.kind != "dir":
            raise _refused(entry.name, f"would make the root a {entry.kind}")
        _update(self.root, entry, layer)

    def _directory(self, path: list[bytes], layer: int, whole: bytes) -> Node:
        """The directory of this path, made where it is missing; symbolic links are followed."""
        stack = [self.root]
        todo = [(name, True) for name in reversed(path)]
        followed = steps = 0
        while todo:
            steps += 1
            if steps > MAX_STEPS:
                raise _refused(whole, f"leads by more than {MAX_STEPS} names")
            name, own = todo.pop()
            if name == b"..":
                if len(stack) == 1:
                    raise _refused(whole, "climbs out of the image by a symbolic link")
                stack.pop()
                continue
            child = stack[-1].children.get(name)
            if child is None:
                if not own:
                    raise _refused(whole, "goes by a symbolic link that leads nowhere in the image")
                self._count_one()  # it takes as much as one that is told of
                child = Node("dir", 0o755, 0, 0, 0, layer)
                stack[-1].children[name] = child
            if child.kind == "symlink":
                followed += 1
                if followed > MAX_FOLLOWED:
                    raise _refused(whole, "goes by too many symbolic links")
                if child.link.startswith(b"/"):
                    del stack[1:]
                parts = [part for part in child.link.split(b"/") if part not in (b"", b".")]
                todo += [(part, False) for part in reversed(parts)]
            elif child.kind == "dir":
                stack.append(child)
                if len(stack) > MAX_DEPTH:
                    raise _refused(whole, f"is more than {MAX_DEPTH} directories deep")
            else:
                raise _refused(whole, f"goes through a {child.kind}")
        return stack[-1]

    def _target(self, entry: Entry, layer: int) -> Node:
        path = split(entry.link)
        if not path:
            raise _refused(entry.name, "is a hard link to the root")
        found = self._directory(path[:-1], layer, entry.link).children.get(path[-1])
        if found is None:
            raise _refused(entry.name, f"is a hard link to {shown(entry.link)}, which is not there")
        if found.kind in ("dir", "char", "block"):
            raise _refused(entry.name, f"is a hard link to a {found.kind}")
        return found

    def _white_out(self, path: list[bytes], name: bytes, layer: int) -> None:
        parent = self._existing(path)
        if parent is None:
            return
        if name == OPAQUE:
            _clear(parent, layer)
            return
        hidden = name.removeprefix(WHITEOUT)
        if hidden in (b"", b".", b".."):
            raise HostileImageError(f"A layer has the whiteout {shown(name)}, which hides nothing.")
        child = parent.children.get(hidden)
        if child is None or (child.layer == layer and child.kind != "dir"):
            return
        if child.kind == "dir" and _clear(child, layer):
            return
        _drop(child)
        del parent.children[hidden]

    def _existing(self, path: list[bytes]) -> Node | None:
        """The directory of this path, if it is there and no symbolic link leads to it."""
        node = self.root
        for name in path:
            child = node.children.get(name)
            if child is None or child.kind != "dir":
                return None
            node = child
        return node

    def walk(self) -> Iterator[tuple[bytes, Node]]:
        """Yield each path but the root's with its file, directories before what is in them."""
        stack = [(b"", self.root)]
        while stack:
            path, node = stack.pop()
            for name in sorted(node.children, reverse=True):
                child = node.children[name]
                below = path + b"/" + name if path else name
                if child.kind == "dir":
                    stack.append((below, child))
                yield below, child


def split(name: bytes) -> list[bytes]:
    """The parts of an entry's path. Raises HostileImageError if it could leave the root."""
    if name.startswith(b"/") and name.strip(b"/"):
        raise _refused(name, "is an absolute path")
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise _refused(name, "climbs out of its directory")
    if len(name) > MAX_PATH or any(len(part) > MAX_NAME for part in parts):
        raise _refused(name, "is longer than a file system takes")
    return parts


def too_large(limit: int) -> HostileImageError:
    """The error for an image that unpacks to more than it may."""
    return HostileImageError(
        f"The image unpacks to more than {limit} bytes.",
        "If the image is meant to be so large: import it with a higher --max-unpacked.",
    )


def shown(name: bytes) -> str:
    """A name for people: what is not printable escaped, and not too long."""
    text = repr(name)[1:]
    return text if len(text) <= 200 else f"{text[:150]}...{text[-40:]}"


def _node(entry: Entry, layer: int) -> Node:
    if len(entry.link) > MAX_LINK or (entry.kind == "symlink" and not entry.link):
        raise _refused(entry.name, "has a link target that no file system takes")
    return Node(
        entry.kind, entry.mode, entry.uid, entry.gid, entry.mtime, layer,
        entry.size, entry.link, entry.device, _known(entry.xattrs),
    )  # fmt: skip


def _update(node: Node, entry: Entry, layer: int) -> None:
    node.mode, node.uid, node.gid = entry.mode, entry.uid, entry.gid
    node.mtime, node.layer, node.xattrs = entry.mtime, layer, _known(entry.xattrs)


def _known(xattrs: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: value for name, value in xattrs.items() if name.startswith(XATTRS)}


def _clear(node: Node, layer: int) -> bool:
    """Remove what earlier layers have put below a directory; say whether this layer is in it."""
    # A layer's whiteouts never touch what the same layer brings, in whatever order it says so. So a
    # second one finds only that, and does not look through it again.
    if node.cleared == layer:
        return node.layer == layer or bool(node.children)
    node.cleared = layer
    keep = node.layer == layer
    for name, child in list(node.children.items()):
        if child.kind == "dir":
            kept = _clear(child, layer)
        else:
            kept = child.layer == layer
        if kept:
            keep = True
        else:
            _drop(child)
            del node.children[name]
    return keep


def _drop(node: Node) -> None:
    """Count the names that a subtree had as gone."""
    stack = [node]
    while stack:
        each = stack.pop()
        each.names -= 1
        stack += each.children.values()


def _refused(name: bytes, why: str) -> HostileImageError:
    return HostileImageError(f"A layer's entry {shown(name)} {why}.")
