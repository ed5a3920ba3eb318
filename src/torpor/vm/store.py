"""Where snapshots live on disk, and what keeps them whole.

    snapshots/<id>/     manifest.json, devices, memory.delta, and sums.json once it is durable
    bases/<id>.mem      memory bases
    layers/<id>.<fmt>   disk layers

Everything is written elsewhere and renamed into place, never changed, and removed when nothing
reaches it any more. A snapshot exists when its directory has its final name.

A store can thaw from another one (golden snapshots, shared by many, in a cache); it never writes
there, and takes a hard link to each base and layer that it uses, so that it stays whole when the
cache is cleared.
"""

import contextlib
import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from torpor.vm import manifest as documents
from torpor.vm.accelerator import host_boot_id
from torpor.vm.base import copy_base
from torpor.vm.disk import Layer
from torpor.vm.errors import SnapshotError
from torpor.vm.integrity import Digests, damaged, unknown, why
from torpor.vm.manifest import Manifest, Sums
from torpor.vm.sizes import unshared_bytes

MANIFEST, DEVICES, DELTA, SUMS = "manifest.json", "devices", "memory.delta", "sums.json"
_PARTIAL, _TRASH = ".partial-", ".trash-"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class Collected:
    """What a garbage collection removed: names in the store, and the bytes that they took."""

    names: tuple[str, ...]
    freed_bytes: int


class Store:
    """One directory of snapshots."""

    def __init__(self, root: Path, also: "Store | None" = None) -> None:
        self.root = root
        self._also = also
        self._digests = Digests()
        self._building: set[str] = set()
        self._pinned: set[str] = set()
        self._reached: dict[str, frozenset[str]] = {}
        for part in ("snapshots", "bases", "layers"):
            (root / part).mkdir(parents=True, exist_ok=True)
        root.chmod(0o700)

    # Finding

    def ids(self) -> list[str]:
        """Return the ids of this store's snapshots, the oldest first."""
        found = []
        for entry in (self.root / "snapshots").iterdir():
            if not entry.name.startswith("."):
                # Not the directory's time: that changes when the snapshot becomes durable.
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    found.append(((entry / MANIFEST).stat().st_mtime_ns, entry.name))
                    continue
                found.append((0, entry.name))
        return [name for _, name in sorted(found)]

    def manifest(self, snapshot: str) -> Manifest:
        """Return a snapshot's manifest. Raises :exc:`SnapshotError`."""
        try:
            found = documents.read(Manifest, self.directory(snapshot) / MANIFEST)
        except OSError as error:
            raise damaged(snapshot, MANIFEST, why(error)) from None
        if found.id != snapshot:
            raise damaged(snapshot, MANIFEST, f"is that of snapshot {found.id!r}")
        return found

    def directory(self, snapshot: str) -> Path:
        """Return the directory of a snapshot, here or in the other store.

        Raises :exc:`SnapshotError` if there is none.
        """
        for store in self._stores():
            directory = store._own_directory(snapshot)
            if directory is not None:
                return directory
        raise unknown(snapshot)

    def _own_directory(self, snapshot: str) -> Path | None:
        directory = self.root / "snapshots" / snapshot
        return directory if _ID.fullmatch(snapshot) and directory.is_dir() else None

    def base(self, base: str) -> Path:
        """Return the file of a memory base. Raises :exc:`SnapshotError` if it is missing."""
        return self._object(f"bases/{base}.mem")

    def layer(self, layer: Layer) -> Path:
        """Return the file of a disk layer. Raises :exc:`SnapshotError` if it is missing."""
        return self._object(f"layers/{layer.file_name}")

    def keep(self, names: Iterable[str]) -> None:
        """Make sure that bases and layers (store paths) are in this store and not only in the
        other.

        Hard links where both are on one file system, else copies. Raises :exc:`SnapshotError` if
        one is missing, and OSError.
        """
        for name in names:
            place = self.root / name
            if place.exists():
                continue
            found = self._object(name)
            new = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
            with self.pin(f"{place.parent.name}/{new.name}"):
                try:
                    link_or_copy(found, new)
                    new.rename(place)
                finally:
                    new.unlink(missing_ok=True)

    def _object(self, name: str) -> Path:
        file_name = name.partition("/")[2]
        if _ID.fullmatch(file_name):
            for store in self._stores():
                if (store.root / name).exists():
                    return store.root / name
        raise SnapshotError(
            f"{name} is missing from the store.",
            state="Other snapshots are not touched.",
            todo="Restore it from a backup, or remove the snapshots that need it.",
        )

    def _stores(self) -> Iterator["Store"]:
        yield self
        if self._also is not None:
            yield self._also

    # Writing

    def begin(self, snapshot: str) -> Path:
        """Make and return the directory in which a new snapshot is put together, not yet visible.

        Raises :exc:`SnapshotError` if there is one of this id, or it is no id.
        """
        if not _ID.fullmatch(snapshot):
            raise SnapshotError(
                f"{snapshot!r} cannot be the id of a snapshot.",
                state="Nothing was changed.",
                todo="Use up to 100 letters, digits, dots and hyphens, the first no dot or hyphen.",
            )
        partial = self.root / "snapshots" / f"{_PARTIAL}{snapshot}"
        if self._own_directory(snapshot) is not None or partial.exists():
            raise SnapshotError(
                f"There is a snapshot {snapshot!r} already, or it is being made.",
                state="Nothing was changed.",
            )
        partial.mkdir()
        self._building.add(snapshot)
        return partial

    def commit(self, partial: Path, new: Manifest, objects: dict[str, Path]) -> None:
        """Make a snapshot visible: hard-link its new ``objects`` (by store path), rename its
        directory.

        Survives the end of this process at any moment, not yet a power cut: see
        :meth:`make_durable`.
        """
        for name, file in objects.items():
            self.put(file, name)
        (partial / MANIFEST).write_bytes(documents.write(new))
        partial.rename(self.root / "snapshots" / new.id)
        self._building.discard(new.id)

    def put(self, file: Path, name: str) -> Path:
        """Hard-link a base or layer into the store, and return its place. Raises OSError.

        It may be there already: of a freeze that was cut off after this step, whose machine ran on.
        """
        place = self.root / name
        try:
            os.link(file, place)
        except FileExistsError:
            if not place.samefile(file):
                raise
        return place

    def abandon(self, partial: Path) -> None:
        """Remove what :meth:`begin` made."""
        shutil.rmtree(partial, ignore_errors=True)
        self._building.discard(partial.name.removeprefix(_PARTIAL))

    def make_durable(self, snapshot: str, disk: tuple[Layer, ...] | None = None) -> Sums:
        """Force a snapshot to disk and write its sums. Blocks for as long as the disk takes.

        ``disk`` is a shorter chain that is to take the place of the manifest's. Raises
        :exc:`SnapshotError` and OSError.
        """
        directory = self._own_directory(snapshot)
        if directory is None:
            raise unknown(snapshot)
        with contextlib.suppress(FileNotFoundError):
            return documents.read(Sums, directory / SUMS)
        found = self.manifest(snapshot)
        _check_boot(found)
        known = self._inherited_sums(found)
        sums: dict[str, str] = {}
        disk = disk or found.disk
        for name, file in self._needed(found, disk):
            if name in known:
                sums[name] = known[name]
                continue
            try:
                with open(file, "rb", buffering=0) as opened:
                    os.fsync(opened.fileno())
                    sums[name] = self._digests.of(opened.fileno())
            except FileNotFoundError as error:
                raise damaged(snapshot, name, why(error)) from None
        result = Sums(sums, disk)
        new = directory / f".{SUMS}"
        new.write_bytes(documents.write(result))
        fsync(new)
        for place in ("snapshots", "bases", "layers"):
            fsync(self.root / place)
        new.rename(directory / SUMS)
        fsync(directory)
        return result

    def durable(self, snapshot: str) -> bool:
        """Whether a snapshot survives a power cut."""
        return (self.directory(snapshot) / SUMS).exists()

    def _inherited_sums(self, found: Manifest) -> dict[str, str]:
        if found.parent is None:
            return {}
        try:
            parent = documents.read(Sums, self.directory(found.parent) / SUMS)
        except (SnapshotError, OSError):
            return {}
        return {name: value for name, value in parent.files.items() if "/" in name}

    def disk(self, found: Manifest) -> tuple[Layer, ...]:
        """Return the layers of a snapshot's disk, bottom first, as they are to be used now.

        Raises :exc:`SnapshotError`.
        """
        try:
            return documents.read(Sums, self.directory(found.id) / SUMS).disk
        except FileNotFoundError:
            return found.disk
        except OSError as error:
            raise damaged(found.id, SUMS, why(error)) from None

    def pin(self, name: str) -> AbstractContextManager[None]:
        """Keep :meth:`collect` from removing a file that nothing reaches yet."""

        @contextlib.contextmanager
        def pinned() -> Iterator[None]:
            self._pinned.add(name)
            try:
                yield
            finally:
                self._pinned.discard(name)

        return pinned()

    def _needed(self, found: Manifest, disk: tuple[Layer, ...]) -> Iterator[tuple[str, Path]]:
        directory = self.directory(found.id)
        yield MANIFEST, directory / MANIFEST
        if found.memory is not None:
            yield DEVICES, directory / DEVICES
            if found.memory.delta:
                yield DELTA, directory / DELTA
            yield f"bases/{found.memory.base}.mem", self.base(found.memory.base)
        for layer in (*disk, found.tools):
            yield f"layers/{layer.file_name}", self.layer(layer)

    # Verifying

    def verify(self, snapshot: str) -> Manifest:
        """Check that a snapshot is whole and return its manifest. Raises :exc:`SnapshotError`.

        Files that this process has found good before, and whose size, times and inode are the same,
        are not read again.
        """
        found = self.manifest(snapshot)
        directory = self.directory(snapshot)
        sums: dict[str, str] | None = None
        try:
            sums = documents.read(Sums, directory / SUMS).files
        except FileNotFoundError:
            _check_boot(found)
        except OSError as error:
            raise damaged(snapshot, SUMS, why(error)) from None
        sizes = dict(found.sizes)
        if found.memory is not None:
            sizes[f"bases/{found.memory.base}.mem"] = found.shape.memory_bytes
        for name, file in self._needed(found, self.disk(found)):
            if sums is not None and name not in sums:
                raise damaged(snapshot, SUMS, f"has no sum of {name}")
            wanted = sums[name] if sums is not None else None
            self._digests.check(snapshot, name, file, wanted, sizes.get(name))
        return found

    # Removing

    def remove(self, snapshot: str) -> None:
        """Remove a snapshot; what others need of it stays. Raises :exc:`SnapshotError`."""
        directory = self._own_directory(snapshot)
        if directory is None:
            raise unknown(snapshot)
        self._reached.pop(snapshot, None)
        trash = directory.with_name(f"{_TRASH}{snapshot}")
        directory.rename(trash)
        shutil.rmtree(trash)

    def collect(self, used: Iterable[str], building: Iterable[str] = ()) -> Collected:
        """Remove what no snapshot and nothing in ``used`` (store paths) reaches.

        ``building`` names snapshots that are being put together by others; unfinished ones that are
        not, nor put together through this object, are removed.
        A snapshot whose manifest cannot be read keeps the store from removing bases and layers.
        """
        names: list[str] = []
        freed = 0
        under_way = self._building | set(building)
        for entry in (self.root / "snapshots").iterdir():
            unfinished = entry.name.startswith(_PARTIAL) and (
                entry.name.removeprefix(_PARTIAL) not in under_way
            )
            if unfinished or entry.name.startswith(_TRASH):
                freed += unshared_bytes(entry.rglob("*"))
                names.append(entry.name)
                shutil.rmtree(entry)
        reached = set(used)
        for snapshot in self.ids():
            try:
                reached.update(self._reached_by(snapshot))
            except (SnapshotError, OSError):
                return Collected(tuple(names), freed)
        for part in ("bases", "layers"):
            for file in (self.root / part).iterdir():
                name = f"{part}/{file.name}"
                # Asked now: a thread may have begun with a file since, or have finished it.
                if name not in reached and name not in self._pinned and not file.is_dir():
                    freed += unshared_bytes([file])
                    names.append(name)
                    file.unlink(missing_ok=True)
        return Collected(tuple(names), freed)

    def _reached_by(self, snapshot: str) -> frozenset[str]:
        """Return the store paths that a snapshot needs; read once from where it does not change."""
        known = self._reached.get(snapshot)
        if known is not None:
            return known
        final = self.durable(snapshot)
        found = self.manifest(snapshot)
        reached = frozenset(reachable(found, self.disk(found)))
        if final:
            self._reached[snapshot] = reached
        return reached

    def stored_bytes(self) -> int:
        """Return what would be free if this store were removed, in bytes.

        Sparse files count as what they hold; what is shared with another store does not count.
        """
        return unshared_bytes(self.root.rglob("*"))


def _check_boot(found: Manifest) -> None:
    """Refuse a snapshot without sums whose files may not have reached the disk in time."""
    if found.host_boot_id != host_boot_id():
        raise SnapshotError(
            f"Snapshot {found.id} was not made durable before the host went down.",
            state="Nothing was changed.",
            todo="Use an older snapshot.",
        )


def reachable(found: Manifest, disk: Iterable[Layer]) -> Iterator[str]:
    """Yield the store paths of the bases and layers that a snapshot with this disk needs."""
    if found.memory is not None:
        yield f"bases/{found.memory.base}.mem"
    for layer in (*disk, found.tools):
        yield f"layers/{layer.file_name}"


def link_or_copy(source: Path, target: Path) -> None:
    """Make ``target`` a hard link to a file, or a copy, holes kept, on another file system."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy_base(source, target)
        target.chmod(source.stat().st_mode & 0o777)


def fsync(path: Path) -> None:
    """Force a file or directory to disk. Blocks; raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
