"""boot_identity.py DIRECTORY: a boot id and a counter in memory, a heartbeat on disk.

The boot id is made when this process starts and written nowhere until somebody asks for it.
"""

import sys
import time
import uuid
from typing import Any

from answering import answer_on_signal

directory = sys.argv[1]
boot_id = uuid.uuid4().hex
counter = 0


def tell() -> dict[str, Any]:
    """Return what this process holds in memory."""
    return {"boot_id": boot_id, "counter": counter}


answer_on_signal(directory, tell)
with open(f"{directory}/heartbeat", "a", buffering=1) as heartbeat:
    while True:
        counter += 1
        heartbeat.write(f"{counter} {time.time():.3f}\n")
        time.sleep(0.1)
