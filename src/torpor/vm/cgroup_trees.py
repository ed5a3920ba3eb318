"""Where on this host the control groups of machines can be made, found out by trying.

Under version 2 a group whose controllers are handed on to its children may hold no processes of its
own (``admin-guide/cgroup-v2.rst``, "No Internal Process Constraint"). So a service that was given a
group (systemd's ``Delegate=yes``) moves into a child of it first.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

CONTROLLERS = ("memory", "cpu", "pids")
PROGRAM = "torpor-program"
"""The group that this program moves into, beside those of its machines."""
MACHINES = "torpor"
"""The group that we make at the root of a tree of version 2, for those of the machines."""
_ESCAPES = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


@dataclass(frozen=True)
class Tree:
    """Where groups can be made: ``parents`` has, for each controller that is there, the directory
    below which they come. ``lacking`` names the controllers that are not."""

    version: Literal[1, 2]
    parents: tuple[tuple[str, Path], ...]

    @property
    def lacking(self) -> tuple[str, ...]:
        """The controllers that cannot be had."""
        return tuple(name for name in CONTROLLERS if self.parent(name) is None)

    def parent(self, controller: str) -> Path | None:
        """Return where the groups with this controller are made, if it can be had."""
        return dict(self.parents).get(controller)

    def places(self) -> tuple[Path, ...]:
        """Return each directory below which groups are made, once."""
        return tuple(dict.fromkeys(place for _, place in self.parents))


@dataclass(frozen=True)
class Mount:
    """A mounted tree of control groups: the group ``root`` of it is seen at ``directory``."""

    directory: Path
    root: str
    version: Literal[1, 2]
    options: tuple[str, ...]


class NoTreeError(Exception):
    """No group can be made here, and why."""


def find_tree(
    *, root: bool, mountinfo: str | None = None, own_groups: str | None = None
) -> Tree | str:
    """Return where groups can be made, or why none can.

    ``root``: are we root? The texts are those of ``/proc/self/mountinfo`` and
    ``/proc/self/cgroup``.
    """
    if mountinfo is None:
        mountinfo = Path("/proc/self/mountinfo").read_text()
    if own_groups is None:
        own_groups = Path("/proc/self/cgroup").read_text()
    found = list(mounts(mountinfo))
    own = _own_groups(own_groups)
    why = "the host has no control groups mounted"
    for mount in found:
        if mount.version == 2:
            try:
                return _version_2(mount, own.get("", "/"), root=root)
            except (NoTreeError, OSError) as error:
                why = _reason(error)
    parents, closed = [], []
    for controller in CONTROLLERS:
        for mount in found:
            if mount.version == 1 and controller in mount.options:
                place = _inside(mount, own.get(controller, "/"))
                if os.access(place, os.W_OK | os.X_OK):
                    parents.append((controller, place))
                else:
                    closed.append(str(place))
                break
    if closed:
        why = f"not ours to write: {', '.join(dict.fromkeys(closed))}"
    return Tree(1, tuple(parents)) if parents else why


def mounts(mountinfo: str) -> Iterator[Mount]:
    """Yield the trees of control groups that a ``/proc/self/mountinfo`` has (proc(5))."""
    for line in mountinfo.splitlines():
        before, dash, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if not dash or kinds[0] not in ("cgroup", "cgroup2"):
            continue
        version: Literal[1, 2] = 2 if kinds[0] == "cgroup2" else 1
        options = tuple(kinds[2].split(","))
        yield Mount(Path(_unescaped(fields[4])), _unescaped(fields[3]), version, options)


def _unescaped(path: str) -> str:
    for escape, character in _ESCAPES.items():
        path = path.replace(escape, character)
    return path


def _own_groups(text: str) -> dict[str, str]:
    """Return our group's path by controller; version 2 has the empty name (cgroups(7))."""
    found = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            found[name] = path
    return found


def _inside(mount: Mount, path: str) -> Path:
    """Return the directory of a group; a container may see a part of the tree only."""
    if mount.root != "/" and (path + "/").startswith(mount.root + "/"):
        path = path[len(mount.root) :]
    place = mount.directory / path.lstrip("/")
    return place if place.is_dir() else mount.directory


def _version_2(mount: Mount, path: str, *, root: bool) -> Tree:
    """Find the place in a tree of version 2. Raises :exc:`NoTreeError` and OSError."""
    offered = (mount.directory / "cgroup.controllers").read_text().split()
    if "memory" not in offered:
        raise NoTreeError(f"{mount.directory} does not have the memory controller")
    own = _inside(mount, path)
    if own.name == PROGRAM or _is_delegated(own.parent, root=root):
        return _handed_on(own.parent)
    if own != mount.directory and _is_delegated(own, root=root):
        try:
            return _handed_on(own)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        _move_out_of_the_way(own)
        return _handed_on(own)
    if not root:
        raise NoTreeError(f"the group {own} was not given to us (systemd: Delegate=yes)")
    below = mount.directory / MACHINES
    _handed_on(mount.directory)  # also in a container, if nothing runs in its topmost group
    below.mkdir(exist_ok=True)
    return _handed_on(below)


def _is_delegated(group: Path, *, root: bool) -> bool:
    """Whether whoever manages the tree has left this part of it to us.

    systemd marks it with an attribute (its page CGROUP_DELEGATION); root may write everywhere, so
    only that tells. Any other user may write only where it was delegated.
    """
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(group, name) == b"1":
                return True
    return not root and all(
        os.access(group / name, os.W_OK) for name in (".", "cgroup.procs", "cgroup.subtree_control")
    )


def _handed_on(group: Path) -> Tree:
    """Hand the controllers on to a group's children. Raises OSError, :exc:`NoTreeError`."""
    offered = (group / "cgroup.controllers").read_text().split()
    wanted = [name for name in CONTROLLERS if name in offered]
    if "memory" not in wanted:
        raise NoTreeError(f"the group {group} has no memory controller")
    given = (group / "cgroup.subtree_control").read_text().split()
    missing = [name for name in wanted if name not in given]
    if missing:
        text = " ".join(f"+{name}" for name in missing)
        (group / "cgroup.subtree_control").write_text(text)
    return Tree(2, tuple((name, group) for name in wanted))


def _move_out_of_the_way(group: Path) -> None:
    others = {int(pid) for pid in (group / "cgroup.procs").read_text().split()} - {os.getpid()}
    if others:
        raise NoTreeError(
            f"the group {group} was given to us and holds {len(others)} other processes too;"
            " start Torpor in one of its own (systemd-run --user --scope -p Delegate=yes)"
        )
    (group / PROGRAM).mkdir(exist_ok=True)
    (group / PROGRAM / "cgroup.procs").write_text(str(os.getpid()))


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {(error.strerror or str(error)).lower()}"
    return str(error)
