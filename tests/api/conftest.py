"""The application on a service whose machines are agents on this host, and clients of it."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from tests.api.guests import GuestHost
from torpor.api import create_app
from torpor.api.bearers import Bearers
from torpor.api.connections import Strangers
from torpor.api.preview.addresses import Addresses
from torpor.api.preview.listener import serving_previews
from torpor.api.server import config_of
from torpor.api.signing import Signer
from torpor.api.tls import Certificate
from torpor.sessions import Sessions, TransferLimits
from torpor.settings import Settings
from torpor.store import Database
from torpor.store.records import Event, Role

BASE = "/v2/agents"


class Api:
    """The application, and what it stands on."""

    def __init__(self, root: Path, url: str, **settings: Any) -> None:
        self.root = root
        self.url = url
        self.settings = Settings(**settings)
        self.host = GuestHost(root / "world")

    async def open(self, preview_port: int = 0) -> "Api":
        """Open all of it."""
        self.database = await Database.open(self.url)
        self.bearers = await Bearers.open(self.database)
        self.sessions = await self._sessions()
        asked = self.bearers if self.settings.authentication == "tokens" else None
        self.signer = await Signer.open(self.database)
        self.previews = socket.create_server(("127.0.0.1", preview_port))
        self.addresses = Addresses("http", "localhost", self.previews.getsockname()[1])
        self.app = create_app(
            self.sessions, asked, self.settings, self.signer, addresses=self.addresses
        )
        self.tokens: dict[Role, str] = {}
        for role in ("viewer", "approver", "operator", "admin"):
            self.tokens[role] = (await self.bearers.make(role, role))[1]
        return self

    async def again(self) -> None:
        """Start the service anew, on what the last one has left. Its machines run on."""
        await self.sessions.close()
        self.sessions = await self._sessions()

    async def _sessions(self) -> Sessions:
        limits = TransferLimits(self.root / "transfers")
        return await Sessions.open(
            self.database, self.host, transfers=limits, sealing_key=self.root / "sealing-key"
        )

    async def close(self) -> None:
        """Close all of it."""
        self.previews.close()
        await self.sessions.close()
        await self.host.close()
        await self.database.close()

    def client(self, role: Role | None = "operator", **options: Any) -> httpx.AsyncClient:
        """Return a client with a token of a role, or with none."""
        headers = dict(options.pop("headers", {}))
        if role:
            headers["authorization"] = f"Bearer {self.tokens[role]}"
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(
            transport=transport, base_url=f"http://torpor{BASE}", headers=headers, **options
        )

    async def ready(self, **wanted: Any) -> str:
        """Return the id of a new session that runs."""
        async with self.client() as client:
            answer = await client.post("/sessions", params={"wait": "ready"}, json=wanted)
            assert answer.status_code == 200, answer.text
            return str(answer.json()["session"]["session_id"])

    async def events(self, session: str | None = None) -> list[Event]:
        """Return the events so far."""
        return await self.sessions.events.after(None, session, 1000)


@pytest.fixture
async def api(tmp_path: Path, database_url: str) -> AsyncIterator[Api]:
    limits = {"rate_limit_burst": 100_000, "rate_limit_per_second": 100_000}
    opened = await Api(tmp_path, database_url, **limits).open()
    yield opened
    await opened.close()


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with api.client() as opened:
        yield opened


@contextlib.asynccontextmanager
async def previewed(api: Api, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve previews; return at which port."""
    parts = api.app.state.parts
    async with serving_previews(
        api.previews, parts, context=context, grace=5, hurried=asyncio.Event()
    ):
        yield api.addresses.port


@contextlib.asynccontextmanager
async def served(
    api: Api, strangers: Strangers | None = None, certificate: Certificate | None = None
) -> AsyncIterator[str]:
    """Serve the application on a port of loopback; return where."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = config_of(api.app, strangers, certificate)
    config.timeout_graceful_shutdown = 5
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment, method-assign]
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    host, port = listener.getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        api.app.state.parts.closing.set()
        server.should_exit = True
        await serving
        listener.close()
