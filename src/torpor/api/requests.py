"""Every request: its id, its line in the log, its count, and its answer if all else has failed."""

import logging
import re
import time
import uuid
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("torpor.api")

SIGNED = "/v2/agents/signed/"
"""What the paths begin with that allow what is signed in them (:mod:`torpor.api.signing`)."""
HEADER = b"x-request-id"
ACCEPTABLE = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""A request's id as a client may choose it: nothing that could be mistaken for more in a log."""

Observe = Callable[[str, str, int, float], None]
"""Is told of each request when it is done: method, route, status, seconds."""


def header(scope: Mapping[str, Any], name: bytes) -> str | None:
    """Return a header's value, the last one if there are several, None if there is none."""
    found = None
    for key, value in scope["headers"]:
        if key == name:
            found = value.decode("latin-1")
    return found


def request_id_of(scope: Mapping[str, Any]) -> str:
    """Return the id of the request that ``scope`` is of."""
    return str(scope["state"]["request_id"])


class Requests:
    """The outermost layer: whatever happens inside, the request is answered, logged and counted.

    ``failed`` answers an error that nobody foresaw; it is given what it needs to do so.
    """

    def __init__(
        self,
        app: ASGIApp,
        observe: Observe,
        failed: Callable[[Scope, Receive, Send], Any],
    ) -> None:
        self._app = app
        self._observe = observe
        self._failed = failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's request."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        asked = header(scope, HEADER)
        chosen = asked if asked and ACCEPTABLE.fullmatch(asked) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = chosen
        answered = _Answered(chosen, send)
        begun = time.monotonic()
        try:
            await self._app(scope, receive, answered)
        except ClientDisconnect:
            pass  # nobody is there to be told, and the line says 499
        except Exception:
            log.exception("request %s failed", chosen)
            if not answered.status:
                await self._failed(scope, receive, answered)
        finally:
            self._note(scope, answered.status, time.monotonic() - begun)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        """Write the request's line. 499 is a client that went before it had an answer."""
        status = status or 499
        method = scope.get("method", "WS")
        route = getattr(scope.get("route"), "path", "")
        # Who has read the log shall not be able to ask for what a signed path allows.
        path = SIGNED + "..." if scope["path"].startswith(SIGNED) else scope["path"]
        self._observe(method, route, status, seconds)
        caller = scope["state"].get("caller")  # a Caller, once the gate has found one
        log.info(
            "%s %s %d",
            method,
            path,
            status,
            extra={
                "fields": {
                    "request_id": request_id_of(scope),
                    "method": method,
                    "path": path,
                    "route": route,
                    "status": status,
                    "milliseconds": round(seconds * 1000, 1),
                    "token": caller.actor.id if caller else None,
                    "client": (scope.get("client") or [None])[0],
                    "error": scope["state"].get("problem"),
                }
            },
        )


class _Answered:
    """What is sent to the client: the request's id is put into it, its status remembered."""

    def __init__(self, request_id: str, send: Send) -> None:
        self.status = 0
        self._id = (HEADER, request_id.encode())
        self._send = send

    async def __call__(self, message: Message) -> None:
        kind = message["type"]
        if kind in ("http.response.start", "websocket.http.response.start"):
            self.status = message["status"]
            self._mark(message)
        elif kind == "websocket.accept":
            self.status = 101
            self._mark(message)
        elif kind == "websocket.close" and not self.status:
            self.status = 403
        await self._send(message)

    def _mark(self, message: MutableMapping[str, Any]) -> None:
        message["headers"] = [*message.get("headers", []), self._id]
