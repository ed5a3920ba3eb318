"""What calls need: a server with TLS on a port of loopback, and things in it, made when asked for.

A need is a coroutine function of the world; where one stands among the arguments of a call, what it
returns is put in its place, anew for each call.
"""

import asyncio
import contextlib
import gc
import io
import itertools
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from pydo import Client
from pydo.aio import Client as AsyncClient

from tests.certificates import Authority
from tests.conformance.recorder import Seen
from tests.conformance.servers import Server
from torpor.api.tls import Certificate

Need = Callable[["World"], Awaitable[Any]]
NOWHERE = "2f1a9c1e-7f0b-4c55-9a8e-0d6a3c1b7e42"
NO_RETRIES = {"retry_total": 0}


class World:
    """The server, its clients, and what they recorded."""

    def __init__(self, server: Server, files: Path) -> None:
        self.server = server
        self.files = files
        self.seen: list[Seen] = []
        self.clients: dict[str, tuple[Any, Any]] = {}
        """Of whom, the one that blocks and the one for coroutines."""
        self._numbers = itertools.count(1)
        self._kept: dict[Need, Any] = {}
        self._stay: set[str] = set()

    @contextlib.asynccontextmanager
    async def open(self, authority: Authority) -> AsyncIterator["World"]:
        """Serve, and make the clients."""
        certificate = Certificate(*authority.vouch("localhost", "127.0.0.1", called="shown"))
        trust = {"connection_verify": str(authority.file)}
        async with self.server.serving(self.seen, certificate) as where:
            how: dict[str, Any] = {
                "endpoint": f"https://{where}",
                "agents_endpoint": f"https://{where}",
                **NO_RETRIES,
                **trust,
            }
            for who, token in {**self.server.tokens, "nobody": "torpor_x_y"}.items():
                self.clients[who] = Client(token, **how), AsyncClient(token, **how)
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
            before = await self._sessions()
            self._kept[need] = await need(self)
            self._stay |= await self._sessions() - before
        return self._kept[need]

    async def tidy(self) -> None:
        """Destroy the sessions that only one call needed: real machines take memory."""
        for session in await self._sessions() - self._stay:
            await self.ask("DELETE", f"/sessions/{session}")

    async def _sessions(self) -> set[str]:
        found = await self.ask("GET", "/sessions", params={"page_size": 200})
        return {each["session_id"] for each in found["sessions"]}

    async def ready(self, **wanted: Any) -> str:
        """Return the id of a new session that runs."""
        made = await self.ask("POST", "/sessions", params={"wait": "ready"}, json=wanted)
        return str(made["session"]["session_id"])

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
        answer = await self.answered(method, path, **request)
        found: dict[str, Any] = answer.json() if answer.content else {}
        return found

    async def answered(self, method: str, path: str, **request: Any) -> Any:
        """Ask the same; return the answer, whatever it is."""
        async with self.server.client() as client:
            answer = await client.request(method, path, **request)
        assert answer.is_success, answer.text
        return answer

    async def until(self, path: str, *at: str, status: str) -> dict[str, Any]:
        """Return what is at a path as soon as it has a status."""
        end = time.monotonic() + 300
        while True:
            found = whole = await self.ask("GET", path)
            for key in at:
                found = found[key]
            if found["status"] == status:
                return whole
            assert time.monotonic() < end, whole
            await asyncio.sleep(0.02)


def open_world(
    server: Server, directory: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Return a world in a directory. What the client fetches by itself trusts its authority too."""
    (directory / "files").mkdir()
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    # aiohttp has read that when it was imported, which another test may have done before.
    trusting = ssl.create_default_context(cafile=str(authority.file))
    monkeypatch.setattr(aiohttp.connector, "_SSL_CONTEXT_VERIFIED", trusting)
    return World(server, directory / "files").open(authority)


def data(content: bytes) -> Need:
    """A body that is read once."""

    async def need(world: World) -> Any:
        return io.BytesIO(content)

    return need
