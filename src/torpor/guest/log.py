"""The kept output of one command: a bounded log, addressed by sequence number."""

from bisect import bisect_right
from collections import deque
from typing import Any

from torpor.guest.wire import Chunk

MERGED = 4 << 10
"""Bytes up to which small writes are kept as one: each chunk costs 150 bytes beside its data."""


class Log:
    """Bytes of several sources in the order in which they arrived, the oldest dropped past
    ``keep``.

    Sequence numbers count bytes from 0 over all sources. ``start`` is the oldest byte still kept,
    ``end`` the next one to come.
    """

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self.start = 0
        self.end = 0
        self._chunks: deque[Chunk] = deque()

    def append(self, source: int, data: bytes, held_from: int | None = None) -> None:
        """Add ``data``; drop the oldest chunks that ``keep`` bytes can do without, but none at or
        after ``held_from``."""
        last = self._chunks[-1] if self._chunks else None
        if last and last.source == source and len(last.data) + len(data) <= MERGED:
            self._chunks[-1] = Chunk(last.seq, source, last.data + data)
        else:
            self._chunks.append(Chunk(self.end, source, data))
        self.end += len(data)
        while len(self._chunks) > 1:
            oldest = self._chunks[0]
            after = oldest.seq + len(oldest.data)
            if self.end - after < self.keep or (held_from is not None and after > held_from):
                return
            self._chunks.popleft()
            self.start = after

    def hand_over(self) -> dict[str, Any]:
        """Return all that this is, for :meth:`take_over`."""
        return {
            "keep": self.keep,
            "start": self.start,
            "end": self.end,
            "chunks": [tuple(chunk) for chunk in self._chunks],
        }

    @classmethod
    def take_over(cls, left: dict[str, Any]) -> "Log":
        """Return the log that another handed over."""
        log = cls(left["keep"])
        log.start, log.end = left["start"], left["end"]
        log._chunks.extend(Chunk(*chunk) for chunk in left["chunks"])
        return log

    def read(self, seq: int, limit: int) -> Chunk | None:
        """Return at most ``limit`` bytes of one source from ``seq`` on; None if there are none yet.

        ``seq`` must be at least ``start``.
        """
        if seq >= self.end:
            return None
        chunk = self._chunks[-1]  # readers are nearly always at the end
        if chunk.seq > seq:
            chunk = self._chunks[bisect_right(self._chunks, seq, key=_first) - 1]
        skip = seq - chunk.seq
        return Chunk(seq, chunk.source, chunk.data[skip : skip + limit])


def _first(chunk: Chunk) -> int:
    return chunk.seq
