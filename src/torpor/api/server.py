"""The server: everything opened in order, served, and closed in order."""

import asyncio
import contextlib
import functools
import logging
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

import torpor
from torpor.api.app import create_app
from torpor.api.bearers import Bearers, is_valid
from torpor.api.connections import Connection, Strangers
from torpor.api.logs import configure_logs
from torpor.api.preview.addresses import Addresses
from torpor.api.preview.listener import serving_previews
from torpor.api.signing import Signer
from torpor.api.supervisor import Supervisor
from torpor.api.tls import Certificate
from torpor.backup import Backups, check_no_restore, remove_left_copies
from torpor.images import Report, Step, silent
from torpor.sessions import (
    Defaults,
    Keeping,
    LocalHost,
    RoomLimits,
    Sessions,
    TransferLimits,
    WorkspaceLimits,
)
from torpor.settings import Places, Settings
from torpor.settings.model import is_loopback
from torpor.settings.presence import announce, withdraw
from torpor.store import Database
from torpor.store.errors import StoreError
from torpor.vm import MIB
from torpor.vm.home import locked

log = logging.getLogger("torpor.server")

ADMIN_TOKEN = "admin-token"  # noqa: S105 - a file's name
"""The file below Torpor's home with the bearer that the first start makes."""
GRACE_SECONDS = 30
"""How long requests may take to their end when the server stops."""
NOTE_EVERY = 60.0
DEAD_MILLISECONDS = 120_000
"""After how long a peer that takes nothing of what was sent to it is given up (tcp(7),
TCP_USER_TIMEOUT), be it dead or just not reading: streams would otherwise wait for it for ever, and
commands for these."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LARGEST_MESSAGE = 1 << 20
"""Bytes of one message of a WebSocket."""


class ListenError(Exception):
    """The address cannot be listened on. The text says what to do."""


async def serve(
    settings: Settings,
    places: Places,
    *,
    report: Report = silent,
    listening: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP. ``listening`` is told the URL as soon as requests are
    taken.

    Machines run on when it returns, or are frozen first, as the settings have it. A second signal
    ends requests at once, and leaves running what is not being frozen yet. Raises
    :exc:`ListenError`, :exc:`torpor.backup.BackupError`, :exc:`torpor.vm.VmError`,
    :exc:`torpor.images.ImageError` and :exc:`torpor.store.errors.StoreError`, with nothing left
    open; also :exc:`torpor.api.tls.TlsError`.
    """
    configure_logs()
    certificate = Certificate.of(settings)
    supervisor = Supervisor.of_environment()

    def told(step: Step) -> None:
        supervisor.status(step.name)
        report(step)

    def ready() -> None:
        supervisor.ready()
        listening(url_of(listener, tls=certificate is not None))

    with _stopped_by_signals(supervisor) as stop:
        async with AsyncExitStack() as stack:
            opening = asyncio.ensure_future(_open(stack, settings, places, told, stop))
            stopping = asyncio.ensure_future(stop.asked.wait())
            await asyncio.wait({opening, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if not opening.done():
                opening.cancel()
                await asyncio.gather(opening, return_exceptions=True)
                return
            app, listener, previews = opening.result()
            url = url_of(listener, tls=certificate is not None)
            announce(places.home, url, torpor.__version__)
            stack.callback(withdraw, places.home)
            if certificate is not None:
                await stack.enter_async_context(_meanwhile(certificate.watch()))
            if previews is not None:
                context = None if certificate is None else certificate.context("h2", "http/1.1")
                serving = serving_previews(
                    previews, app.state.parts, context=context,
                    grace=GRACE_SECONDS, hurried=stop.hurried,
                )  # fmt: skip
                await stack.enter_async_context(serving)
            await _run(app, listener, stop, ready, certificate)
    log.info("stopped")


async def _open(
    stack: AsyncExitStack, settings: Settings, places: Places, report: Report, stop: "Stop"
) -> tuple[FastAPI, socket.socket, socket.socket | None]:
    """Open everything, each with its closing in ``stack``; return also the sockets of the API and
    of previews."""
    # First the addresses: nothing is touched if another server has one.
    listener = stack.enter_context(contextlib.closing(listen(settings)))
    previews = listen_for_previews(settings)
    addresses = None
    if previews is not None:
        stack.enter_context(contextlib.closing(previews))
        addresses = Addresses.of(settings, previews.getsockname()[1])
    # And nothing of a home, be it its database or its token, while another program has it open.
    lock = await stack.enter_async_context(locked(places.home))
    check_no_restore(places.home)
    database = await Database.open(settings.database_url(places))
    stack.push_async_callback(database.close)
    bearers = None
    if settings.authentication == "tokens":
        bearers = await stack.enter_async_context(_open_bearers(database, places.home))
    host = await LocalHost.open(
        places.home, places.cache, report, lock, settings.template_insecure_registries
    )
    stack.push_async_callback(host.close)
    sessions = await Sessions.open(
        database,
        host,
        defaults=Defaults(
            settings.default_image,
            settings.default_size,
            settings.idle_timeout_seconds,
            settings.max_sessions,
        ),
        limits=_room_limits(settings),
        keeping=Keeping(
            sample_seconds=settings.sample_seconds,
            samples_days=settings.samples_keep_days,
            events_days=settings.events_keep_days,
        ),
        transfers=TransferLimits(
            places.home / "transfers",
            settings.transfer_limit_gib << 30,
            timedelta(hours=settings.transfer_keep_hours),
        ),
        workspaces=WorkspaceLimits(
            settings.workspace_limit_gib,
            min(settings.workspace_default_gib, settings.workspace_limit_gib),
            settings.max_workspaces,
        ),
    )
    freeze = settings.on_stop == "freeze"
    stack.push_async_callback(sessions.close, freeze=freeze, enough=stop.hurried.is_set)
    remove_left_copies(places.home)
    named = settings.model_dump(exclude_defaults=True)
    backups = Backups(sessions, database, host.store, places.home, named)
    signer = await Signer.open(database)
    app = create_app(sessions, bearers, settings, signer, copies=backups, addresses=addresses)
    return app, listener, previews


def _room_limits(settings: Settings) -> RoomLimits:
    limit = settings.memory_limit_mib
    return RoomLimits(
        reserve=settings.memory_reserve_mib * MIB, most=None if limit is None else limit * MIB
    )


def listen(settings: Settings) -> socket.socket:
    """Return a socket that listens where the settings say. Raises :exc:`ListenError`."""
    host, port = settings.address
    if settings.authentication == "none" and not is_loopback(host):
        raise ListenError(
            f"Without authentication the server does not listen on {host}, which others reach."
            " Nothing was started. Ask for tokens, or listen on 127.0.0.1."
        )
    return _listening(host, port, f"{settings.listen} cannot be listened on", "listen")


def listen_for_previews(settings: Settings) -> socket.socket | None:
    """Return a socket that listens for previews, None if there are to be none. Raises
    :exc:`ListenError`."""
    if settings.preview_address is None:
        return None
    host, port = settings.preview_address
    said = settings.preview_listen or f"{host}:{port}, the port after that of `listen`,"
    return _listening(host, port, f"{said} cannot be listened on for previews", "preview_listen")


def _listening(host: str, port: int, failed: str, setting: str) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Linux gives these to the connections that are accepted.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_MILLISECONDS)
            listener.bind(address)
            listener.listen(1024)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise ListenError(
            f"{failed}: {(error.strerror or str(error)).lower()}. Nothing was started. End what"
            f" listens there, or set `{setting}` to another address."
        ) from error
    return listener


def url_of(listener: socket.socket, *, tls: bool = False) -> str:
    """Return the URL at which a socket is reached."""
    scheme = "https" if tls else "http"
    host, port, *_ = listener.getsockname()
    if ip_address(host).is_unspecified:  # of all addresses this computer's own is one
        host = "::1" if ":" in host else "127.0.0.1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


# Tokens


@asynccontextmanager
async def _open_bearers(database: Database, home: Path) -> AsyncIterator[Bearers]:
    """Open the tokens, with one for an admin among them; what is noted of their use is written
    down now and then, and at the end."""
    bearers = await Bearers.open(database)
    if not any(token.role == "admin" and is_valid(token) for token in bearers.list()):
        await bearers.make(
            "first", "admin", keep=lambda text: write_secret(home / ADMIN_TOKEN, text)
        )
        log.info("a token for an admin is in %s", home / ADMIN_TOKEN)
    noting = asyncio.create_task(_note_uses(bearers), name="uses of tokens")
    try:
        yield bearers
    finally:
        noting.cancel()
        await asyncio.gather(noting, return_exceptions=True)
        with contextlib.suppress(StoreError):
            await bearers.note_uses()


async def _note_uses(bearers: Bearers) -> None:
    while True:
        await asyncio.sleep(NOTE_EVERY)
        try:
            await bearers.note_uses()
        except StoreError as error:
            log.warning("uses of tokens were not written down: %s", error)


def write_secret(file: Path, text: str) -> None:
    """Write a file that only its owner may read, all at once."""
    new = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "w") as opened:
            opened.write(text + "\n")
            opened.flush()
            os.fsync(fd)
        new.rename(file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


# Running


class Stop:
    """What signals ask for: ``asked`` to stop, and then, by a second one, ``hurried``."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()
        self._supervisor = supervisor

    def signalled(self) -> None:
        """Take one more signal."""
        if not self.asked.is_set():
            log.info("stopping: requests have %d s, or until the next signal", GRACE_SECONDS)
            self._supervisor.stopping()
            self.asked.set()
        elif not self.hurried.is_set():
            log.info("stopping at once: requests are cut off, and nothing more is frozen")
            self.hurried.set()


@contextlib.contextmanager
def _stopped_by_signals(supervisor: Supervisor) -> Iterator[Stop]:
    """Have signals ask this server to stop; one that is ignored (nohup(1)) stays so."""
    stop = Stop(supervisor)
    loop = asyncio.get_running_loop()
    numbers = [each for each in SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    for number in numbers:
        loop.add_signal_handler(number, stop.signalled)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


class _Uvicorn(uvicorn.Server):
    """uvicorn, which leaves signals to us, and ends streams before it waits for requests."""

    def __init__(self, config: uvicorn.Config, closing: asyncio.Event) -> None:
        super().__init__(config)
        self._closing = closing
        self._asked = asyncio.Event()

    def ask_to_exit(self) -> None:
        """Have :meth:`serve` come to its end."""
        self.should_exit = True
        self._asked.set()

    async def main_loop(self) -> None:
        # uvicorn's own looks ten times a second whether it is to end. Each second is for the date.
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), 1)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._closing.set()
        await super().shutdown(sockets)
        # Whatever did not end in time was cancelled, or is now: what it stands on is closed next.
        left = list(self.server_state.tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


@asynccontextmanager
async def _meanwhile(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do something beside the block, and end it with that."""
    doing = asyncio.create_task(work)
    try:
        yield
    finally:
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)


def config_of(
    app: FastAPI, strangers: Strangers | None = None, certificate: Certificate | None = None
) -> uvicorn.Config:
    """Return how uvicorn serves the application."""
    context = None if certificate is None else certificate.context("http/1.1")
    return uvicorn.Config(
        app,
        http=functools.partial(Connection, strangers or Strangers()),  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=GRACE_SECONDS,
        ws_max_size=LARGEST_MESSAGE,
        ws_per_message_deflate=False,
        # Who is held up reads no pongs; the kernel finds out who is dead (DEAD_MILLISECONDS).
        ws_ping_timeout=None,
        ssl_context_factory=None if context is None else lambda *_: context,
    )


async def _run(
    app: FastAPI,
    listener: socket.socket,
    stop: Stop,
    ready: Callable[[], None],
    certificate: Certificate | None,
) -> None:
    """Serve requests until ``stop`` is asked for and those that are under way have ended."""
    server = _Uvicorn(config_of(app, certificate=certificate), app.state.parts.closing)

    async def end() -> None:
        await stop.asked.wait()
        server.ask_to_exit()
        await stop.hurried.wait()
        server.force_exit = True

    ending = asyncio.create_task(end(), name="end of the server")
    log.info("listening on %s", url_of(listener, tls=certificate is not None))
    ready()
    try:
        await server.serve(sockets=[listener])
    finally:
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
