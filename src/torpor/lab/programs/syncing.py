"""syncing.py write DIRECTORY: write a record to DIRECTORY/records and fsync it, without end.

How many were synced is only in memory. `syncing.py check DIRECTORY` tells {"whole": records that
are right, "torn": bytes after them}. A record is 64 bytes: its number, what follows from it, a
checksum.
"""

import json
import os
import sys
import zlib
from pathlib import Path
from typing import Any

from answering import answer_on_signal

SIZE = 64
action, directory = sys.argv[1:]
path = Path(directory) / "records"
synced = 0


def record(n: int) -> bytes:
    """Return record number ``n``."""
    text = b"%016d %038d " % (n, n * n)
    return text + b"%08x" % zlib.crc32(text)


def tell() -> dict[str, Any]:
    """Return how many records this process knows to be on the disk."""
    return {"synced": synced}


if action == "check":
    data = path.read_bytes()
    whole = 0
    while data[SIZE * whole : SIZE * (whole + 1)] == record(whole + 1):
        whole += 1
    print(json.dumps({"whole": whole, "torn": len(data) - SIZE * whole}))
    sys.exit()
answer_on_signal(directory, tell)
file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
while True:
    os.write(file, record(synced + 1))
    os.fsync(file)
    synced += 1
