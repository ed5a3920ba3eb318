"""Programs of the system that are started, waited for, and ended with all that they started."""

import asyncio
import contextlib
import os
import signal
import time
from typing import Any

END_POLL = 0.02


async def start_group(*command: str, **how: Any) -> asyncio.subprocess.Process:
    """Start a program as the leader of a session and process group of its own, for
    :func:`end_group`. ``how`` is that of :func:`asyncio.create_subprocess_exec`; raises OSError.

    If this task is cancelled meanwhile, nothing of it is left.
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(*command, start_new_session=True, **how)
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        with contextlib.suppress(OSError):
            await end_group(await starting, signal.SIGKILL, 0)
        raise


async def end_group(process: asyncio.subprocess.Process, by: signal.Signals, grace: float) -> None:
    """Send ``by`` to a group; what of it is there when its leader has ended, or after ``grace``
    seconds, is killed.

    Not to the leader alone: a bubblewrap that ends while it starts leaves a child that waits for
    it for ever, with our pipes open, and as the first of its namespace ignores all but SIGKILL.
    """
    _signal_group(process.pid, by)
    deadline = time.monotonic() + grace
    # process.wait() returns only when nobody has our pipes open any more.
    while process.returncode is None and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(END_POLL)
    _signal_group(process.pid, signal.SIGKILL)
    await process.wait()


def _signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)
