"""The audit: each call that changes something, or tried to, is an event: who, what, and the result.

What the sessions themselves tell of (a pause, a fork, a command that was started...) is not told
twice. The event is written when the answer is on its way.
"""

import logging
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torpor.api.bearers import Caller
from torpor.api.permissions import Needs
from torpor.api.requests import request_id_of
from torpor.sessions import Sessions
from torpor.store.errors import StoreError

log = logging.getLogger("torpor.api")

REFUSED = "request.refused"
"""The type of the event of a call that came to nothing, if it has no type of its own."""


class Audit:
    """Appends the events."""

    def __init__(self, app: ASGIApp, sessions: Sessions) -> None:
        self._app = app
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, and tell of it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
            elif message["type"] == "websocket.accept":
                status = 101
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            await self._tell(scope, status or 499)

    async def _tell(self, scope: Scope, status: int) -> None:
        state: dict[str, Any] = scope["state"]
        caller, wanted = state.get("caller"), state.get("needs")
        if not isinstance(caller, Caller) or not isinstance(wanted, Needs):
            return  # nobody, or nothing that there is
        changes = scope["type"] == "websocket" or scope["method"] not in ("GET", "HEAD")
        kind = wanted.audit
        if kind is None and changes and status >= 400:
            kind = REFUSED
        if kind is None:
            return
        data = {
            **state.get("noted", {}),
            "method": scope.get("method", "WS"),
            "route": getattr(scope.get("route"), "path", scope["path"]),
            "status": status,
            "request_id": request_id_of(scope),
        }
        if status >= 400:
            data["error"] = state.get("problem", "client_gone" if status == 499 else "unknown")
        try:
            await self._sessions.events.add(kind, state.get("session"), caller.actor, **data)
        except (StoreError, KeyError):
            log.exception("the event of request %s was not written", request_id_of(scope))
