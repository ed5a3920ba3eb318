"""A server that speaks the API as it is told to: what it is asked is kept, what it answers is set.

It serves real HTTP and real WebSockets on a port of its own, from a thread, and can be stopped and
started again on the same port.
"""

import asyncio
import json
import socket
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

AT = "2026-05-04T08:05:42.120000Z"
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    headers: dict[str, str]
    body: bytes

    @property
    def said(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


Answering = Response | Callable[[Asked], Response | Awaitable[Response]]
Talking = Callable[[WebSocket], Awaitable[None]]


@dataclass
class Double:
    """The server. ``answers`` has those of each method and path, in their order; the last one
    stays. ``sockets`` has who talks at a path."""

    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    answers: dict[tuple[str, str], list[Answering]] = field(
        default_factory=lambda: defaultdict(list)
    )
    sockets: dict[str, Talking] = field(default_factory=dict)
    joined: list[str] = field(default_factory=list)
    """Addresses of the WebSockets that were opened, with their queries."""

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def on(self, method: str, path: str, *answers: Answering) -> None:
        """Set what is answered to a method and a path below the API's root."""
        self.answers[method, f"/v2/agents/{path}"] = list(answers)

    def one(self, method: str, path: str) -> Asked:
        """Return the only request of this kind."""
        found = [a for a in self.asked if (a.method, a.path) == (method, f"/v2/agents/{path}")]
        assert len(found) == 1, self.asked
        return found[0]

    # Serving

    def start(self) -> None:
        """Serve until :meth:`stop`; on the port it had, if it had one."""
        app = Starlette(
            routes=[
                WebSocketRoute("/{path:path}", self._talk),
                Route("/{path:path}", self._answer, methods=METHODS),
            ]
        )
        listening = socket.create_server(("127.0.0.1", self.port), backlog=64)
        self.port = listening.getsockname()[1]
        config = uvicorn.Config(
            app,
            log_level="critical",
            lifespan="off",
            timeout_graceful_shutdown=0,
            ws="websockets-sansio",
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listening],))
        self._thread.start()
        self._listening = listening

    def stop(self) -> None:
        """Stop at once, whatever is open."""
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join()
        self._listening.close()

    async def _answer(self, request: Request) -> Response:
        asked = Asked(
            request.method,
            request.scope["path"],
            tuple(request.query_params.multi_items()),
            dict(request.headers),
            await request.body(),
        )
        self.asked.append(asked)
        waiting = self.answers.get((asked.method, asked.path))
        if not waiting:
            return refusal(404, "not_found", f"There is nothing at {asked.method} {asked.path}.")
        answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        if isinstance(answer, Response):
            return answer
        made = answer(asked)
        return made if isinstance(made, Response) else await made

    async def _talk(self, websocket: WebSocket) -> None:
        self.joined.append(f"{websocket.scope['path']}?{websocket.url.query}")
        talk = self.sockets.get(websocket.url.path)
        if talk is None:
            await websocket.send_denial_response(refusal(404, "not_found", "There is no command."))
            return
        await talk(websocket)


def refusal(status: int, id_: str, message: str, **more: Any) -> JSONResponse:
    """Return an error as the API has it; ``retry_after`` is a header."""
    headers = {"retry-after": str(more.pop("retry_after"))} if "retry_after" in more else {}
    body = {"id": id_, "message": message, "request_id": "r1", **more}
    return JSONResponse(body, status, headers)


def session(name: str = "build-7", **changes: Any) -> dict[str, Any]:
    """Return a session as the API has it."""
    return {
        "session_id": "2f1a9c1e-7f0b-4c55-9a8e-0d6a3c1b7e42",
        "name": name,
        "status": "SESSION_STATUS_READY",
        "agent_kind": "AGENT_KIND_NONE",
        "created_at": AT,
        "updated_at": AT,
        "generation": 3,
        "image": "default",
        "size": "mars-2vcpu-1gb",
        "labels": {"team": "search"},
        "metadata": {"ticket": 7742},
        **changes,
    }


def config(name: str = "web", **rest: Any) -> dict[str, Any]:
    """What the API says of a configuration; in lists without its manifest."""
    said = {
        "id": f"id-of-{name}",
        "name": name,
        "content_hash": "1f" * 32,
        "agentspec_schema_version": "agents.digitalocean.com/flat.v1",
        "created_by": "tok_1",
        "created_at": AT,
        "updated_at": AT,
    }
    return said | rest


def checkpoint(number: int = 1, **changes: Any) -> dict[str, Any]:
    """Return a checkpoint as the API has it."""
    return {
        "checkpoint_id": f"cp_{number:016x}",
        "session_id": session()["session_id"],
        "created_at": AT,
        "kind": "explicit",
        "label": "",
        "status": "READY",
        "size_bytes": 31457280,
        "snapshot_id": f"snap-{number}",
        "generation": number,
        "durable": True,
        **changes,
    }


def template(name: str = "tools", **changes: Any) -> dict[str, Any]:
    """Return a template as the API has it."""
    image = {"registry": "r.test", "repository": "team/tools", "tag": "1"}
    return {
        "template_id": "6c1f0f6e-3c1b-4c55-9a8e-7f0b2f1a9c1e",
        "name": name,
        "status": "TEMPLATE_STATUS_READY",
        "created_at": AT,
        "updated_at": AT,
        "spec": {"base_template": "sandbox", "image": image},
        "current_build_id": "build-1",
        **changes,
    }


def build(number: int = 1, **changes: Any) -> dict[str, Any]:
    """Return a build of a template as the API has it."""
    digest = "sha256:" + "0f" * 32
    image = {"registry": "r.test", "repository": "team/tools", "tag": "1", "digest": digest}
    return {
        "build_id": f"build-{number}",
        "template_id": template()["template_id"],
        "name": "tools",
        "status": "SUCCEEDED",
        "created_at": AT,
        "updated_at": AT,
        "spec": {"base_template": "sandbox", "image": image},
        "image": f"t-build-{number}",
        **changes,
    }


def workspace(**changes: Any) -> dict[str, Any]:
    """Return a workspace as the API has it."""
    return {
        "workspace_id": "8d0a6c1f-3c1b-4c55-9a8e-7f0b2f1a9c1e",
        "name": "notes",
        "state": "AVAILABLE",
        "size_gibibytes": 10,
        "bytes_used": 5 << 20,
        "created_at": AT,
        "updated_at": AT,
        "created_by": "tok_1",
        "updated_by": "tok_1",
        **changes,
    }


def event_id(number: int) -> str:
    """Return a ULID."""
    return f"01JT9Q0M7V3WZ2K4N8XG5{number:05d}"


def event(number: int, type_: str = "session.paused", **data: Any) -> dict[str, Any]:
    """Return an event as the API has it."""
    return {
        "event_id": event_id(number),
        "session_id": session()["session_id"],
        "type": type_,
        "created_at": AT,
        "data": data,
        "actor": "system",
    }


def frame(type_: str, data: Any, id_: str = "") -> bytes:
    """Return a frame of a stream of events."""
    head = f"id: {id_}\n" if id_ else ""
    return f"{head}event: {type_}\ndata: {json.dumps(data)}\n\n".encode()


def event_frame(number: int, type_: str = "session.paused", **data: Any) -> bytes:
    """Return an event as a frame."""
    return frame(type_, event(number, type_, **data), event_id(number))


def stream(*pieces: bytes, hold: float = 0.0) -> Callable[[Asked], Response]:
    """Return an answer that is a stream of these pieces, and then open for so many seconds."""

    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece
        await asyncio.sleep(hold)

    return lambda _: StreamingResponse(body(), media_type="text/event-stream")


def output(seq: int, data: bytes, source: int = 1) -> bytes:
    """Return a frame of a command's output."""
    return bytes((source,)) + seq.to_bytes(8, "big") + data
