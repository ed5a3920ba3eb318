"""Answers that go on: sent at the pace of whoever reads, and ended when nobody does."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from torpor.api.errors import UNFORESEEN, Problem, answer_body, problem_of
from torpor.api.requests import request_id_of

log = logging.getLogger("torpor.api")

KEEPALIVE_SECONDS = 15.0
EVENT_STREAM = "text/event-stream"
_NO_STORE = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""Nobody on the way is to keep a stream back: neither a cache nor nginx."""

T = TypeVar("T")


async def first_of(*works: Coroutine[Any, Any, Any]) -> None:
    """Run all side by side until the first has ended; end the others, and return when they have.

    Raises what that one, or one of the others on its way out, raises.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if not task.cancelled():
            task.result()


async def gone(receive: Receive) -> None:
    """Return when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Return what ``work`` returns; end it and return None if the client goes before that."""
    found: list[T] = []

    async def keep() -> None:
        found.append(await work)

    await first_of(keep(), gone(request.receive))
    return found[0] if found else None


class Stream(Response):
    """An answer of pieces of which each is taken when the one before is on its way.

    When ``closing`` is set the stream ends in good order. An error in the middle ends the
    connection, so that nobody takes what there is for all.
    """

    def __init__(
        self,
        pieces: AsyncIterable[bytes],
        media_type: str,
        *,
        status_code: int = 200,
        headers: Mapping[str, str] | None = None,
        closing: asyncio.Event | None = None,
    ) -> None:
        self.status_code = status_code
        self.media_type = media_type
        self.background = None
        self.init_headers(headers)
        self._pieces = pieces
        self._closing = closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        works = [self._send(send), gone(receive)]
        if self._closing is not None:
            works.append(_set(self._closing))
        started = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        await send(started)
        try:
            await first_of(*works)
        except Exception as error:
            known = problem_of(error)
            if known is None:
                raise
            log.warning("request %s broke off: %s", request_id_of(scope), known.message)
            return  # the server closes a connection whose answer is not complete
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send) -> None:
        pieces = aiter(self._pieces)
        try:
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        finally:
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()


async def _set(event: asyncio.Event) -> None:
    await event.wait()


def frame(event: str | None, data: Any, event_id: str | None = None) -> bytes:
    """Return one event of a stream (the WHATWG's HTML standard, 9.2)."""
    lines = [] if event_id is None else [f"id: {event_id}"]
    if event is not None:
        lines.append(f"event: {event}")
    lines.append(f"data: {json.dumps(data, separators=(',', ':'), ensure_ascii=False)}")
    # Half a surrogate pair, which a machine may have said, comes out as JSON's own escape for it.
    return "\n".join((*lines, "", "")).encode(errors="backslashreplace")


def error_frame(problem: Problem, scope: Scope) -> bytes:
    """Return the last event of a stream that ends with a problem."""
    return frame("error", {"error": {**answer_body(problem, scope), "http_code": problem.status}})


def comment(words: str) -> bytes:
    """Return a line of a stream that readers skip."""
    return f": {words}\n\n".encode()


async def kept_alive(frames: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield frames, and a comment when none has come for a while: so that what is between us and
    the reader does not take the stream for dead, and we notice if the reader is."""
    coming: asyncio.Future[bytes] | None = None
    try:
        while True:
            coming = asyncio.ensure_future(_next(frames))
            while not (await asyncio.wait({coming}, timeout=KEEPALIVE_SECONDS))[0]:
                yield comment("keepalive")
            try:
                yield coming.result()
            except StopAsyncIteration:
                return
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


async def _next(frames: AsyncIterator[bytes]) -> bytes:
    return await anext(frames)


def event_stream(
    request: Request, frames: AsyncGenerator[bytes, None], closing: asyncio.Event
) -> Stream:
    """Return the answer that is a stream of events. An error in it is its last event."""

    async def told() -> AsyncGenerator[bytes, None]:
        try:
            async with (
                contextlib.aclosing(frames),
                contextlib.aclosing(kept_alive(frames)) as alive,
            ):
                async for each in alive:
                    yield each
        except Exception as error:
            known = problem_of(error)
            if known is None:
                log.exception("request %s failed", request_id_of(request.scope))
            yield error_frame(known or UNFORESEEN, request.scope)

    return Stream(told(), EVENT_STREAM, headers=_NO_STORE, closing=closing)


async def begun(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Return the same pieces, the first of which has been awaited: what fails at once is an error
    of the request, and not of an answer that has begun."""
    first = await anext(pieces, None)

    async def all_of_them() -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(pieces):
            if first is not None:
                yield first
                async for piece in pieces:
                    yield piece

    return all_of_them()
