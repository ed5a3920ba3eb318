"""Where snapshots live on disk, and what keeps them whole.

    snapshots/<id>/     manifest.json, devices, memory.delta, and sums.json once it is durable
    bases/<id>.mem      memory bases
    layers/<id>.<fmt>   disk layers
    workspaces/<id>.json  what disks that outlive machines hold (:mod:`torpor.vm.heads`)

Everything is written elsewhere and renamed into place, never changed, and removed when nothing
reaches it. A snapshot exists when its directory has its final name.

A store can thaw from another one (golden snapshots, shared by many, in a cache); it never writes
there, and takes a hard link to each base and layer that it uses, so that it stays whole when the
cache is cleared.
"""

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torpor.vm import manifest as documents
from torpor.vm.base import link_or_copy
from torpor.vm.disk import Layer
from torpor.vm.errors import SnapshotError
from torpor.vm.heads import Heads
from torpor.vm.integrity import Digests, check_boot, damaged, not_durable, unknown, why
from torpor.vm.manifest import (
    MANIFEST,
    SUMS,
    Disks,
    Entry,
    Manifest,
    Sums,
    file_names,
    reachable,
)
from torpor.vm.sizes import unshared_bytes
from torpor.vm.syncing import fsync

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
        self._snapshots = root / "snapshots"
        self._also = also
        self.digests = Digests()
        self.heads = Heads(root)
        self._building: set[str] = set()
        self._pinned: set[str] = set()
        self._entries: dict[str, Entry] = {}
        self._reached: dict[str, tuple[int, frozenset[str]]] = {}
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for part in ("snapshots", "bases", "layers"):
            (root / part).mkdir(parents=True, exist_ok=True)
        root.chmod(0o700)

    def ids(self) -> list[str]:
        """Return the ids of this store's snapshots, the oldest first."""
        found = []
        for entry in self._snapshots.iterdir():
            if not entry.name.startswith("."):
                # Not the directory's time: that changes when the snapshot becomes durable.
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    found.append(((entry / MANIFEST).stat().st_mtime_ns, entry.name))
                    continue
                found.append((0, entry.name))
        return [name for _, name in sorted(found)]

    def manifest(self, snapshot: str) -> Manifest:
        """Return a snapshot's manifest. Raises :exc:`SnapshotError`."""
        return self._read(snapshot, self.directory(snapshot))

    def _read(self, snapshot: str, directory: Path) -> Manifest:
        try:
            found = documents.read(Manifest, directory / MANIFEST)
        except OSError as error:
            raise damaged(snapshot, MANIFEST, why(error)) from None
        if found.id != snapshot:
            raise damaged(snapshot, MANIFEST, f"is that of snapshot {found.id!r}")
        return found

    def entry(self, snapshot: str) -> Entry:
        """Return a snapshot's entry, read once. Raises :exc:`SnapshotError`."""
        directory = self.directory(snapshot)  # it may be gone
        if snapshot not in self._entries:
            self._entries[snapshot] = Entry.of(self._read(snapshot, directory))
        return self._entries[snapshot]

    def directory(self, snapshot: str) -> Path:
        """Return the directory of a snapshot, here or in the other store.

        Raises :exc:`SnapshotError` if there is none.
        """
        for store in self.stores():
            directory = store._own_directory(snapshot)
            if directory is not None:
                return directory
        raise unknown(snapshot)

    def is_golden(self, snapshot: str) -> bool:
        """Whether a snapshot is in the other store, that of golden ones."""
        return self._own_directory(snapshot) is None

    def _own_directory(self, snapshot: str) -> Path | None:
        directory = self._snapshots / snapshot
        return directory if _ID.fullmatch(snapshot) and directory.is_dir() else None

    def has(self, snapshot: str) -> bool:
        """Whether this store has a snapshot, and not only the other one."""
        return self._own_directory(snapshot) is not None

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
            if not (self.root / name).exists():
                self.take(self._object(name), name)

    def take(self, found: Path, name: str) -> None:
        """Make a base or layer that lies elsewhere this store's ``name``, as :meth:`keep` does."""
        place = self.root / name
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
            for store in self.stores():
                if (store.root / name).exists():
                    return store.root / name
        raise SnapshotError(
            f"{name} is missing from the store.",
            state="Other snapshots are not touched.",
            todo="Restore it from a backup, or remove the snapshots that need it.",
        )

    def elsewhere(self, name: str) -> bool:
        """Whether the other store has the base or layer ``name`` too."""
        return self._also is not None and (self._also.root / name).exists()

    def stores(self) -> Iterator["Store"]:
        """Yield this store, and the other one if there is one."""
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

    def make_durable(self, snapshot: str, disks: Disks | None = None) -> Sums:
        """Force a snapshot to disk and write its sums. Blocks for as long as the disk takes.

        ``disks`` are shorter chains that are to take the place of the manifest's. Raises
        :exc:`SnapshotError` and OSError.
        """
        directory = self._own_directory(snapshot)
        if directory is None:
            raise unknown(snapshot)
        with contextlib.suppress(FileNotFoundError):
            return documents.read(Sums, directory / SUMS)
        found = self.manifest(snapshot)
        check_boot(found)
        known = self._inherited_sums(found)
        sums: dict[str, str] = {}
        disks = disks or found.first
        for name, file in self.files(found, disks):
            if name in known:
                sums[name] = known[name]
                continue
            try:
                sums[name] = self.forced(file)
            except FileNotFoundError as error:
                raise damaged(snapshot, name, why(error)) from None
        result = Sums(sums, disks.root, disks.slots)
        for place in ("snapshots", "bases", "layers"):
            fsync(self.root / place)
        self.write_sums(snapshot, result)
        return result

    def forced(self, file: Path) -> str:
        """Force a file to disk, and return its digest. Blocks; raises OSError."""
        with open(file, "rb", buffering=0) as opened:
            os.fsync(opened.fileno())
            return self.digests.of(opened.fileno())

    def write_sums(self, snapshot: str, sums: Sums) -> None:
        """Write the sums of a snapshot all of whose files have been forced to disk. Blocks."""
        directory = self.root / "snapshots" / snapshot
        new = directory / f".{SUMS}"
        new.write_bytes(documents.write(sums))
        fsync(new)
        new.rename(directory / SUMS)
        fsync(directory)

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

    def durable_parts(self, snapshot: str) -> tuple[Manifest, Sums]:
        """Return manifest and sums of a durable snapshot. Raises :exc:`SnapshotError`."""
        found = self.manifest(snapshot)
        try:
            sums = documents.read(Sums, self.directory(snapshot) / SUMS)
        except FileNotFoundError:
            raise not_durable(snapshot) from None
        except OSError as error:
            raise damaged(snapshot, SUMS, why(error)) from None
        lacking = [name for name in file_names(found, sums.now) if name not in sums.files]
        if lacking:
            raise damaged(snapshot, SUMS, f"has no sum of {lacking[0]}")
        return found, sums

    def disks(self, found: Manifest) -> Disks:
        """Return the chains of a snapshot's disks as they are to be used now.

        Raises :exc:`SnapshotError`.
        """
        return self._disks(found, self.directory(found.id))

    def _disks(self, found: Manifest, directory: Path) -> Disks:
        try:
            return documents.read(Sums, directory / SUMS).now
        except FileNotFoundError:
            return found.first
        except OSError as error:
            raise damaged(found.id, SUMS, why(error)) from None

    @contextlib.contextmanager
    def pin(self, name: str) -> Iterator[None]:
        """Keep :meth:`collect` from removing a file that nothing reaches yet."""
        self._pinned.add(name)
        try:
            yield
        finally:
            self._pinned.discard(name)

    def files(self, found: Manifest, disks: Disks) -> Iterator[tuple[str, Path]]:
        """Yield name and place of each file that a snapshot with these disks needs.

        Raises :exc:`SnapshotError` if one is missing.
        """
        directory = self.directory(found.id)
        for name in file_names(found, disks):
            yield name, self._object(name) if "/" in name else directory / name

    # Verifying

    def verify(self, snapshot: str, disks: Disks | None = None) -> Manifest:
        """Check that a snapshot is whole and return its manifest. Raises :exc:`SnapshotError`.

        ``disks`` are the chains that are to be used, if they are not those of now.

        Files that this process has found good before, and whose size, times and inode are the same,
        are not read again.
        """
        # Read once: a shorter chain may take the place of a disk's meanwhile.
        if self.durable(snapshot):
            found, sums = self.durable_parts(snapshot)
            wanted, disks = sums.files, disks or sums.now
        else:
            found = self.manifest(snapshot)
            check_boot(found)
            wanted, disks = {}, disks or found.first
        sizes = dict(found.sizes)
        if found.memory is not None:
            sizes[f"bases/{found.memory.base}.mem"] = found.shape.memory_bytes
        for name, file in self.files(found, disks):
            self.digests.check(snapshot, name, file, wanted.get(name), sizes.get(name))
        return found

    # Removing

    def remove(self, snapshot: str) -> None:
        """Remove a snapshot; what others need of it stays. Raises :exc:`SnapshotError`."""
        directory = self._own_directory(snapshot)
        if directory is None:
            raise unknown(snapshot)
        self._entries.pop(snapshot, None)
        self._reached.pop(snapshot, None)
        trash = directory.with_name(f"{_TRASH}{snapshot}")
        directory.rename(trash)
        shutil.rmtree(trash)

    def collect(self, used: Iterable[str], building: Iterable[str] = ()) -> Collected:
        """Remove what no snapshot and nothing in ``used`` (store paths) reaches.

        ``building`` names snapshots that are being put together by others; unfinished ones that are
        not, nor put together through this object, are removed.
        What disks that outlive machines hold is reached too. A snapshot whose manifest cannot be
        read, or a disk's head, keeps the store from removing bases and layers.
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
        try:
            reached.update(self.heads.uses())
            for snapshot in self.ids():
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
        # Its sums, once they are there, are replaced only as a whole, by another file.
        directory = self.directory(snapshot)
        try:
            final = (directory / SUMS).stat().st_ino
        except FileNotFoundError:
            final = 0
        known = self._reached.get(snapshot)
        if known is not None and known[0] == final:
            return known[1]
        found = self._read(snapshot, directory)
        self._entries[snapshot] = Entry.of(found)  # asked for next, in a start
        reached = frozenset(reachable(found, self._disks(found, directory)))
        if final:
            self._reached[snapshot] = (final, reached)
        return reached

    def stored_bytes(self) -> int:
        """Return what would be free if this store were removed, in bytes.

        Sparse files count as what they hold; what is shared with another store does not count.
        """
        return unshared_bytes(self.root.rglob("*"))
