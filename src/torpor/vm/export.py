"""Export: a snapshot and all that it needs -> one file (:mod:`torpor.vm.exported`).

The same snapshot gives the same bytes. So an export that was cut off goes on behind the last whole
piece of what it has written.
"""

import contextlib
import fcntl
import hashlib
import io
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from torpor.vm.base import BLOCK, count_and_digest, data_blocks
from torpor.vm.canonical import canonical
from torpor.vm.errors import SnapshotError
from torpor.vm.exported import (
    BLOCKS,
    File,
    Index,
    Piece,
    Trailer,
    object_name,
    pack,
    read_exactly,
    read_next,
    unpack,
    write_beginning,
)
from torpor.vm.integrity import damaged
from torpor.vm.manifest import MANIFEST, Manifest
from torpor.vm.own_file import open_own
from torpor.vm.sizes import stored_bytes
from torpor.vm.store import Store
from torpor.vm.syncing import fsync

WORKERS = min(4, os.cpu_count() or 1)
PARTIAL = ".partial"
NONE = -1
"""In place of the descriptor of a file that is not read."""

Report = Callable[[str, int, int], None]
"""Is told what is being done, and how many of how many bytes."""


@dataclass(frozen=True)
class Exported:
    """An exported snapshot: ``size`` bytes of file, ``content`` of blocks in it.

    ``resumed`` are the bytes that an export before had written already, ``left_out`` the parts
    that the target must have.
    """

    manifest: Manifest
    size: int
    content: int
    resumed: int
    left_out: tuple[str, ...]


def silent(_what: str, _done: int, _total: int) -> None:
    """Tell nobody."""


def export_file(
    store: Store,
    snapshot: str,
    file: Path,
    *,
    shared: bool = True,
    replace: bool = False,
    report: Report = silent,
    check: Callable[[], None] = lambda: None,
) -> Exported:
    """Write a durable snapshot to ``file``, which appears when it is whole. Blocks.

    What is there of it, as ``<file>.partial``, from an export that was cut off, is gone on with.
    Without ``shared``, what golden snapshots have too is left out. ``check`` is called between
    pieces and may raise. Raises :exc:`SnapshotError` and OSError.
    """
    if file.exists() and not replace:
        raise SnapshotError(
            f"{file} is there already.",
            state="Nothing was written.",
            todo="Choose another name, or ask for it to be replaced.",
        )
    partial = file.with_name(file.name + PARTIAL)
    with open(open_own(partial), "r+b") as target:
        try:
            fcntl.flock(target, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SnapshotError(
                f"Another program is exporting to {file}.", state="Nothing was changed."
            ) from None
        with _Source.opened(store, snapshot, shared, report, check) as source:
            made = source.write(target, resume=True)
        os.fsync(target.fileno())
        partial.rename(file)
    fsync(file.parent)
    return made


def export_stream(
    store: Store,
    snapshot: str,
    out: BinaryIO,
    *,
    shared: bool = True,
    report: Report = silent,
    check: Callable[[], None] = lambda: None,
) -> Exported:
    """Write a durable snapshot to a pipe or whatever takes bytes; else as :func:`export_file`."""
    with _Source.opened(store, snapshot, shared, report, check) as source:
        return source.write(out, resume=False)


def export_part(
    store: Store,
    snapshot: str,
    out: BinaryIO,
    there: dict[str, int],
    *,
    report: Report = silent,
    check: Callable[[], None] = lambda: None,
) -> Exported:
    """Write a durable snapshot that the target gets together with others.

    ``there`` has the objects that it will have by then (:func:`torpor.vm.exported.object_name`),
    and how many blocks of each are not all zeros: they are left out, unread. Those that were
    written are added to it. Else as :func:`export_stream`.
    """
    with _Source.opened(store, snapshot, True, report, check, there) as source:
        made = source.write(out, resume=False)
        there.update(source.objects())
        return made


class _Source:
    """A snapshot's files, open and checked, and where in them the next piece begins."""

    def __init__(
        self, index: Index, files: Sequence[int], report: Report, check: Callable[[], None]
    ) -> None:
        self._index = index
        self._fds = files
        self._report = report
        self._check = check
        self._total = sum(f.blocks for f in index.files if not f.left_out) * BLOCK

    @classmethod
    @contextlib.contextmanager
    def opened(
        cls,
        store: Store,
        snapshot: str,
        shared: bool,
        report: Report,
        check: Callable[[], None],
        there: Mapping[str, int] = MappingProxyType({}),
    ) -> Iterator["_Source"]:
        """Open and verify all files of a snapshot; what is open stays, whoever removes it."""
        found, sums = store.durable_parts(snapshot)
        manifest, paths = canonical(found, sums)
        named = {old: new for new, old in paths.items()}
        with contextlib.ExitStack() as stack:
            fds: list[int] = []
            files: list[File] = []
            needed = list(store.files(found, sums.now))
            total, done = stored_bytes(path for _, path in needed), 0
            for name, path in needed:
                if name == MANIFEST:
                    continue
                known = there.get(object_name(name, sums.files[name])) if "/" in name else None
                if known is not None:
                    digest, size = sums.files[name], path.stat().st_size
                    files.append(File(named.get(name, name), size, known, digest, True))
                    fds.append(NONE)
                    continue
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, fd)
                check()
                report(f"reading {snapshot}", done, total)
                blocks, digest = count_and_digest(fd)
                done = min(done + os.fstat(fd).st_blocks * 512, total)
                if digest != sums.files[name]:
                    raise damaged(snapshot, name, "does not have the content that was saved")
                left_out = not shared and store.elsewhere(name)
                size = os.fstat(fd).st_size
                files.append(File(named.get(name, name), size, blocks, digest, left_out))
                fds.append(fd)
            yield cls(Index(manifest, tuple(files)), fds, report, check)

    def objects(self) -> dict[str, int]:
        """Return the bases and layers that are not left out, as :func:`export_part` has them."""
        return {
            object_name(file.name, file.sha256): file.blocks
            for file in self._index.files
            if "/" in file.name and not file.left_out
        }

    def write(self, out: BinaryIO, *, resume: bool) -> Exported:
        """Write it all; with ``resume``, ``out`` can be read, and what stands in it may be kept."""
        beginning = write_beginning(self._index)
        sha = hashlib.sha256(beginning)
        pieces = size = 0
        after = (0, 0)
        if resume:
            pieces, size, after = self._resume(out, beginning, sha)
            out.seek(size)
            out.truncate()
        resumed = size
        if not size:
            out.write(beginning)
            size = len(beginning)
        for piece, packed, done in self._packed(after):
            head = piece.write()
            sha.update(head)
            out.write(head)
            out.write(packed)
            size += len(head) + len(packed)
            pieces += 1
            self._report(f"exporting {self._index.manifest.id}", done * BLOCK, self._total)
            self._check()
        end = Trailer(pieces, sha.digest()).write()
        out.write(end)
        out.flush()
        left_out = tuple(file.name for file in self._index.files if file.left_out)
        return Exported(self._index.manifest, size + len(end), self._total, resumed, left_out)

    def _resume(
        self, out: BinaryIO, beginning: bytes, sha: "hashlib._Hash"
    ) -> tuple[int, int, tuple[int, int]]:
        """Return how many pieces of ``out`` are whole, where they end, and which block is next."""
        out.seek(0)
        if out.read(len(beginning)) != beginning:
            return 0, 0, (0, 0)
        pieces, size, after = 0, len(beginning), (0, 0)
        with contextlib.suppress(SnapshotError):  # what is not whole is written again
            while True:
                self._check()
                piece, head = read_next(out)
                if not isinstance(piece, Piece):
                    break
                runs, _ = unpack(piece, read_exactly(out, piece.packed, "a piece"))
                sha.update(head)
                pieces += 1
                size += len(head) + piece.packed
                after = (piece.file, sum(runs[-1]))
        return pieces, size, after

    def _packed(self, after: tuple[int, int]) -> Iterator[tuple[Piece, bytes, int]]:
        """Yield the pieces from a block of a file on, packed by several threads, and how many
        blocks there were up to then."""
        done = 0
        for number, file in enumerate(self._index.files):
            if number < after[0] and not file.left_out:
                done += file.blocks
        waiting: deque[tuple[Future[tuple[Piece, bytes]], int]] = deque()
        with ThreadPoolExecutor(WORKERS, thread_name_prefix="export") as pool:
            for number, blocks, content in self._pieces(after):
                waiting.append((pool.submit(pack, number, blocks, content), len(blocks)))
                if len(waiting) > 2 * WORKERS:
                    future, count = waiting.popleft()
                    done += count
                    yield *future.result(), done
            for future, count in waiting:
                done += count
                yield *future.result(), done

    def _pieces(self, after: tuple[int, int]) -> Iterator[tuple[int, list[int], bytes]]:
        for number, file in enumerate(self._index.files):
            if number < after[0] or file.left_out:
                continue
            blocks: list[int] = []
            content = io.BytesIO()
            first = after[1] if number == after[0] else 0
            for block, buffer in data_blocks(self._fds[number], first):
                blocks.append(block)
                content.write(buffer)
                if len(blocks) == BLOCKS:
                    yield number, blocks, content.getvalue()
                    blocks, content = [], io.BytesIO()
            if blocks:
                yield number, blocks, content.getvalue()
