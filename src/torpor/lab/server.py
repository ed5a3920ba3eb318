"""A server as a process of its own, with a home of its own: started, killed, started again."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from torpor.client import AsyncClient, Client, ClientError, Patience
from torpor.images import Maker
from torpor.vm import VmError

TOKEN = "admin-token"  # noqa: S105 - a file's name
START_LIMIT, STOP_LIMIT = 60.0, 45.0
ASK_EVERY = 0.005
SETTINGS: Mapping[str, int | str] = {
    "idle_timeout_seconds": 0,
    "preview_listen": "off",
    "rate_limit_per_second": 1_000_000,
    "rate_limit_burst": 1_000_000,
}
"""What differs from the settings that a server has by itself: nothing is paused but by us, and one
token asks for more than a user would."""
ONCE = Patience(tries=1)
PROGRAM = "from torpor.cli import main; main()"


class Server:
    """The server of the home ``home``. It has the same address each time that it is started.

    ``log`` is the file with what it says. ``within`` are words before its command line, which end
    in running it in their place. ``authority`` is the file of what vouches for its certificate, if
    the settings have one.
    """

    def __init__(
        self,
        home: Path,
        cache: Path,
        settings: Mapping[str, int | str] | None = None,
        within: Sequence[str] = (),
        authority: Path | None = None,
    ) -> None:
        self.home, self.cache = home, cache
        self._within = within
        self._authority = None if authority is None else str(authority)
        self.log = home / "server.log"
        self._settings = {**SETTINGS, **(settings or {})}
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it is reached."""
        scheme = "http" if self._authority is None else "https"
        return f"{scheme}://127.0.0.1:{self._port}"

    @property
    def database(self) -> str:
        """The URL of its database."""
        return str(self._settings.get("database", f"sqlite:///{self.home}/database/torpor.db"))

    @property
    def token(self) -> str:
        """The token of its admin, which its first start makes."""
        return (self.home / TOKEN).read_text("ascii").strip()

    @property
    def pid(self) -> int:
        """Its process. Raises VmError if it does not run."""
        if self._process is None or self._process.poll() is not None:
            raise VmError(f"The server does not run: {self.said()}")
        return self._process.pid

    def client(self, patience: Patience | None = None) -> AsyncClient:
        """Return a client of it."""
        return AsyncClient(self.url, self.token, patience=patience, authorities=self._authority)

    def waiting_client(self, patience: Patience | None = None) -> Client:
        """Return a client of it for threads."""
        return Client(self.url, self.token, patience=patience, authorities=self._authority)

    async def start(self) -> float:
        """Start it; return the seconds until it has answered. Raises VmError if it does not."""
        self.home.mkdir(parents=True, exist_ok=True)
        config = self.home / "server.toml"
        lines = {"listen": f"127.0.0.1:{self._port}", **self._settings}
        config.write_text("".join(f"{name} = {_toml(value)}\n" for name, value in lines.items()))
        began = time.monotonic()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - as short as a fork
                [*self._within, sys.executable, "-c", PROGRAM, "serve", "--config", str(config)],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(START_LIMIT):
                await self._answering()
        except TimeoutError:
            await self.kill()
            raise VmError(f"The server did not answer in time: {self.said()}") from None
        return time.monotonic() - began

    async def start_of(self, program: str) -> float:
        """Run another program of Python as the server is run; return the seconds to its end."""
        began = time.monotonic()
        running = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, env=self._environment()
        )
        if await running.wait() != 0:
            raise VmError(f"{program!r} ended with status {running.returncode}.")
        return time.monotonic() - began

    async def _answering(self) -> None:
        async with AsyncClient(self.url, patience=ONCE, authorities=self._authority) as client:
            while self.pid:
                with contextlib.suppress(ClientError):
                    await client.health()
                    return
                await asyncio.sleep(ASK_EVERY)

    def _environment(self) -> dict[str, str]:
        # An installed server does not compile its modules anew at each start.
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("TORPOR_") and name != "PYTHONDONTWRITEBYTECODE"
        }
        own = {"TORPOR_HOME": str(self.home), "TORPOR_CACHE": str(self.cache)}
        return kept | own

    async def kill(self) -> None:
        """End it at once, as a crash does. Its machines run on."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    async def stop(self) -> None:
        """Ask it to end, and wait for that. Raises VmError if it fails or takes too long."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            status = await asyncio.to_thread(self._process.wait, STOP_LIMIT)
        except subprocess.TimeoutExpired:
            await self.kill()
            raise VmError(f"The server did not stop in time: {self.said()}") from None
        if status != 0:
            raise VmError(f"The server ended with status {status}: {self.said()}")

    def said(self, most: int = 3000) -> str:
        """Return the last of what it said."""
        with contextlib.suppress(FileNotFoundError):
            return self.log.read_bytes()[-most:].decode(errors="replace").strip()
        return "nothing"


@asynccontextmanager
async def served(
    maker: Maker, within: Path, settings: Mapping[str, int | str] | None = None
) -> AsyncIterator[Server]:
    """Start a server with an empty home in the directory ``within``; in the end it is killed, its
    machines are ended and its home is removed."""
    within.mkdir(parents=True, exist_ok=True)
    server = Server(Path(tempfile.mkdtemp(prefix="lab-", dir=within)), maker.cache, settings)
    try:
        await server.start()
        yield server
    finally:
        await server.kill()
        await end_machines(maker, server.home)
        shutil.rmtree(server.home, ignore_errors=True)


async def end_machines(maker: Maker, home: Path) -> None:
    """End all machines of a home that no program has open."""
    host = await maker.open_host(home)
    try:
        machines = list(host.machines.values())
        await asyncio.gather(*(host.end(each) for each in machines), return_exceptions=True)
    finally:
        await host.close()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _toml(value: int | str) -> str:
    return str(value) if isinstance(value, int) else f'"{value}"'
