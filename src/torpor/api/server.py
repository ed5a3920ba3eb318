"""The server: everything opened in order, served, and closed in order."""

import asyncio
import contextlib
import functools
import logging
import platform
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette

import torpor
from torpor.api.app import create_app
from torpor.api.connections import Connection, Strangers
from torpor.api.listening import listen, listen_for_previews, url_of
from torpor.api.logs import configure_logs
from torpor.api.opened_bearers import opened_bearers
from torpor.api.preview.addresses import Addresses
from torpor.api.preview.listener import serving_previews
from torpor.api.signing import Signer
from torpor.api.standby import APP, PREVIEWS, answering
from torpor.api.stopping import GRACE_SECONDS, Stop, stopped_by_signals
from torpor.api.supervisor import Supervisor
from torpor.api.tenure import held
from torpor.api.terminators import Terminators
from torpor.api.tls import Certificate
from torpor.backup import Backups, check_no_restore, remove_left_copies
from torpor.images import Report, Step, silent
from torpor.images.authorities import wanted_authorities
from torpor.network.inspect.authority import Authority
from torpor.network.inspect.terminator import trusting
from torpor.sessions import (
    Defaults,
    Keeping,
    LocalHost,
    RoomLimits,
    Sessions,
    TransferLimits,
    WorkspaceLimits,
)
from torpor.sessions.local_walls import Parts as WallParts
from torpor.settings import Places, Settings
from torpor.settings.presence import announce, withdraw
from torpor.store import Database
from torpor.store.errors import HostHeldError, UnreachableError
from torpor.store.hosts import Claim
from torpor.vm import MIB
from torpor.vm.home import host_id, locked, place_of

log = logging.getLogger("torpor.server")

STANDBY_SECONDS = 0.5
"""How often a standby looks whether the host is free, once it has the lock of the home."""
PATIENCE_SECONDS, AGAIN_SECONDS = 60.0, 1.0
"""For how long, and how often, a database is tried at the start that cannot be reached."""
LARGEST_MESSAGE = 1 << 20
"""Bytes of one message of a WebSocket."""
SWITCH_SECONDS = 0.0005
"""How long the event loop may keep the interpreter from a thread that waits for it. Python's own
5 ms are what a commit, which is a thread's, then takes longer where much goes on."""


async def serve(
    settings: Settings,
    places: Places,
    *,
    standby: bool = False,
    report: Report = silent,
    listening: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP. ``listening`` is told the URL as soon as requests are
    taken. A ``standby`` waits until no other server has the home, and says so meanwhile.

    Machines run on when it returns, or are frozen first, as the settings have it. A second signal
    ends requests at once, and leaves running what is not being frozen yet. Raises
    :exc:`torpor.api.listening.ListenError`, :exc:`torpor.api.tls.TlsError`, :exc:`HostLostError`,
    :exc:`torpor.backup.BackupError`, :exc:`torpor.vm.VmError`, :exc:`torpor.images.ImageError` and
    :exc:`torpor.store.errors.StoreError`, with nothing left open.
    """
    configure_logs()
    sys.setswitchinterval(SWITCH_SECONDS)
    certificate = Certificate.of(settings)
    supervisor = Supervisor.of_environment()

    def told(step: Step) -> None:
        supervisor.status(step.name)
        report(step)

    def ready() -> None:
        supervisor.ready()
        listening(url_of(listener, tls=certificate is not None))

    with stopped_by_signals(supervisor) as stop:
        async with AsyncExitStack() as stack:
            if certificate is not None:
                await stack.enter_async_context(_meanwhile(certificate.watch()))
            opening = asyncio.ensure_future(
                _open(stack, settings, places, told, stop, certificate, standby)
            )
            stopping = asyncio.ensure_future(stop.asked.wait())
            await asyncio.wait({opening, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if not opening.done():
                opening.cancel()
                await asyncio.gather(opening, return_exceptions=True)
                stop.check_not_lost()
                return
            app, listener, previews = opening.result()
            url = url_of(listener, tls=certificate is not None)
            announce(places.home, url, torpor.__version__)
            stack.callback(withdraw, places.home)
            if previews is not None:
                context = None if certificate is None else certificate.context("h2", "http/1.1")
                serving = serving_previews(
                    previews, app.state.parts, context=context,
                    grace=GRACE_SECONDS, hurried=stop.hurried,
                )  # fmt: skip
                await stack.enter_async_context(serving)
            await _run(app, listener, stop, ready, certificate)
        stop.check_not_lost()
    log.info("stopped")


async def _open(
    stack: AsyncExitStack,
    settings: Settings,
    places: Places,
    report: Report,
    stop: Stop,
    certificate: Certificate | None,
    standby: bool,
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
    async with AsyncExitStack() as waiting:
        if standby:
            report(Step("standing by: another server has the host"))
            for each, app in ((listener, APP), (previews, PREVIEWS)):
                if each is not None:
                    config = config_of(app, certificate=certificate)
                    await waiting.enter_async_context(answering(each, config))
        url = url_of(listener, tls=certificate is not None)
        opened = await _open_behind(stack, settings, places, report, stop, url, addresses, standby)
        return opened, listener, previews


async def _open_behind(
    stack: AsyncExitStack,
    settings: Settings,
    places: Places,
    report: Report,
    stop: Stop,
    url: str,
    addresses: Addresses | None,
    standby: bool,
) -> FastAPI:
    # Nothing of a home, be it its database or its token, while another program has it open.
    lock = await stack.enter_async_context(locked(places.home, wait=standby))
    check_no_restore(places.home)
    database = await _opened_database(settings.database_url(places))
    stack.push_async_callback(database.close)
    claim = Claim(
        host_id(places.home),
        platform.node(),
        url,
        torpor.__version__,
        place_of(places.home),
        secrets.token_hex(8),
    )
    await _hold_host(stack, database, claim, settings.lease_seconds, stop, standby)
    bearers = None
    if settings.authentication == "tokens":
        bearers = await stack.enter_async_context(opened_bearers(database, places.home))
    authority = await asyncio.to_thread(Authority.open, places.home / "authority")
    known = await asyncio.to_thread(wanted_authorities)
    terminators = Terminators(authority, trusting("".join(known.certificates)))
    host = await LocalHost.open(
        places.home, places.cache, report, lock, settings.template_insecure_registries,
        authority.told, WallParts(terminator=terminators.of_session),
    )  # fmt: skip
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
            egress_log_days=settings.egress_log_keep_days,
            flows_days=settings.flows_keep_days,
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
        me=claim.host,
        sealing_key=places.home / "sealing-key",
    )
    terminators.sessions = sessions

    async def close() -> None:
        # Who has lost the host freezes nothing: its machines are another one's.
        freeze = settings.on_stop == "freeze" and not stop.lost
        await sessions.close(freeze=freeze, enough=stop.hurried.is_set)

    stack.push_async_callback(close)
    remove_left_copies(places.home)
    backups = Backups(sessions, database, host.store, places.home, settings.told())
    signer = await Signer.open(database)
    return create_app(sessions, bearers, settings, signer, copies=backups, addresses=addresses)


async def _opened_database(url: str) -> Database:
    """Open the database; one that cannot be reached may be just starting, as this server is."""
    patience = time.monotonic() + PATIENCE_SECONDS
    told = ""
    while True:
        try:
            return await Database.open(url)
        except UnreachableError as error:
            if time.monotonic() > patience:
                raise
            if error.happened != told:
                told = error.happened
                log.warning("%s It is tried again for %.0f s.", told, PATIENCE_SECONDS)
        await asyncio.sleep(AGAIN_SECONDS)


async def _hold_host(
    stack: AsyncExitStack,
    database: Database,
    claim: Claim,
    seconds: float,
    stop: Stop,
    wait: bool,
) -> None:
    """Hold the host from now on, and stop if it is lost. If another server holds it, ``wait`` for
    that one's end, or raise :exc:`HostHeldError`.

    One whose computer went down holds it to the end of its lease, and is waited for in any case: a
    server that runs makes that anew before.
    """
    until = None
    while True:
        try:
            tenure = await stack.enter_async_context(held(database, claim, seconds))
            break
        except HostHeldError as error:
            if until not in (None, error.until) and not wait:
                raise
            if until is None and not wait:
                log.warning("%s It is waited for whether that one is still there.", error.happened)
            until = error.until
        await asyncio.sleep(STANDBY_SECONDS)

    async def watch() -> None:
        await tenure.lost.wait()
        stop.lose(tenure.why)

    watching = asyncio.create_task(watch(), name="watch over the lease")
    stack.callback(watching.cancel)


def _room_limits(settings: Settings) -> RoomLimits:
    limit = settings.memory_limit_mib
    return RoomLimits(
        reserve=settings.memory_reserve_mib * MIB, most=None if limit is None else limit * MIB
    )


# Running


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
    app: Starlette, strangers: Strangers | None = None, certificate: Certificate | None = None
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
