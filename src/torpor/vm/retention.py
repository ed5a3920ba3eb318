"""Which snapshots go: a policy, and a plan that says of each why, and what that frees.

Planning changes nothing. What a removal frees is counted from the files themselves: a part that
another snapshot, a machine or the cache holds as well frees nothing, and one that several doomed
snapshots share is counted once.
"""

import contextlib
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from torpor.vm.errors import SnapshotError
from torpor.vm.manifest import KEPT, reachable
from torpor.vm.sizes import store_files
from torpor.vm.store import Store
from torpor.vm.syncing import fsync

KEEP = "keep"
"""The label that keeps a snapshot from every policy."""


@dataclass(frozen=True)
class Policy:
    """What is to stay. Each rule that is given may doom a snapshot.

    ``keep``: the newest so many of each line; ``age``: those that are younger; ``most_bytes``: as
    many of the newest as fit. The newest of a line and those with the label ``keep`` stay in any
    case, unless ``newest_too`` gives up the former.
    """

    keep: int | None = None
    age: timedelta | None = None
    most_bytes: int | None = None
    newest_too: bool = False


@dataclass(frozen=True)
class Standing:
    """A snapshot as the planner sees it. ``parts`` are its files, by inode, with the bytes that
    they take; ``kept`` says that it has the label."""

    id: str
    created_at: datetime
    parent: str | None
    kept: bool
    parts: dict[tuple[int, int], int] = field(hash=False)


@dataclass(frozen=True)
class Removal:
    """A snapshot that is to go. ``frees`` bytes, after those that are removed before it."""

    id: str
    why: str
    frees: int


@dataclass(frozen=True)
class Plan:
    """What a policy makes of a store. ``before`` and ``after`` are bytes of all snapshots;
    ``exceeds`` says by how much what must stay is more than was allowed. ``left_alone`` are those
    that were not judged."""

    removals: tuple[Removal, ...]
    before: int
    after: int
    exceeds: int
    left_alone: tuple[str, ...] = ()


def plan(
    standing: Sequence[Standing],
    policy: Policy,
    now: datetime,
    held: Iterable[tuple[int, int]] = (),
    owned: Collection[str] = (),
) -> Plan:
    """Say which snapshots a policy removes. ``held`` are inodes that stay whatever goes, ``owned``
    snapshots that are somebody's who removes them himself: they are left alone.

    A line goes from a snapshot that no other one here came from back through its parents, as far as
    they are here. Pure: nothing is looked up or changed.
    """
    ordered = sorted(standing, key=lambda each: (each.created_at, each.id))
    newest = _newest_of_lines(ordered)
    left_alone = tuple(each.id for each in ordered if each.id in owned)
    safe = {each.id for each in ordered if each.kept}.union(left_alone)
    if not policy.newest_too:
        safe |= newest
    doomed: dict[str, str] = {}  # the oldest first
    within = _within(ordered, newest, policy.keep) if policy.keep is not None else None
    for each in ordered:
        if each.id in safe:
            continue
        if within is not None and each.id not in within:
            doomed[each.id] = f"not among the newest {policy.keep} of its line"
        elif policy.age is not None and now - each.created_at > policy.age:
            doomed[each.id] = f"made {_days(now - each.created_at)} ago"
    room = _Room(ordered, held)
    removals = [Removal(name, why, room.remove(name)) for name, why in doomed.items()]
    if policy.most_bytes is not None:
        names = [each.id for each in ordered if each.id not in safe and each.id not in doomed]
        removals += _for_size(room, names, policy.most_bytes)
    exceeds = 0 if policy.most_bytes is None else max(0, room.taken - policy.most_bytes)
    return Plan(tuple(removals), room.all, room.taken, exceeds, left_alone)


def _newest_of_lines(ordered: Sequence[Standing]) -> set[str]:
    parents = {each.parent for each in ordered}
    return {each.id for each in ordered if each.id not in parents}


def _within(ordered: Sequence[Standing], newest: set[str], count: int) -> set[str]:
    """Return the newest ``count`` of each line."""
    by_id = {each.id: each for each in ordered}
    found: set[str] = set()
    for name in newest:
        at: Standing | None = by_id[name]
        for _ in range(count):
            if at is None:
                break
            found.add(at.id)
            at = by_id.get(at.parent) if at.parent is not None else None
    return found


class _Room:
    """The bytes that snapshots take, as one after another goes."""

    def __init__(self, ordered: Sequence[Standing], held: Iterable[tuple[int, int]]) -> None:
        self._parts = {each.id: each.parts for each in ordered}
        self._users = Counter(part for each in ordered for part in each.parts)
        self._users.update(held)
        sizes = {part: size for each in ordered for part, size in each.parts.items()}
        self.all = self.taken = sum(sizes.values())

    def remove(self, name: str) -> int:
        """Remove a snapshot and return what that frees."""
        self._users.subtract(self._parts[name].keys())
        freed = sum(size for part, size in self._parts[name].items() if not self._users[part])
        self.taken -= freed
        return freed

    def put_back(self, name: str) -> None:
        """Undo :meth:`remove`."""
        parts = self._parts[name]
        self.taken += sum(size for part, size in parts.items() if not self._users[part])
        self._users.update(parts.keys())


def _for_size(room: _Room, names: Sequence[str], most: int) -> list[Removal]:
    """Remove the oldest of ``names`` until no more than ``most`` bytes are taken."""
    gone: list[str] = []
    for name in names:
        if room.taken <= most:
            break
        room.remove(name)
        gone.append(name)
    # Some may have gone in vain: what they have, others need as well. The newest come back first.
    reached = max(room.taken, most)
    for name in reversed(gone.copy()):
        room.put_back(name)
        if room.taken <= reached:
            gone.remove(name)
        else:
            room.remove(name)
    for name in gone:
        room.put_back(name)
    return [Removal(name, "the oldest, to make room", room.remove(name)) for name in gone]


def _days(age: timedelta) -> str:
    return f"{age.days} days" if age.days > 1 else f"{age // timedelta(hours=1)} h"


def standing(store: Store) -> Iterator[Standing]:
    """Yield the snapshots of a store, but for those that cannot be read: nothing is planned for
    them."""
    for snapshot in store.ids():
        with contextlib.suppress(SnapshotError, OSError, ValueError):
            found = store.manifest(snapshot)
            directory = store.directory(snapshot)
            files = [each for each in directory.iterdir() if each.is_file()]
            files += [store.root / name for name in reachable(found, store.disks(found))]
            parts = {}
            for file in files:
                with contextlib.suppress(FileNotFoundError):
                    status = file.stat()
                    parts[status.st_dev, status.st_ino] = status.st_blocks * 512
            yield Standing(
                snapshot,
                datetime.fromisoformat(found.created_at),
                found.parent,
                is_kept(store, snapshot),
                parts,
            )


def mark_kept(store: Store, snapshot: str, *, kept: bool) -> None:
    """Say that a snapshot is to be kept, as the label does, or no longer. Raises
    :exc:`SnapshotError` and OSError."""
    store.manifest(snapshot)
    directory = store.root / "snapshots" / snapshot
    if kept:
        (directory / KEPT).touch(0o600)
    else:
        (directory / KEPT).unlink(missing_ok=True)
    fsync(directory)


def is_kept(store: Store, snapshot: str) -> bool:
    """Whether a snapshot is to be kept. Raises :exc:`SnapshotError`."""
    labelled = KEEP in store.manifest(snapshot).labels
    return labelled or (store.directory(snapshot) / KEPT).exists()


def frees(store: Store) -> dict[str, int]:
    """Return for each snapshot what removing it alone would free."""
    held = held_elsewhere(store, ())
    all_of_them = list(standing(store))
    users = Counter(part for each in all_of_them for part in each.parts)
    users.update(held)
    return {
        each.id: sum(size for part, size in each.parts.items() if users[part] == 1)
        for each in all_of_them
    }


def held_elsewhere(store: Store, used: Iterable[str]) -> set[tuple[int, int]]:
    """Return the inodes that stay whatever snapshots go: those that machines use (store paths),
    those of disks that outlive machines, and those with hard links outside of the store, as in the
    cache. If what a disk holds cannot be read, it may be any layer."""
    held = set()
    links: Counter[tuple[int, int]] = Counter()
    counts = {}
    for file in store_files(store.root):
        with contextlib.suppress(FileNotFoundError):
            status = file.lstat()
            if stat.S_ISREG(status.st_mode):
                links[status.st_dev, status.st_ino] += 1
                counts[status.st_dev, status.st_ino] = status.st_nlink
    try:
        lasting = list(store.heads.uses())
    except SnapshotError:
        lasting = [f"layers/{file.name}" for file in (store.root / "layers").iterdir()]
    for name in (*used, *lasting):
        with contextlib.suppress(FileNotFoundError):
            status = (store.root / name).stat()
            held.add((status.st_dev, status.st_ino))
    return held | {inode for inode, count in counts.items() if count > links[inode]}
