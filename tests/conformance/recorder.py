"""What a server was asked, and what it answered."""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send


@dataclass(frozen=True)
class Seen:
    """A request, and what it was answered with; ``routed``: the server has such requests."""

    method: str
    path: str
    status: int
    routed: bool


class Recorder:
    """The outermost layer of the server: notes what it was asked and what it answered."""

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute], seen: list[Seen]) -> None:
        self._app = app
        self._routes = routes
        self._seen = seen

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def note(message: Message) -> None:
            if message["type"] == "http.response.start":
                routed = any(each.matches(scope)[0] is Match.FULL for each in self._routes)
                status = message["status"]
                self._seen.append(Seen(scope["method"], scope["path"], status, routed))
            await send(message)

        await self._app(scope, receive, note if scope["type"] == "http" else send)
