"""Programs that work until they are killed, and say what they do."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run_and_kill(
    victim: str, root: Path, url: str, seed: int, after: float
) -> list[dict[str, Any]]:
    """Run a module of this package on ``root`` and the database at ``url``, kill it ``after`` so
    many seconds of work, and return what it has said, in order."""
    running = subprocess.Popen(
        [sys.executable, "-m", f"tests.sessions.{victim}", str(root), url, str(seed)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        text=True,
    )
    assert running.stdout is not None
    first = running.stdout.readline()  # it works
    time.sleep(after)
    running.send_signal(signal.SIGKILL)
    with running.stdout:
        rest = running.stdout.read()
    assert running.wait() == -signal.SIGKILL, f"it ended by itself: {rest[-500:]}"
    # The last line may be cut off.
    return [json.loads(line) for line in (first + rest).splitlines() if line.endswith("}")]
