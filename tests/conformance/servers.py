"""The servers that the client is tried with: one in this process, and one that is a process of its
own with real machines."""

import asyncio
import contextlib
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.api.conftest import BASE, Api
from tests.conformance.recorder import Recorder, Seen
from tests.waiting import eventually
from torpor.api.server import config_of
from torpor.api.tls import Certificate
from torpor.lab.server import Server as Process
from torpor.vm import MIB

ROLES = ("operator", "viewer")
MOVING = {"PROVISIONING", "DESTROYING"}


class Server(ABC):
    """A server. ``tokens`` are those of an operator and a viewer, ``routes`` what it has requests
    of, ``source`` the image that templates are built of."""

    tokens: dict[str, str]
    routes: Sequence[BaseRoute]
    source: str

    @abstractmethod
    def serving(
        self, seen: list[Seen], certificate: Certificate
    ) -> AbstractAsyncContextManager[str]:
        """Serve with TLS; return where. What is asked and answered is noted in ``seen``."""

    @abstractmethod
    def client(self) -> httpx.AsyncClient:
        """Return what asks it as an operator, unseen."""

    @abstractmethod
    def cramped(self) -> AbstractAsyncContextManager[None]:
        """Meanwhile there is room for a machine, and not for three."""


class InProcess(Server):
    """One in this process; what runs its commands are agents on this host."""

    source = "registry.test/team/tools:1"

    def __init__(self, api: Api) -> None:
        self._api = api
        self.tokens = {role: api.tokens[role] for role in ROLES}  # type: ignore[index]
        self.routes = api.app.router.routes

    @contextlib.asynccontextmanager
    async def serving(self, seen: list[Seen], certificate: Certificate) -> AsyncIterator[str]:
        app = self._api.app
        app.add_middleware(Recorder, routes=self.routes, seen=seen)
        async with listening(app, certificate) as where:
            yield where
            app.state.parts.closing.set()

    def client(self) -> httpx.AsyncClient:
        return self._api.client()

    @contextlib.asynccontextmanager
    async def cramped(self) -> AsyncIterator[None]:
        await self._settled()
        host = self._api.host
        kept = host.memory
        # A machine needs 202 MiB here.
        host.memory -= self._api.sessions.free_memory() - 300 * MIB
        yield
        host.memory = kept

    async def _settled(self) -> None:
        """Wait until nothing is under way, and count what machines have taken: what was promised to
        them and is not theirs by then becomes free when they are looked at."""

        async def moving() -> set[str]:
            async with self.client() as client:
                found = (await client.get("/sessions", params={"page_size": 200})).json()
            return {each["status"].rpartition("_")[2] for each in found["sessions"]} & MOVING

        await eventually(moving, lambda found: not found)
        await self._api.sessions._watch.look()


class OfProcess(Server):
    """``torpor serve`` with TLS. The client speaks to it through a proxy that notes what is said:
    much of that is not said by the client's own library, and would not be seen in it."""

    def __init__(
        self, process: Process, authority: Path, routes: Sequence[BaseRoute], source: str
    ) -> None:
        self._process = process
        self._authority = authority
        self.routes = routes
        self.source = source
        self.tokens = {}

    async def open(self) -> "OfProcess":
        """Make the tokens."""
        async with self._asking(self._process.token) as client:
            for role in ROLES:
                answer = await client.post("/tokens", json={"name": role, "role": role})
                self.tokens[role] = answer.raise_for_status().json()["bearer"]
        return self

    def client(self) -> httpx.AsyncClient:
        return self._asking(self.tokens["operator"])

    def _asking(self, token: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self._process.url + BASE,
            headers={"authorization": f"Bearer {token}"},
            verify=str(self._authority),
            timeout=120,
        )

    @contextlib.asynccontextmanager
    async def serving(self, seen: list[Seen], certificate: Certificate) -> AsyncIterator[str]:
        async with httpx.AsyncClient(
            base_url=self._process.url, verify=str(self._authority), timeout=300
        ) as onward:
            recorded = Recorder(Proxy(onward), self.routes, seen)
            async with listening(recorded, certificate) as where:
                yield where

    @contextlib.asynccontextmanager
    async def cramped(self) -> AsyncIterator[None]:
        made = []
        async with self.client() as client:
            # A machine needs 64 + 128 MiB here, and what it has written.
            while await self._free(client) > 440 * MIB:
                answer = await client.post("/sessions?wait=ready", json={"keep_warm": True})
                made.append(answer.raise_for_status().json()["session"]["session_id"])
            yield
            for session in made:
                (await client.delete(f"/sessions/{session}")).raise_for_status()

    async def _free(self, client: httpx.AsyncClient) -> int:
        said = (await client.get("/host")).raise_for_status().json()
        return int(said["promised_free_bytes"])


HOP_BY_HOP = {"connection", "transfer-encoding", "keep-alive", "upgrade", "te", "trailer"}


class Proxy:
    """Passes requests on as they are, ``Host`` too, and answers back as they come."""

    def __init__(self, onward: httpx.AsyncClient) -> None:
        self._onward = onward

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", scope
        request = Request(scope, receive)
        target = scope["raw_path"].decode("ascii")
        if scope["query_string"]:
            target += "?" + scope["query_string"].decode("ascii")
        headers = [
            (name, value) for name, value in request.headers.raw
            if name.decode("ascii") not in HOP_BY_HOP
        ]  # fmt: skip
        has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
        asked = self._onward.build_request(
            request.method, target, headers=headers, content=request.stream() if has_body else None
        )
        answer = await self._onward.send(asked, stream=True)
        back = StreamingResponse(answer.aiter_raw(), answer.status_code)
        back.raw_headers = [
            (name.lower(), value) for name, value in answer.headers.raw
            if name.decode("ascii").lower() not in HOP_BY_HOP
        ]  # fmt: skip
        try:
            await back(scope, receive, send)
        finally:
            await answer.aclose()


@contextlib.asynccontextmanager
async def listening(app: ASGIApp, certificate: Certificate) -> AsyncIterator[str]:
    """Serve an application on a port of loopback, as Torpor's server does; return where."""
    listener = socket.create_server(("127.0.0.1", 0))
    config: Any = config_of(app, None, certificate)  # type: ignore[arg-type]
    config.timeout_graceful_shutdown = 5
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment, method-assign]
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    host, port = listener.getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        server.should_exit = True
        await serving
        listener.close()
