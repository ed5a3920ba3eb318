"""steps.py DIRECTORY: ten times a second add a step to a number that is only in memory.

Each number goes to DIRECTORY/log as "<n> <UTC time>", which nothing ever reads back. The step is 1
until SIGUSR2 lets the process take another one from DIRECTORY/step.
"""

import secrets
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from answering import answer_on_signal

directory = Path(sys.argv[1])
# Chosen once, written down nowhere: who knows it is this process or a fork of it.
token = secrets.token_hex(8)
n = 0
step = 1


def tell() -> dict[str, Any]:
    """Return what is in memory."""
    return {"n": n, "token": token, "step": step}


def change(_signal: int, _frame: object) -> None:
    """Take the step from the file."""
    global step
    step = int((directory / "step").read_text())


signal.signal(signal.SIGUSR2, change)
answer_on_signal(str(directory), tell)
with open(directory / "log", "w", buffering=1) as log:
    while True:
        n += step
        now = datetime.now(UTC)
        log.write(f"{n} {now:%H:%M:%S.%f}\n")
        time.sleep(0.1)
