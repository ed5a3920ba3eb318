"""Lets a probe be asked for what it holds in memory: SIGUSR1 makes it write an answer.

The question is a file with one word, which the answer repeats; so an answer cannot be an old one.
"""

import json
import os
import signal
from collections.abc import Callable
from typing import Any


def answer_on_signal(directory: str, tell: Callable[[], dict[str, Any]]) -> None:
    """From now on write ``tell()`` to ``answer`` in ``directory`` for each SIGUSR1."""

    def answer(_signal: int, _frame: object) -> None:
        with open(f"{directory}/question") as file:
            said = tell() | {"question": file.read(), "pid": os.getpid()}
        with open(f"{directory}/answer.new", "w") as file:
            file.write(json.dumps(said) + "\n")
        os.rename(f"{directory}/answer.new", f"{directory}/answer")

    signal.signal(signal.SIGUSR1, answer)
    # Says that the probe can be asked from now on.
    with open(f"{directory}/started", "w"):
        pass
