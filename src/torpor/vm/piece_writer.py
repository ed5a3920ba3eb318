"""The pieces of an exported snapshot on their way into files: unpacked by several threads, written
in order, and counted, so that a later import goes on behind them."""

import os
import struct
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from torpor.vm.accelerator import host_boot_id
from torpor.vm.base import BLOCK
from torpor.vm.export import WORKERS
from torpor.vm.exported import CutOffError, File, Piece, unpack, wrong
from torpor.vm.pages import write_all

_PROGRESS = struct.Struct("<Q36s")
"""How many pieces have been written, and in which boot of the host."""
_STATE = "progress"

Blocks = tuple[list[tuple[int, int]], memoryview]


def pieces_written(directory: Path) -> int:
    """Return how many pieces an import before has written; those of another boot do not count,
    since they may not have reached the disk."""
    try:
        done, boot = _PROGRESS.unpack((directory / _STATE).read_bytes())
    except (FileNotFoundError, struct.error):
        return 0
    return int(done) if boot.decode("ascii", "replace") == host_boot_id() else 0


class PieceWriter:
    """Unpacks pieces and writes them in order to ``fds``, by file number. A context."""

    def __init__(self, fds: dict[int, int], files: tuple[File, ...], directory: Path) -> None:
        self._fds = fds
        self._files = files
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="import")
        self._waiting: deque[tuple[Piece, int, bool, Future[Blocks]]] = deque()
        self._progress = os.open(directory / _STATE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._boot = host_boot_id().encode()

    def __enter__(self) -> "PieceWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            while self._waiting and (kind is None or issubclass(kind, CutOffError)):
                self._write_next()
        finally:
            self._pool.shutdown(cancel_futures=True)
            os.close(self._progress)

    def take(self, piece: Piece, packed: bytes, number: int, *, write: bool) -> None:
        """Take the content of piece ``number``; it is only checked if it is not to be written."""
        self._waiting.append((piece, number, write, self._pool.submit(unpack, piece, packed)))
        if len(self._waiting) > 2 * WORKERS:
            self._write_next()

    def _write_next(self) -> None:
        piece, number, write, future = self._waiting.popleft()
        runs, content = future.result()
        file = self._files[piece.file]
        if sum(runs[-1]) > -(-file.size // BLOCK):
            raise wrong(f"{file.name} has blocks beyond its end")
        if write:
            position = 0
            for first, count in runs:
                length = min(count * BLOCK, file.size - first * BLOCK)
                if any(content[position + length : position + count * BLOCK]):
                    raise wrong(f"{file.name} has bytes beyond its end")
                write_all(
                    self._fds[piece.file], content[position : position + length], first * BLOCK
                )
                position += count * BLOCK
        os.pwrite(self._progress, _PROGRESS.pack(number, self._boot), 0)
