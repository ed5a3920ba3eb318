"""syncing.py DIRECTORY: write a record and fsync it, as fast as the disk goes.

A record is 64 bytes: its number, bytes that follow from the number, a checksum. How many were
synced is only in memory.
"""

import os
import sys
from typing import Any

from answering import answer_on_signal
from records import record

directory = sys.argv[1]
synced = 0


def tell() -> dict[str, Any]:
    """Return how many records this process knows to be on the disk."""
    return {"synced": synced}


answer_on_signal(directory, tell)
file = os.open(f"{directory}/records", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
while True:
    os.write(file, record(synced + 1))
    os.fsync(file)
    synced += 1
