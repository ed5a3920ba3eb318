"""randomness.py DIRECTORY: ask the kernel for 16 random bytes, again and again, without a rest.

SIGUSR2 makes it keep the values from then on, in memory, as many as there is room for. A jump of
the wall clock, which is set while this process is frozen, marks a thaw: the number of the first
value that was drawn after it is noted.
"""

import os
import random
import secrets
import signal
import ssl
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from answering import answer_on_signal

SIZE, KEPT, TOLD = 16, 1 << 20, 100
JUMP = 1_000_000_000
directory = Path(sys.argv[1])
values = bytearray(SIZE * KEPT)
drawn = 0
kept_from = 0
thawed = -1
random.seed()
# Whatever these keep for later use is there before the fork.
warm = (random.random(), uuid.uuid4(), secrets.token_hex(), ssl.RAND_bytes(SIZE))


def tell() -> dict[str, Any]:
    """Return the first values after a thaw, or those from the number in DIRECTORY/from on."""
    wanted = directory / "from"
    first = int(wanted.read_text()) if wanted.exists() else thawed
    return {
        "thawed": thawed,
        "drawn": drawn,
        "values": [_value(n) for n in range(first, min(first + TOLD, drawn))],
        "kernel": {
            "os.urandom": os.urandom(SIZE).hex(),
            "uuid.uuid4": str(uuid.uuid4()),
            "secrets.token_hex": secrets.token_hex(SIZE),
            "random.SystemRandom": random.SystemRandom().random(),
        },
        "own": {"random.random": random.random(), "RAND_bytes": ssl.RAND_bytes(SIZE).hex()},
    }


def _value(n: int) -> str:
    start = SIZE * (n - kept_from)
    return values[start : start + SIZE].hex() if 0 <= start < len(values) else "?"


def keep(_signal: int, _frame: object) -> None:
    """Keep the values from the next one on."""
    global kept_from
    kept_from = drawn + 1


signal.signal(signal.SIGUSR2, keep)
answer_on_signal(str(directory), tell)
after = time.time_ns()
while True:
    before = time.time_ns()
    if before - after > JUMP:
        thawed = drawn
    value = os.getrandom(SIZE)
    after = time.time_ns()
    # A thaw between the two: nobody can say on which side of it the value was drawn.
    if after - before > JUMP:
        thawed = drawn + 1
    start = SIZE * (drawn - kept_from)
    if 0 <= start < len(values):
        values[start : start + SIZE] = value
    drawn += 1
