"""What calls need: a server with TLS on a port of loopback, and things in it, made when asked for.

A need is a coroutine function of the world; where one stands among the arguments of a call, what it
returns is put in its place, anew for each call.
"""

import asyncio
import contextlib
import gc
import io
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydo import Client
from pydo.aio import Client as AsyncClient
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.api.conftest import Api, served
from tests.api.test_pydo import Transport
from tests.certificates import Authority
from torpor.api.tls import Certificate

Need = Callable[["World"], Awaitable[Any]]
NOWHERE = "2f1a9c1e-7f0b-4c55-9a8e-0d6a3c1b7e42"
NO_RETRIES = {"retry_total": 0}


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


class World:
    """The server, its clients, and what they recorded."""

    def __init__(self, api: Api, files: Path) -> None:
        self.api = api
        self.files = files
        self.seen: list[Seen] = []
        self.clients: dict[str, tuple[Any, Any]] = {}
        """Of whom, the one that blocks and the one for coroutines."""
        self._numbers = itertools.count(1)
        self._kept: dict[Need, Any] = {}

    @contextlib.asynccontextmanager
    async def open(self, authority: Authority) -> AsyncIterator["World"]:
        """Serve, and make the clients."""
        app = self.api.app
        app.add_middleware(Recorder, routes=app.router.routes, seen=self.seen)
        certificate = Certificate(*authority.vouch("localhost", "127.0.0.1"))
        trust = {"connection_verify": str(authority.file)}
        async with served(self.api, certificate=certificate) as where:
            how: dict[str, Any] = {
                "endpoint": f"https://{where}",
                "agents_endpoint": f"https://{where}",
                **NO_RETRIES,
            }
            tokens = {role: self.api.tokens[role] for role in ("operator", "viewer")}
            tokens["nobody"] = "torpor_x_y"
            for who, token in tokens.items():
                waiting = Client(token, **how, **trust)
                self.clients[who] = waiting, AsyncClient(token, **how, transport=Transport(**trust))
            try:
                yield self
            finally:
                for waiting, awaiting in self.clients.values():
                    waiting.close()
                    await awaiting.close()
                gc.collect()  # the client leaves streams open, of runs that were refused

    def name(self) -> str:
        """Return a name that nothing has."""
        return f"n{next(self._numbers)}"

    async def kept(self, need: Need) -> Any:
        """Return what a need has made; the same each time."""
        if need not in self._kept:
            self._kept[need] = await need(self)
        return self._kept[need]

    async def filled(self, value: Any) -> Any:
        """Return arguments with what they need."""
        if callable(value):
            return await value(self)
        if isinstance(value, dict):
            return {key: await self.filled(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return type(value)([await self.filled(each) for each in value])
        return value

    async def ask(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        """Ask the server without the client, for what is only needed."""
        async with self.api.client() as client:
            answer = await client.request(method, path, **request)
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json() if answer.content else {}
        return found

    async def until(self, path: str, *at: str, status: str) -> dict[str, Any]:
        """Return what is at a path as soon as it has a status."""
        end = time.monotonic() + 60
        while True:
            found = whole = await self.ask("GET", path)
            for key in at:
                found = found[key]
            if found["status"] == status:
                return whole
            assert time.monotonic() < end, whole
            await asyncio.sleep(0.02)


def open_world(api: Api, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a world in a directory. What the client fetches by itself trusts its authority too."""
    for name in ("certificates", "files"):
        (directory / name).mkdir()
    authority = Authority(directory / "certificates")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    return World(api, directory / "files").open(authority)


def data(content: bytes) -> Need:
    """A body that is read once."""

    async def need(world: World) -> Any:
        return io.BytesIO(content)

    return need
