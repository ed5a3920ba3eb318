"""writer.py DIRECTORY: append 100 numbered lines a second to a file, with no fsync.

SIGTERM ends it between two lines; it then tells how many it has written, by its own count.
"""

import signal
import sys
import time
from typing import Any

from answering import answer_on_signal

RATE = 100
directory = sys.argv[1]
written = 0
ending = False


def end(_signal: int, _frame: object) -> None:
    """End after the line that is being written."""
    global ending
    ending = True


def tell() -> dict[str, Any]:
    """Return how many lines this process has written, by its own count."""
    return {"written": written}


signal.signal(signal.SIGTERM, end)
answer_on_signal(directory, tell)
due = time.monotonic()
with open(f"{directory}/lines", "wb", buffering=0) as lines:
    while not ending:
        # One write(2) a line; its number twice, so that a torn line cannot pass for a whole one.
        lines.write(b"%d line %d\n" % (written + 1, written + 1))
        written += 1
        due += 1 / RATE
        time.sleep(max(0.0, due - time.monotonic()))
with open(f"{directory}/total", "w") as total:
    total.write(str(written))
