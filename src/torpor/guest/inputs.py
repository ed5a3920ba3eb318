"""The standard input of one command: bytes from the host on their way into a pipe."""

import contextlib
import os
from collections import deque
from collections.abc import Callable

from torpor.guest.loop import WRITE, Loop
from torpor.guest.wire import Chunk


class Input:
    """Takes chunks in order, each byte once, and writes them as fast as the command reads.

    ``taken`` counts the bytes that are in the pipe; once nobody can read any more, all that comes
    counts as taken, so that the sender is not left waiting. ``progress`` is called when it
    grew, until the input is closed; ``finish``, before the pipe is closed at the input's end, does
    what closing it does not do by itself.
    """

    def __init__(
        self,
        loop: Loop,
        pipe: int | None,
        progress: Callable[[], None],
        finish: Callable[[int], None] | None = None,
    ) -> None:
        self.taken = 0
        self._loop = loop
        self._pipe = pipe
        self._progress: Callable[[], None] | None = progress
        self._finish = finish
        self._end: int | None = None
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0

    def take(self, chunk: Chunk) -> None:
        """Take what is new of ``chunk``. One that leaves a gap is dropped: the host sends all that
        is not acknowledged again when it attaches, in order."""
        expected = self.taken + self._waiting_bytes
        if chunk.seq > expected:
            return
        fresh = chunk.data[expected - chunk.seq :]
        if fresh:
            self._waiting.append(fresh)
            self._waiting_bytes += len(fresh)
            self._write()

    def end_at(self, size: int) -> None:
        """Close the pipe when ``size`` bytes have been written."""
        self._end = size
        self._write()

    def close(self) -> None:
        """Close the pipe; what still waits counts as taken."""
        if self._pipe is not None:
            self._loop.forget(self._pipe)
            os.close(self._pipe)
            self._pipe = None
        self._progress = None
        self.taken += self._waiting_bytes
        self._waiting.clear()
        self._waiting_bytes = 0

    def _write(self) -> None:
        before = self.taken
        if self._pipe is None:
            self.close()
        else:
            try:
                self._write_waiting(self._pipe)
            except BlockingIOError:
                self._loop.watch(self._pipe, WRITE, lambda _events: self._write())
            except OSError:  # nobody reads any more: EPIPE, of a terminal EIO, ECONNRESET
                self.close()
            else:
                self._loop.forget(self._pipe)
                if self._end is not None and self.taken >= self._end:
                    if self._finish is not None:
                        with contextlib.suppress(OSError):  # nobody is there to be told
                            self._finish(self._pipe)
                    self.close()
        if self.taken != before and self._progress is not None:
            self._progress()

    def _write_waiting(self, pipe: int) -> None:
        while self._waiting:
            data = self._waiting[0]
            written = os.write(pipe, data)
            self.taken += written
            self._waiting_bytes -= written
            if written == len(data):
                self._waiting.popleft()
            else:
                self._waiting[0] = data[written:]
