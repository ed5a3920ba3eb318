"""clock.py DIRECTORY: read the clocks without end and write down where the wall clock is set.

Each reading is ``[before, wall, after]``: the wall clock, and the monotonic clock right before and
right after it, in ns. While nobody sets the wall clock, ``wall - monotonic`` stays the same; the
first reading that does not fit is the first timestamp that this process takes of a new time.
For each such reading a line of JSON goes to ``jumps``: the last reading of the old time, the first
of the new, and the difference of the two clocks before and after.
"""

import json
import os
import sys
import time
from typing import Any

from answering import answer_on_signal

TOLERANCE_NS = 2_000_000
TIGHT_NS = 200_000
TURNS_ON_A_CPU = 2000

directory = sys.argv[1]
backwards: list[tuple[int, int]] = []
turns = 0


def read() -> tuple[int, int, int]:
    """Return one reading."""
    return time.monotonic_ns(), time.time_ns(), time.monotonic_ns()


def difference() -> int:
    """Return wall clock less monotonic clock, from a reading that took less than 0.2 ms."""
    while True:
        before, wall, after = read()
        if after - before < TIGHT_NS:
            return wall - (before + after) // 2


def tell() -> dict[str, Any]:
    """Return how often the clocks were read, and where the monotonic clock went back."""
    return {"turns": turns, "backwards": backwards}


answer_on_signal(directory, tell)
cpus = sorted(os.sched_getaffinity(0))
jumps = open(f"{directory}/jumps", "a", buffering=1)  # noqa: SIM115 (open for all its life)
current = difference()
last = read()
while True:
    turns += 1
    # The clock must not go back from one CPU to the next either.
    if turns % TURNS_ON_A_CPU == 0:
        os.sched_setaffinity(0, {cpus[turns // TURNS_ON_A_CPU % len(cpus)]})
    before, wall, after = reading = read()
    if before < last[2] or after < before:
        backwards.append((last[2], before if before < last[2] else after))
    if wall - after - TOLERANCE_NS <= current <= wall - before + TOLERANCE_NS:
        last = reading
        continue
    new = difference()
    found = {"old": last, "new": reading, "old_difference": current, "new_difference": new}
    jumps.write(json.dumps(found) + "\n")
    current, last = new, read()
