"""Devices: which install of a client a request comes from, and one live stream of events for each.

A client that was restarted, or that lost its connection without knowing it, attaches again; its
older stream would be one that nobody reads.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import Header

from torpor.api.errors import Problem, RefusedError

HEADER = "X-Device-UUID"
LONGEST = 128
SUPERSEDED = Problem(
    409,
    "superseded",
    "The same device follows these events by a newer stream.",
    state="This stream has ended; the newer one goes on.",
)


def device_of(said: str | None) -> str | None:
    """Return the device that a request names. What is longer than 128 bytes, or cannot be printed,
    is taken for none."""
    named = (said or "").strip()
    if not named or len(named.encode()) > LONGEST or not (named.isascii() and named.isprintable()):
        return None
    return named


Device = Annotated[
    str | None,
    Header(
        alias=HEADER,
        description="Which install of a client this is; events of this call tell of it. What is"
        " longer than 128 bytes is ignored.",
    ),
]


class Devices:
    """Knows the live streams of devices."""

    def __init__(self) -> None:
        self._streams: dict[tuple[str, str, str], asyncio.Event] = {}

    async def only(
        self,
        frames: AsyncGenerator[bytes, None],
        actor: str,
        session: str,
        device: str,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the frames of a live stream until the same device of the same actor begins another
        one. Raises :exc:`RefusedError` then."""
        slot = actor, session, device
        newer = asyncio.Event()
        older = self._streams.get(slot)
        self._streams[slot] = newer
        if older is not None:
            older.set()
        try:
            async with (
                contextlib.aclosing(frames),
                contextlib.aclosing(_until(frames, newer)) as until,
            ):
                async for each in until:
                    yield each
        finally:
            if self._streams.get(slot) is newer:
                del self._streams[slot]
        if newer.is_set():
            raise RefusedError(SUPERSEDED)


async def _until(
    frames: AsyncGenerator[bytes, None], end: asyncio.Event
) -> AsyncGenerator[bytes, None]:
    """Yield frames until ``end`` is set."""
    ended = asyncio.create_task(end.wait())
    coming: asyncio.Task[bytes | None] | None = None
    try:
        while True:
            coming = asyncio.create_task(_next(frames))
            await asyncio.wait({coming, ended}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done() or (each := coming.result()) is None:
                return
            yield each
    finally:
        waiting = [ended, *([coming] if coming is not None else [])]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _next(frames: AsyncGenerator[bytes, None]) -> bytes | None:
    return await anext(frames, None)
