"""Heads: what a disk that outlives machines holds now (``workspaces/<id>.json`` of a store).

Such a disk is a chain of layers, as each disk is; its head says which. A machine that has the disk
writes a layer of its own over them, and the head moves when that becomes a layer of the store: at
each freeze, when the machine gives the disk back, and when it ends by itself.

A head is replaced as a whole, by rename, after it was forced to disk. It names two states as long
as the newer one's layers may not have reached the disk: after a power cut the older one holds.
"""

import contextlib
import os
import re
import secrets
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ConfigDict

from torpor.vm import manifest as documents
from torpor.vm.accelerator import host_boot_id
from torpor.vm.disk import Layer
from torpor.vm.errors import SnapshotError
from torpor.vm.integrity import Digests, why
from torpor.vm.manifest import VERSION, Manifest, Version
from torpor.vm.syncing import fsync

DIRECTORY = "workspaces"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

Sums = dict[str, str]


@dataclass(frozen=True)
class Content:
    """What a disk holds: its chain, bottom first, since when (None: no machine has written it yet),
    and the SHA-256 sums of the layers by store path, as those of a snapshot; empty as long as they
    have not been forced to disk."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    layers: tuple[Layer, ...]
    saved_at: str | None
    sums: Sums

    @property
    def durable(self) -> bool:
        """Whether it survives a power cut."""
        return bool(self.sums)


@dataclass(frozen=True)
class Head:
    """The head of one disk of ``size_bytes`` virtual bytes.

    ``safe`` is the last content that survives a power cut, as long as ``now`` does not, which was
    written in the boot ``host_boot_id`` of this host.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    version: Version
    id: str
    size_bytes: int
    now: Content
    safe: Content | None
    host_boot_id: str

    def contents(self) -> Iterator[Content]:
        """Yield all that it may come to hold."""
        yield self.now
        if self.safe is not None:
            yield self.safe

    def uses(self) -> Iterator[str]:
        """Yield the store paths of the layers that it needs."""
        for content in self.contents():
            for layer in content.layers:
                yield f"layers/{layer.file_name}"


class Heads:
    """The heads of one store."""

    def __init__(self, root: Path) -> None:
        self._directory = root / DIRECTORY
        self._known: dict[str, tuple[tuple[int, int], Head]] = {}
        self._lock = threading.Lock()
        """Held while one head takes the place of another."""

    def ids(self) -> list[str]:
        """Return the ids of all disks."""
        if not self._directory.is_dir():
            return []
        return sorted(
            file.stem
            for file in self._directory.iterdir()
            if file.suffix == ".json" and not file.name.startswith(".")
        )

    def find(self, disk: str) -> Head | None:
        """Return the head of a disk, or None if there is none. Raises :exc:`SnapshotError` if it is
        damaged, or its layers never reached the disk."""
        file = self._file(disk)
        try:
            status = file.stat()
            key = status.st_ino, status.st_mtime_ns
            known = self._known.get(disk)
            if known is None or known[0] != key:
                found = documents.read(Head, file)
                if found.id != disk:
                    raise damaged(disk, f"its head is that of disk {found.id!r}")
                known = self._known[disk] = key, found
        except FileNotFoundError:
            return None
        except OSError as error:
            raise damaged(disk, f"its head {why(error)}") from None
        return _after_boot(known[1])

    def read(self, disk: str) -> Head:
        """Return the head of a disk. Raises :exc:`SnapshotError`, also if there is none."""
        found = self.find(disk)
        if found is None:
            raise SnapshotError(f"There is no disk {disk!r}.", state="Nothing was changed.")
        return found

    def all(self) -> Iterator[Head]:
        """Yield all heads. Raises :exc:`SnapshotError` for one that cannot be read."""
        for disk in self.ids():
            found = self.find(disk)
            if found is not None:
                yield found

    def uses(self) -> Iterator[str]:
        """Yield the store paths of the layers that disks need. Raises as :meth:`all`."""
        for head in self.all():
            yield from head.uses()

    # Writing

    def put(self, disk: str, content: Content) -> None:
        """Write the head of a new disk, with what it holds, durably. Blocks; raises OSError and
        :exc:`SnapshotError`."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        fsync(self._directory.parent)
        size = content.layers[-1].size
        self._prepare(Head(VERSION, disk, size, content, None, host_boot_id())).done()

    def prepare(self, made: Manifest) -> list["Move"]:
        """Write down that the disks of a new snapshot hold what it says, not yet to be seen: call
        :meth:`Move.done` when the snapshot is there. Blocks; raises OSError and
        :exc:`SnapshotError`, with nothing left."""
        moves: list[Move] = []
        try:
            for each in made.disks:
                if each.disk is not None:
                    moves += self.prepare_one(each.disk, each.layers, made.created_at)
        except BaseException:
            for move in moves:
                move.forget()
            raise
        return moves

    def prepare_one(
        self, disk: str, layers: tuple[Layer, ...], saved_at: str | None = None
    ) -> list["Move"]:
        """As :meth:`prepare`, of one disk. Nothing is to be done if it is so already, or if the
        disk is gone. A head that was damaged is none the worse for it: it is written anew."""
        safe = None
        with contextlib.suppress(SnapshotError):
            old = self.find(disk)
            if old is None or old.now.layers == layers:
                return []
            safe = old.now if old.now.durable else old.safe
        now = Content(layers, saved_at or moment(), {})
        return [self._prepare(Head(VERSION, disk, layers[-1].size, now, safe, host_boot_id()))]

    def move(self, disk: str, layers: tuple[Layer, ...]) -> None:
        """Let a disk hold what a chain says. Blocks; raises as :meth:`prepare`."""
        for move in self.prepare_one(disk, layers):
            move.done()

    def follow(self, made: Manifest) -> None:
        """Let disks hold what a snapshot says that is there. Blocks; raises as :meth:`prepare`."""
        for move in self.prepare(made):
            move.done()

    def settled(
        self,
        disk: str,
        before: Collection[tuple[Layer, ...]],
        now: tuple[Layer, ...],
        sums: Mapping[str, str],
    ) -> None:
        """Note that what a disk holds was forced to disk, with sums, and reads the same as the
        chain ``now``; unless it holds something else than one of ``before`` by this time. Blocks;
        raises OSError."""
        with self._lock:
            old = self.find(disk)
            if old is None or old.now.layers not in before:
                return
            if old.now.durable and old.now.layers == now:
                return
            names = [f"layers/{layer.file_name}" for layer in now]
            content = Content(now, old.now.saved_at, {name: sums[name] for name in names})
            self._prepare(replace(old, now=content, safe=None)).put()

    def remove(self, disk: str) -> None:
        """Forget a disk, if there is one; its layers are collected later. Blocks; raises
        OSError."""
        self._known.pop(disk, None)
        if self._directory.is_dir():
            self._file(disk).unlink(missing_ok=True)
            fsync(self._directory)

    def _prepare(self, head: Head) -> "Move":
        place = self._file(head.id)
        new = place.with_name(f".{head.id}.{secrets.token_hex(4)}")
        try:
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(fd, "wb") as opened:
                opened.write(documents.write(head))
                opened.flush()
                os.fsync(fd)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        return Move(new, place, self._lock)

    def clean(self) -> None:
        """Remove what was written down and never came to be seen."""
        if self._directory.is_dir():
            for file in self._directory.glob(".*"):
                file.unlink(missing_ok=True)

    def _file(self, disk: str) -> Path:
        check_id(disk)
        return self._directory / f"{disk}.json"

    def check(
        self, disk: str, layers: tuple[Layer, ...], places: Iterable[Path], digests: Digests
    ) -> None:
        """Raise :exc:`SnapshotError` if a layer is not what it was when the disk was saved. Blocks.

        ``places`` are those of ``layers``. Only layers that have sums can be told to have changed.
        """
        sums: Sums = {}
        for content in self.read(disk).contents():
            sums |= content.sums
        for layer, place in zip(layers, places, strict=True):
            name = f"layers/{layer.file_name}"
            try:
                with open(place, "rb", buffering=0) as opened:
                    wanted = sums.get(name)
                    if wanted is not None and digests.of(opened.fileno()) != wanted:
                        raise damaged(disk, f"{name} does not have the content that was saved")
            except OSError as error:
                raise damaged(disk, f"{name} {why(error)}") from None


@dataclass(frozen=True)
class Move:
    """A head that was written down, and is to take the place of the one of now."""

    new: Path
    place: Path
    lock: threading.Lock

    def done(self) -> None:
        """Put it in its place. Blocks; raises OSError."""
        with self.lock:
            self.put()

    def put(self) -> None:
        """Put it in its place, for who has the lock."""
        self.new.rename(self.place)
        fsync(self.place.parent)

    def forget(self) -> None:
        """Leave all as it is."""
        self.new.unlink(missing_ok=True)


def check_id(disk: str) -> None:
    """Raise :exc:`SnapshotError` if a text cannot be the id of a disk."""
    if not _ID.fullmatch(disk):
        raise SnapshotError(f"{disk!r} cannot be the id of a disk.", state="Nothing was changed.")


def moment() -> str:
    """Return the time of now as documents have it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def damaged(disk: str, what: str) -> SnapshotError:
    """Return the error of a disk that cannot be used as it is."""
    return SnapshotError(
        f"Disk {disk} is damaged: {what}.",
        state="Nothing was started or changed; other disks and snapshots are well.",
        todo="Restore it from a backup, or go on from a snapshot of a machine that had it.",
    )


def _after_boot(head: Head) -> Head:
    """Return a head as it holds in this boot of the host."""
    if head.now.durable or head.host_boot_id == host_boot_id():
        return head
    if head.safe is None:
        raise damaged(head.id, "the host went down before its layers had reached the disk")
    return replace(head, now=head.safe, safe=None)
