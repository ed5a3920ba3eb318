"""Problems as answers: in place of one, or as the last of one that has begun."""

import asyncio
import contextlib
import json
from typing import Literal

from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from torpor.api.errors import Problem, answer_body, close_code
from torpor.api.streaming import EVENT_STREAM, error_frame

LAST_WORDS_SECONDS = 1.0
"""How long a client is given to take the end of an answer that is cut off."""

Stands = Literal["not begun", "events", "body", "socket", "over"]
"""How far an answer is: a stream of events, any other body, or a WebSocket has begun."""


async def answer(
    problem: Problem,
    scope: Scope,
    receive: Receive,
    send: Send,
    headers: dict[str, str] | None = None,
) -> None:
    """Answer a request with a problem; a WebSocket that is not yet accepted too."""
    scope["state"]["problem"] = problem.id
    response = JSONResponse(
        answer_body(problem, scope), problem.status, {**problem.headers, **(headers or {})}
    )
    if scope["type"] == "http" or "websocket.http.response" in scope.get("extensions", {}):
        await response(scope, receive, send)  # to a WebSocket starlette sends it as a denial
    else:
        await send({"type": "websocket.close", "code": 1008, "reason": problem.message})


class Answering:
    """What is sent to one client, with ``headers`` of ours; it can be cut off at any moment."""

    def __init__(self, scope: Scope, send: Send, headers: dict[str, str]) -> None:
        self._scope = scope
        self._send = send
        self._headers = headers
        self._stands: Stands = "not begun"

    async def send(self, message: Message) -> None:
        """Send a message of the answer."""
        if message["type"] == "http.response.start":
            more = [(name.encode(), value.encode()) for name, value in self._headers.items()]
            message["headers"] = [*message["headers"], *more]
        after = _after(message, self._stands)
        await self._send(message)
        self._stands = after  # not before: a client that reads nothing holds messages up

    async def cut_off(self, problem: Problem, receive: Receive) -> None:
        """End the answer with a problem, which its client is told if that is still possible."""
        self._scope["state"]["problem"] = problem.id
        with contextlib.suppress(OSError):  # it reads nothing, or has gone
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                match self._stands:
                    case "not begun":
                        await answer(problem, self._scope, receive, self._send, self._headers)
                    case "events":
                        last = error_frame(problem, self._scope)
                        await self._send({"type": "http.response.body", "body": last})
                    case "socket":
                        await self._close(problem)
                    case _:
                        pass  # the server closes the connection of a body that is not complete

    async def _close(self, problem: Problem) -> None:
        said = json.dumps({"type": "error", **answer_body(problem, self._scope)})
        await self._send({"type": "websocket.send", "text": said})
        code = close_code(problem)
        await self._send({"type": "websocket.close", "code": code, "reason": problem.id})


def _after(message: Message, stands: Stands) -> Stands:
    """Return where an answer stands after a message."""
    match message["type"]:
        case "http.response.start":
            return "events" if _is_events(message) else "body"
        case "http.response.body":
            return stands if message.get("more_body", False) else "over"
        case "websocket.accept":
            return "socket"
        case "websocket.close" | "websocket.http.response.start":
            return "over"
    return stands


def _is_events(message: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(EVENT_STREAM.encode())
        for name, value in message["headers"]
    )
