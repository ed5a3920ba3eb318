"""Reading streams as a client does."""

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx


class Frame(NamedTuple):
    """An event of a stream, or a comment (its ``event`` is empty then)."""

    event: str
    data: Any
    id: str | None


async def frames(answer: httpx.Response) -> AsyncIterator[Frame]:
    """Yield what an event stream has."""
    event, data, event_id = "", None, None
    async for line in answer.aiter_lines():
        name, _, value = line.partition(": ")
        if name == "":
            if line.startswith(":"):
                yield Frame("", line.removeprefix(": "), None)
            elif event:
                yield Frame(event, data, event_id)
                event, data, event_id = "", None, None
        elif name == "event":
            event = value
        elif name == "id":
            event_id = value
        elif name == "data":
            data = json.loads(value)


async def all_frames(answer: httpx.Response) -> list[Frame]:
    """Return all that a stream has, to its end."""
    return [frame async for frame in frames(answer)]
