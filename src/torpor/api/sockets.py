"""WebSockets, beyond what starlette does: parameters and errors as everywhere else, and an end when
the server stops."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Coroutine
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from torpor.api.errors import (
    UNFORESEEN,
    RefusedError,
    answer_body,
    close_code,
    invalid,
    problem_of,
)
from torpor.api.gate import PROTOCOL
from torpor.api.requests import request_id_of
from torpor.api.streaming import KEEPALIVE_SECONDS, first_of

log = logging.getLogger("torpor.api")

NORMAL, RESTART = 1000, 1012
"""Codes of RFC 6455 and its registry: done, and the server restarts."""


class Socket:
    """A WebSocket that is open."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def send(self, data: bytes) -> None:
        """Send bytes; waits while the client does not take what was sent before."""
        await self._websocket.send_bytes(data)

    async def say(self, **what: Any) -> None:
        """Send a text frame."""
        await self._websocket.send_text(json.dumps(what, separators=(",", ":")))

    async def receive(self) -> bytes | str:
        """Return the next message. Raises WebSocketDisconnect when there is none any more."""
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        data, text = message.get("bytes"), message.get("text")
        return data if data is not None else text or ""

    async def patiently(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something with what the client has sent, which may take any time. Meanwhile nothing is
        read of the client, so it is told now and then that it is held up; that fails if it has
        gone."""
        doing = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({doing}, timeout=KEEPALIVE_SECONDS))[0]:
                await self.say(type="held")
            await doing
        finally:
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)


def check_parameters(websocket: WebSocket, *known: str) -> None:
    """Raise :exc:`RefusedError` for a query parameter that is not known."""
    wrong = [
        f"query parameter {name!r} is not known"
        for name in websocket.query_params
        if name not in known
    ]
    if wrong:
        raise RefusedError(invalid(wrong))


async def serve_socket(
    websocket: WebSocket, closing: asyncio.Event, *works: Coroutine[Any, Any, Any]
) -> None:
    """Run ``works`` on a WebSocket that was accepted, until the first of them has ended, the client
    has gone, or the server stops; then close it. An error is told as the last frame, and the close
    code is 4000 and the status that it would have over HTTP."""
    code, reason = NORMAL, ""
    try:
        await first_of(_stopped(closing), *works)
        if closing.is_set():
            code, reason = RESTART, "the server stops"
    except (WebSocketDisconnect, OSError):
        return
    except Exception as error:
        problem = problem_of(error)
        if problem is None:
            log.exception("request %s failed", request_id_of(websocket.scope))
            problem = UNFORESEEN
        websocket.scope["state"]["problem"] = problem.id
        code, reason = close_code(problem), problem.id
        await _quietly(Socket(websocket).say(type="error", **answer_body(problem, websocket.scope)))
    await _quietly(websocket.close(code, reason))


async def _stopped(closing: asyncio.Event) -> None:
    await closing.wait()


async def _quietly(sending: Awaitable[None]) -> None:
    """Send something to a client that may have gone."""
    try:
        await sending
    except (WebSocketDisconnect, OSError, RuntimeError):
        pass  # starlette's RuntimeError: it was closed already


def chosen_protocol(websocket: WebSocket) -> str | None:
    """Return the subprotocol to answer with. A client that offers some wants to hear one of them;
    that with the token only if there is no other."""
    offered = list(websocket.scope.get("subprotocols", ()))
    others = [each for each in offered if not each.startswith(PROTOCOL)]
    return next(iter(others or offered), None)
