"""Waiting for what happens in its own time, on hosts of any speed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


async def eventually(ask: Callable[[], Awaitable[Any]], good: Callable[[Any], bool]) -> Any:
    """Ask until the answer is good, for at most 10 s."""
    for _ in range(1000):
        answer = await ask()
        if good(answer):
            return answer
        await asyncio.sleep(0.01)
    raise AssertionError(f"it stays {answer}")
