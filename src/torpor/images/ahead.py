"""Making chunks in a thread of their own, while those before them are being read."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator

MOST = 4
"""How many chunks wait to be read: enough that neither side waits for each single one, and few,
because a bomb makes as many as there is room for."""


def ahead(chunks: Iterator[bytes]) -> Generator[bytes, None, None]:
    """Pass chunks on as they come, and what they end with: their end, or an error.

    No more than ``MOST`` are made before they are asked for. What makes them is at rest when this
    iterator is closed or has ended, and may be closed too.
    """
    made: queue.SimpleQueue[bytes | BaseException | None] = queue.SimpleQueue()
    room = threading.Semaphore(MOST)
    unwanted = threading.Event()

    def make() -> None:
        try:
            while room.acquire() and not unwanted.is_set():
                chunk = next(chunks, None)
                made.put(chunk)
                if chunk is None:
                    return
        except BaseException as error:
            made.put(error)

    maker = threading.Thread(target=make, name="ahead")
    maker.start()
    try:
        while (item := made.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            room.release()
            yield item
    finally:
        unwanted.set()
        room.release()
        maker.join()
