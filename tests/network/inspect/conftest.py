"""The wall's end of TLS, as machines meet it: at a port of this computer."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.certificates import Authority as Vouching
from tests.network.inspect.hosts import Talk2, connect
from torpor.network.bindings import parse
from torpor.network.injection import Held
from torpor.network.inspect.authority import Authority
from torpor.network.inspect.terminator import Terminator, TerminatorLimits
from torpor.network.verdicts import Destination

NAME = "api.example.test"
VALUE = "s3cr3t-value-of-the-team"


class Noted:
    """What a connection tells."""

    def __init__(self) -> None:
        self.secrets: list[str] = []
        self.words: list[str] = []
        self.counts = [0, 0]

    def used(self, secret: str) -> None:
        self.secrets.append(secret)

    def told(self, why: str) -> None:
        self.words.append(why)

    def sent(self, count: int) -> None:
        self.counts[0] += count

    def received(self, count: int) -> None:
        self.counts[1] += count


class Wall:
    """Everything that connects to ``port`` is ended here, and goes on to ``host``, a port."""

    def __init__(self, directory: Path, vouching: Vouching) -> None:
        self.authority = Authority.open(directory / "authority")
        self.vouching = vouching
        self.held: list[Held] = []
        self.noted = Noted()
        self.host = 0
        self.port = 0
        self.name = NAME
        self.limits = TerminatorLimits()
        self.look_up: Any = None
        self.awake = asyncio.Event()
        self.awake.set()
        self.served: set[asyncio.Task[None]] = set()
        self.file = directory / "bundle.pem"
        self.file.write_text(self.authority.bundle)

    def hold(self, value: str = VALUE, **said: Any) -> None:
        """Have the session hold one secret more."""
        binding = {"host": NAME, "port": self.host, **said}
        self.held.append(Held(parse(binding, f"KEY{len(self.held)}"), value))

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.vouching.file))

    def machine_context(self, *protocols: str) -> ssl.SSLContext:
        """Return how a machine trusts."""
        context = ssl.create_default_context(cafile=str(self.file))
        if protocols:
            context.set_alpn_protocols(list(protocols))
        return context

    @property
    def authority_name(self) -> str:
        """Return what a request says of whom it is for."""
        return f"{NAME}:{self.host}"

    async def open(self, *protocols: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a connection of a machine."""
        return await asyncio.open_connection(
            sock=await connect(self.port),
            ssl=self.machine_context(*protocols),
            server_hostname=NAME,
        )

    async def talk2(self) -> Talk2:
        """Return a connection of HTTP/2 of a machine."""
        talk = Talk2(*await self.open("h2"), client=True)
        assert talk.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        await talk.begin()
        return talk

    def client(self, **options: Any) -> httpx.AsyncClient:
        """Return a client of a machine."""
        return httpx.AsyncClient(
            base_url=f"https://127.0.0.1:{self.port}",
            verify=self.machine_context(),
            headers={"host": self.authority_name},
            trust_env=False,
            timeout=30,
            **options,
        )

    async def idle(self) -> None:
        """Return when no connection is served any more."""
        async with asyncio.timeout(10):
            while self.served:
                await asyncio.wait(self.served)

    async def _serve(self, machine: socket.socket) -> None:
        async def look_up() -> list[Held]:
            return list(self.held)

        terminator = Terminator(self.authority, self.look_up or look_up, self.trust, self.limits)
        terminator.awake = self.awake.wait  # type: ignore[assignment]
        to = Destination(self.name, IPv4Address("198.18.0.1"), self.host)
        await terminator.serve(machine, to, lambda: connect(self.host), self.noted)

    async def run(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            while True:
                machine, _ = await loop.sock_accept(listening)
                task = group.create_task(self._serve(machine))
                self.served.add(task)
                task.add_done_callback(self.served.discard)


SNI = {"sni_hostname": NAME}


@pytest.fixture
def vouching(tmp_path: Path) -> Vouching:
    return Vouching(tmp_path)


@pytest.fixture
async def wall(tmp_path: Path, vouching: Vouching) -> AsyncIterator[Wall]:
    wall = Wall(tmp_path, vouching)
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    wall.port = listening.getsockname()[1]
    running = asyncio.create_task(wall.run(listening))
    yield wall
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    listening.close()
