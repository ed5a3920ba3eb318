"""A server that waits for another one to end, and says so to whoever asks it something."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from torpor.api.errors import Problem, close_code

RETRY_SECONDS = 1
WAITING = Problem(
    503,
    "standby",
    "This server stands by: another one has the host.",
    todo="Ask that one; this one serves as soon as that one has ended.",
    headers={"Retry-After": str(RETRY_SECONDS)},
)


async def _there(request: Request) -> JSONResponse:
    return JSONResponse({"status": "ok"})


async def _waits(request: Request) -> JSONResponse:
    return JSONResponse(WAITING.body(""), WAITING.status, dict(WAITING.headers))


async def _closes(socket: WebSocket) -> None:
    await socket.accept()
    await socket.close(close_code(WAITING), WAITING.id)


METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
PREVIEWS = Starlette(
    routes=[
        Route("/{path:path}", _waits, methods=METHODS),
        WebSocketRoute("/{path:path}", _closes),
    ]
)
"""What answers where previews will be: all paths are those of sessions."""
APP = Starlette(routes=[Route("/healthz", _there), *PREVIEWS.routes])
"""What answers where the API will be."""


@asynccontextmanager
async def answering(listener: socket.socket, config: uvicorn.Config) -> AsyncIterator[None]:
    """Answer what comes to a socket while the block lasts; the socket stays open after it."""
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment, method-assign]
    serving = asyncio.create_task(server.serve(sockets=[listener.dup()]), name="standing by")
    try:
        yield
    finally:
        server.should_exit = True
        await serving
