"""Erasure: a snapshot removed so that its content cannot be read back from the store, with proof.

What a file system gives back it may keep for a while, and a disk below it for longer. What can be
shown is that nothing in the store holds the content any more: each file is cut to nothing while it
is still known, so that no name, link or open descriptor leads to its bytes, and is seen to be empty
before its name goes. What others share stays, and the report says with whom.
"""

import contextlib
import errno
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torpor.vm.base import data_spans
from torpor.vm.errors import SnapshotError
from torpor.vm.exported import read_beginning
from torpor.vm.importing import BEGINNING, IMPORTS
from torpor.vm.integrity import unknown
from torpor.vm.manifest import Manifest, reachable
from torpor.vm.pages import write_all
from torpor.vm.store import Store
from torpor.vm.syncing import fsync

PIECE = 1 << 20
PLAIN = ("ext2", "ext3", "ext4", "xfs", "vfat")
"""File systems that write where the old bytes were; others write elsewhere, and keep them."""
_ZEROS = bytes(PIECE)


@dataclass(frozen=True)
class Erasure:
    """What became of one file: ``why`` it is still there, if it was ``kept``.

    ``own`` says that the snapshot brought it; what it had taken over from where it came from is not
    its own. ``open_in`` are processes that had it open when it was cut; they read nothing of it any
    more.
    """

    name: str
    bytes: int
    what: Literal["erased", "kept"]
    own: bool
    why: str = ""
    open_in: tuple[int, ...] = ()


@dataclass(frozen=True)
class Erased:
    """The report of an erasure.

    ``complete``: nothing that the snapshot brought is left in the store. ``overwritten``: the bytes
    were written over, and read back, before they were given up. ``descendants`` are snapshots that
    came from it and hold what they took over. ``limits`` say what this does not show.
    """

    snapshot: str
    files: tuple[Erasure, ...]
    overwritten: bool
    descendants: tuple[str, ...]
    limits: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether nothing that the snapshot brought is left in the store."""
        kept = any(file.own and file.what == "kept" for file in self.files)
        return not kept and not self.descendants


def erase(
    store: Store, snapshot: str, used: Iterable[str] = (), *, overwrite: bool = False
) -> Erased:
    """Remove a snapshot and what only it needed, and make sure that the content is gone. Blocks.

    ``used`` are the store paths that machines need. With ``overwrite`` the bytes are written over
    first, which says something on plain disks only. Raises :exc:`SnapshotError` and OSError; an
    erasure that fails on the way can be made again as long as the snapshot is listed.
    """
    if snapshot not in store.ids():
        raise unknown(snapshot)
    kind = file_system(store.root)
    if overwrite and kind not in PLAIN:
        raise SnapshotError(
            f"On {kind} new bytes are not written over the old ones, so that would prove nothing.",
            state="Nothing was changed.",
            todo="Erase it without overwriting, or destroy the disk.",
        )
    found = store.manifest(snapshot)
    sharers = dict(_sharers(store, found, set(used)))
    names = _all_objects(store, found)
    own = _brought(store, found)
    directory = store.root / "snapshots" / snapshot
    descendants = _descendants(store, snapshot)
    rest = [*sorted(directory.iterdir()), *_unfinished(store, snapshot)]
    files = []
    # The objects first: what needs them is the snapshot, and it is listed until they are gone.
    for name in names:
        place = store.root / name
        with contextlib.suppress(FileNotFoundError):
            why = sharers.get(name) or _linked_elsewhere(store, place)
            if why:
                files.append(Erasure(name, _bytes(place), "kept", name in own, why))
            else:
                files.append(_erase_file(name, place, overwrite, own=name in own))
    for place in rest:
        name = str(place.relative_to(store.root))
        files.append(_erase_file(name, place, overwrite, own=True))
    store.remove(snapshot)
    for place in rest:
        with contextlib.suppress(OSError):
            place.parent.rmdir()
    return Erased(
        snapshot,
        tuple(files),
        overwrite,
        descendants,
        tuple(_limits(store, found, kind, overwrite)),
    )


def _all_objects(store: Store, found: Manifest) -> list[str]:
    """Return the store paths of all that holds content of a snapshot: what it needs now, and the
    layers of its first chains that are still there."""
    names = dict.fromkeys([*reachable(found, store.disks(found)), *reachable(found, found.first)])
    return [name for name in names if (store.root / name).exists()]


def _brought(store: Store, found: Manifest) -> set[str]:
    """Return the store paths of what came with a snapshot: a base of its own, the layer on top, and
    what that was merged into."""
    names = set(found.sizes)
    if found.memory is not None and not found.memory.delta:
        names.add(f"bases/{found.memory.base}.mem")
    merged = set(store.disks(found).layers()) - set(found.first.layers())
    return names | {f"layers/{layer.file_name}" for layer in merged}


def _sharers(store: Store, found: Manifest, used: set[str]) -> Iterator[tuple[str, str]]:
    """Yield store paths that others need, and who does."""
    for name in used:
        yield name, "a machine that runs needs it"
    users: dict[str, list[str]] = {}
    # What cannot be read may need all of it.
    first, now = reachable(found, found.first), reachable(found, store.disks(found))
    everything = list(dict.fromkeys([*first, *now]))
    for disk in store.heads.ids():
        try:
            reached = list(store.heads.read(disk).uses())
        except SnapshotError:
            reached = everything
        for name in dict.fromkeys(reached):
            users.setdefault(name, []).append(f"disk {disk}")
    for other in store.ids():
        if other == found.id:
            continue
        try:
            manifest = store.manifest(other)
            reached = list(reachable(manifest, store.disks(manifest)))
        except (SnapshotError, OSError):
            reached = everything
        for name in reached:
            users.setdefault(name, []).append(other)
    for name, others in users.items():
        yield name, f"shared with {', '.join(others)}"


def _linked_elsewhere(store: Store, place: Path) -> str:
    """Say where else a file has a name; cutting it would cut it there too."""
    status = place.stat()
    if status.st_nlink == 1:
        return ""
    here = [
        each
        for each in store.root.rglob("*")
        if each != place and not each.is_symlink() and each.exists() and each.samefile(place)
    ]
    cached = [each.root for each in store.stores() if each is not store]
    for root in cached:
        for each in root.rglob("*"):
            if each.is_file() and each.samefile(place):
                return f"shared with the golden snapshots ({each.name})"
    if here:
        return f"shared with {here[0].relative_to(store.root)}"
    return f"{status.st_nlink - 1} hard links to it are outside of this store"


def _bytes(place: Path) -> int:
    return place.stat().st_blocks * 512


def _erase_file(name: str, place: Path, overwrite: bool, *, own: bool) -> Erasure:
    """Make a file empty, see that it is, and remove its name."""
    taken = _bytes(place)
    place.chmod(0o600)
    fd = os.open(place, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        open_in = _open_in(os.fstat(fd))
        if overwrite:
            _overwrite(name, fd)
        os.ftruncate(fd, 0)
        os.fsync(fd)
        status = os.fstat(fd)
        if status.st_size or status.st_blocks > 8:  # some file systems keep a block of attributes
            raise OSError(errno.EIO, "the file system did not give up the bytes", str(place))
    finally:
        os.close(fd)
    place.unlink()
    fsync(place.parent)
    return Erasure(name, taken, "erased", own, "", open_in)


def _overwrite(name: str, fd: int) -> None:
    """Write zeros over all data of a file, force them to the disk, and read them back."""
    size = os.fstat(fd).st_size
    spans = list(data_spans(fd, 0, size))
    for start, end in spans:
        for position in range(start, end, PIECE):
            write_all(fd, _ZEROS[: min(PIECE, end - position)], position)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # what is read back comes from the disk
    for start, end in spans:
        for position in range(start, end, PIECE):
            if any(os.pread(fd, min(PIECE, end - position), position)):
                raise OSError(errno.EIO, "zeros were written and something else was read", name)


def _open_in(status: os.stat_result) -> tuple[int, ...]:
    """Return the processes, as far as they may be looked at, that have a file open."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            for fd in (entry / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.path.samestat(fd.stat(), status):
                        found.add(int(entry.name))
    return tuple(sorted(found))


def _descendants(store: Store, snapshot: str) -> tuple[str, ...]:
    """Return the snapshots that were made after it on its lines, as far as they can be followed."""
    parents: dict[str, str | None] = {}
    for other in store.ids():
        with contextlib.suppress(SnapshotError, OSError):
            parents[other] = store.manifest(other).parent
    found = {snapshot}
    while more := {each for each, parent in parents.items() if parent in found} - found:
        found |= more
    return tuple(each for each in parents if each in found and each != snapshot)


def _unfinished(store: Store, snapshot: str) -> Iterator[Path]:
    """Yield the files of imports under way of the same snapshot."""
    for directory in sorted((store.root / IMPORTS).glob("*")):
        try:
            with open(directory / BEGINNING, "rb") as beginning:
                index, _ = read_beginning(beginning)
        except (SnapshotError, OSError):
            continue  # an import that had hardly begun
        if index.manifest.id == snapshot:
            yield from sorted(each for each in directory.iterdir() if each.is_file())


def file_system(path: Path) -> str:
    """Return the kind of the file system that a path is on, as mount(8) calls it."""
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    best = ("", "an unknown file system")
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        kind = fields[fields.index("-") + 1]
        place = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        inside = path.resolve().is_relative_to(place)
        if fields[2] == wanted and inside and len(place) >= len(best[0]):
            best = (place, kind)
    return best[1]


def _limits(store: Store, found: Manifest, kind: str, overwrite: bool) -> Iterator[str]:
    if found.parent in store.ids():
        yield f"Snapshot {found.parent}, from which it came, holds what it had taken over."
    yield "Copies that were exported, or made with other programs, are not known here."
    if overwrite:
        yield (
            "A disk that moves its blocks (any SSD) may keep what was written over; and the file"
            " system's own journal may hold parts of it."
        )
        return
    yield (
        f"The bytes were given back to {kind}, which may leave them on the disk until it needs the"
        " room. `fstrim` tells an SSD to forget them; whoever has the disk in hand needs encryption"
        " of the whole disk to be kept out."
    )
