"""Import: the file of an exported snapshot -> a snapshot in a store (:mod:`torpor.vm.exported`).

Everything is written into ``imports/<digest>/`` first, where a later try goes on. It is checked
there, byte for byte, before anything of it becomes visible, and what the store already has is not
written again.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from torpor.vm import manifest as documents
from torpor.vm.accelerator import host_boot_id
from torpor.vm.base import BLOCK
from torpor.vm.canonical import canonical
from torpor.vm.delta import check_delta
from torpor.vm.errors import SnapshotError
from torpor.vm.export import Report, silent
from torpor.vm.exported import (
    CutOffError,
    File,
    Index,
    Piece,
    object_name,
    read_beginning,
    read_exactly,
    read_next,
    write_beginning,
    wrong,
)
from torpor.vm.imported import check_index, renamed, without_marks
from torpor.vm.manifest import DELTA, MANIFEST, SUMS, Manifest, Sums
from torpor.vm.piece_writer import PieceWriter, pieces_written
from torpor.vm.qcow2 import check_header
from torpor.vm.sizes import free_bytes
from torpor.vm.store import Store

IMPORTS = "imports"
BEGINNING = "beginning"
ABANDONED = 86400.0
RESERVE = 64 << 20
"""Bytes of free space that an import leaves."""


@dataclass(frozen=True)
class Imported:
    """An imported snapshot: ``written`` bytes of content were new, of which an earlier import had
    brought ``resumed``; ``shared`` files the store had. ``already``: it had the snapshot itself."""

    manifest: Manifest
    written: int = 0
    resumed: int = 0
    shared: tuple[str, ...] = ()
    already: bool = False


def import_snapshot(
    store: Store,
    source: BinaryIO,
    *,
    name: str | None = None,
    announce: Callable[[Manifest], None] = lambda _: None,
    report: Report = silent,
    check: Callable[[], None] = lambda: None,
    everywhere: bool = True,
    own: bool = False,
) -> Imported:
    """Add the snapshot in ``source``, a file or a pipe, to a store; it is durable then. Blocks.

    ``name`` is the id that it gets instead of its own. ``announce`` is told what comes, before any
    of it does. ``check`` is called between pieces and may raise; the same import goes on there
    later. What the store has already is not written again: it is looked for ``everywhere``, or, in
    a store of imported snapshots alone, by its name. Unless it is our ``own``, from a backup, it
    loses the labels by which a server knows what it has left itself. Raises :exc:`SnapshotError`
    and OSError; the store's snapshots are then as they were.
    """
    index, beginning = read_beginning(source)
    index = renamed(index, name)
    if not own:
        index = replace(index, manifest=without_marks(index.manifest))
    check_index(index)
    announce(index.manifest)
    key = hashlib.sha256(beginning + index.manifest.id.encode()).hexdigest()
    directory = store.root / IMPORTS / key
    if _has(store, index):
        shutil.rmtree(directory, ignore_errors=True)
        return Imported(index.manifest, already=True)
    _check_id(store, index.manifest.id)
    shared = _find_shared(store, index, report, everywhere=everywhere)
    with _locked(directory):
        (directory / BEGINNING).write_bytes(write_beginning(index))
        arrival = _Arrival(store, index, directory, shared, check)
        arrival.take(source, beginning, report)
        arrival.verify(report)
        return arrival.place()


def remove_abandoned(store: Store) -> int:
    """Remove imports that nobody has gone on with for a day; return how many."""
    count = 0
    for directory in (store.root / IMPORTS).glob("*"):
        newest = max((each.stat().st_mtime for each in directory.iterdir()), default=0.0)
        if newest < time.time() - ABANDONED:
            shutil.rmtree(directory)
            count += 1
    return count


def _has(store: Store, index: Index) -> bool:
    """Whether the store has this very snapshot. Raises :exc:`SnapshotError` if it has another."""
    new = index.manifest
    if not store.has(new.id):
        return False
    if not store.durable(new.id):  # an import was cut off in its very last step
        store.make_durable(new.id)
    found, sums = store.durable_parts(new.id)
    own = {file.name: file.sha256 for file in index.files if "/" not in file.name}
    if (
        without_marks(canonical(found, sums)[0]) == without_marks(new)
        and own.items() <= sums.files.items()
    ):
        return True
    raise SnapshotError(
        f"There is another snapshot {new.id!r} already.",
        state="Nothing was added to the store.",
        todo="Give the one in the file another id.",
    )


def _check_id(store: Store, snapshot: str) -> None:
    """Refuse an id that would come before a golden snapshot's own."""
    golden = snapshot.startswith("golden-")
    with contextlib.suppress(SnapshotError):
        golden = store.directory(snapshot) is not None
    if golden:
        raise SnapshotError(
            f"{snapshot!r} is the id of a golden snapshot.",
            state="Nothing was added to the store.",
            todo="Import it under an id of its own.",
        )
    store.abandon(store.begin(snapshot))  # is it an id, and free?


def _find_shared(
    store: Store, index: Index, report: Report, *, everywhere: bool
) -> dict[str, Path]:
    """Return, by name, the files that the store or its golden snapshots have already.

    Raises :exc:`SnapshotError` if one is missing that was left out.
    """
    wanted = [file for file in index.files if "/" in file.name]
    known: dict[str, list[Path]] = {file.sha256: [] for file in wanted}
    for file in wanted:
        names = dict.fromkeys((file.name, object_name(file.name, file.sha256)))
        known[file.sha256] += [each.root / name for each in store.stores() for name in names]
    for each in store.stores() if everywhere else ():
        for snapshot in each.ids():
            with contextlib.suppress(SnapshotError, OSError):
                sums = documents.read(Sums, each.root / "snapshots" / snapshot / SUMS)
                for name, digest in sums.files.items():
                    if digest in known and (each.root / name) not in known[digest]:
                        known[digest].append(each.root / name)
    shared: dict[str, Path] = {}
    total, done = sum(file.blocks for file in wanted) * BLOCK, 0
    for file in wanted:
        report("looking for what is here already", done, total)
        done += file.blocks * BLOCK
        for place in known[file.sha256]:
            if _is(store, place, file):
                shared[file.name] = place
                break
    lacking = [file.name for file in index.files if file.left_out and file.name not in shared]
    if lacking:
        raise SnapshotError(
            f"The file leaves out what this host does not have: {', '.join(lacking)}.",
            state="Nothing was added to the store.",
            todo="Make the same golden snapshot here, or export it with all that it needs.",
        )
    return shared


def _is(store: Store, place: Path, file: File) -> bool:
    with contextlib.suppress(FileNotFoundError), open(place, "rb", buffering=0) as opened:
        size = os.fstat(opened.fileno()).st_size
        return size == file.size and store.digests.of(opened.fileno()) == file.sha256
    return False


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Make or find the directory of an import and lock it.

    It is removed if the import succeeds, or can never succeed; else a later one goes on with it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CutOffError(
                "Another program is importing this file.", state="Nothing was changed."
            ) from None
        yield
        shutil.rmtree(directory)
    except CutOffError:
        raise
    except SnapshotError:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    finally:
        os.close(lock)
        with contextlib.suppress(OSError):
            directory.parent.rmdir()


class _Arrival:
    """An import under way: its files, and how much of them is there."""

    def __init__(
        self,
        store: Store,
        index: Index,
        directory: Path,
        shared: dict[str, Path],
        check: Callable[[], None],
    ) -> None:
        self._store = store
        self._index = index
        self._directory = directory
        self._shared = shared
        self._check = check
        self._own = [number for number, file in enumerate(index.files) if file.name not in shared]
        self._total = sum(index.files[number].blocks for number in self._own) * BLOCK
        self._resumed = 0

    def _file(self, number: int) -> Path:
        return self._directory / str(number)

    def take(self, source: BinaryIO, beginning: bytes, report: Report) -> None:
        """Read all pieces, and write those that are new."""
        files = self._index.files
        done = self._done()
        self._check_space(done)
        sha = hashlib.sha256(beginning)
        counts = [0] * len(files)
        number = written = 0
        with contextlib.ExitStack() as stack:
            fds = {number: self._open(number, stack) for number in self._own}
            writer = stack.enter_context(PieceWriter(fds, files, self._directory))
            while True:
                self._check()
                piece, head = read_next(source)
                if not isinstance(piece, Piece):
                    break
                sha.update(head)
                if piece.file >= len(files) or files[piece.file].left_out:
                    raise wrong("a piece is of no file")
                counts[piece.file] += piece.blocks
                if counts[piece.file] > files[piece.file].blocks:
                    raise wrong(f"{files[piece.file].name} has more in it than it should")
                number += 1
                if piece.file in fds:
                    written += piece.blocks * BLOCK
                if number <= done and source.seekable():
                    source.seek(piece.packed, os.SEEK_CUR)
                else:
                    packed = read_exactly(source, piece.packed, "a piece")
                    writer.take(piece, packed, number, write=piece.file in fds and number > done)
                if number <= done:
                    self._resumed = written
                report(f"importing {self._index.manifest.id}", written, self._total)
        if piece.pieces != number or piece.sha256 != sha.digest():
            raise wrong("its end does not fit the rest")
        if source.read(1):
            raise wrong("something stands behind its end")
        lacking = [
            file.name
            for file, count in zip(files, counts, strict=True)
            if count != file.blocks and not file.left_out
        ]
        if lacking:
            raise wrong(f"{lacking[0]} lacks blocks")

    def _done(self) -> int:
        # What the store had then, it may have no more now.
        whole = all(self._file(number).exists() for number in self._own)
        return pieces_written(self._directory) if whole else 0

    def _check_space(self, done: int) -> None:
        there = 0
        for number in self._own:
            if not done:
                self._file(number).unlink(missing_ok=True)
            elif self._file(number).exists():
                there += self._file(number).stat().st_blocks * 512
        room = free_bytes(self._directory) + there
        if self._total + RESERVE > room:
            raise SnapshotError(
                f"The snapshot needs {self._total >> 20} MiB, and {room >> 20} MiB are free.",
                state="Nothing was added to the store.",
                todo="Free some space.",
            )

    def _open(self, number: int, stack: contextlib.ExitStack) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(self._file(number), flags, 0o600)
        stack.callback(os.close, fd)
        os.ftruncate(fd, self._index.files[number].size)
        return fd

    def verify(self, report: Report) -> None:
        """Check what was written: digests, and what layers and the delta say of themselves."""
        found = self._index.manifest
        layers = {f"layers/{layer.file_name}": layer for layer in found.first.layers()}
        done = 0
        for number in self._own:
            self._check()
            file, path = self._index.files[number], self._file(number)
            report("checking what was written", done, self._total)
            done += file.blocks * BLOCK
            if not _is(self._store, path, file):
                raise wrong(f"{file.name} does not have the content that its index says")
            layer = layers.get(file.name)
            if layer is not None and layer.format == "qcow2":
                check_header(path, layer.size)
            if file.name == DELTA:
                check_delta(path, found.shape.memory_bytes)

    def place(self) -> Imported:
        """Make the snapshot visible and durable."""
        store, found = self._store, replace(self._index.manifest, host_boot_id=host_boot_id())
        partial = store.begin(found.id)
        with contextlib.ExitStack() as stack:
            stack.callback(store.abandon, partial)
            for number, file in enumerate(self._index.files):
                if "/" not in file.name:
                    os.link(self._file(number), partial / file.name)
                    continue
                stack.enter_context(store.pin(file.name))
                if (store.root / file.name).exists():
                    if not _is(store, store.root / file.name, file):
                        raise SnapshotError(
                            f"{file.name} is in the store, and its content is not what its name"
                            " says.",
                            state="Nothing was added to the store.",
                            todo="Remove the snapshots that need it: they are damaged.",
                        )
                    continue
                if file.name not in self._shared:
                    mode = 0o444 if file.name.startswith("bases/") else 0o600
                    self._file(number).chmod(mode)
                store.take(self._shared.get(file.name, self._file(number)), file.name)
            store.commit(partial, found, {})
            made = datetime.fromisoformat(found.created_at).timestamp()
            now = datetime.now(UTC).timestamp()
            # Snapshots are listed by when they were made, wherever that was.
            manifest = store.directory(found.id) / MANIFEST
            os.utime(manifest, (now, min(max(made, 0.0), now)))
            try:
                store.make_durable(found.id)
            except BaseException:
                store.remove(found.id)
                raise
        return Imported(found, self._total, self._resumed, tuple(self._shared))
