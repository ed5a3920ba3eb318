"""Programs that work until they are killed, and say what they do."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from tests.sessions.conftest import Service

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


class Worker(Protocol):
    """One of those that work at the same time in a program."""

    async def work(self) -> None:
        """Work for ever."""


def work_until_killed(worker: Callable[[Service, int, int], Worker], count: int) -> None:
    """Be such a program: ``worker`` makes those that work, of a service, their number and the
    seed."""
    root, url, seed = sys.argv[1:]

    async def work() -> None:
        service = Service(Path(root), url)
        service.host.step = 0.002
        await service.open()
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(worker(service, number, int(seed)).work())

    asyncio.run(work())
