"""TLS that a machine speaks with a host, ended at the wall.

Towards the machine the wall is the host, by a certificate of its own authority; towards the host it
is a client that verifies it.
"""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from torpor.network.errors import NetworkError
from torpor.network.injection import Held
from torpor.network.inspect.authority import Authority
from torpor.network.inspect.http1 import Http1, HttpError
from torpor.network.inspect.http2 import Http2
from torpor.network.inspect.offered import offered_protocols
from torpor.network.inspect.refusing import serve_refusal
from torpor.network.inspect.requests import LookUp, Requests
from torpor.network.inspect.sides import EndedError
from torpor.network.inspect.tls import Tls
from torpor.network.inspect.watch import Watch
from torpor.network.verdicts import Destination

SPOKEN = ("h2", "http/1.1")
SLEEP_SECONDS = 0.01
"""What is longer was no turn of the loop."""
ACCESS_DENIED = bytes((21, 3, 3, 0, 2, 2, 49))
"""A fatal alert of TLS, before there is a handshake (RFC 8446, 6.2)."""


class TerminatorError(NetworkError):
    """A connection could not be served, or not to its end."""


@dataclass(frozen=True)
class TerminatorLimits:
    """``greeting_seconds`` is for each side's handshake, ``idle_seconds`` for how long no byte may
    come from either side."""

    greeting_seconds: float = 20.0
    idle_seconds: float = 3600.0


class Terminator:
    """Serves the connections of one machine to hosts at which requests are judged one by one.

    ``look_up`` returns what the machine's session holds; ``trust`` makes the context by which hosts
    are verified.
    """

    def __init__(
        self,
        authority: Authority,
        look_up: LookUp,
        trust: Callable[[], ssl.SSLContext],
        limits: TerminatorLimits | None = None,
    ) -> None:
        self._authority = authority
        self._look_up = look_up
        self._trust = trust
        self._limits = limits or TerminatorLimits()
        self.awake: Callable[[], Awaitable[None]] = _at_once
        """Returns once the machine does not sleep: nothing is written to one that does, nor is its
        end of a connection closed, which it would never hear of."""
        self._contexts: dict[tuple[str, ...], ssl.SSLContext] = {}

    async def wanted(self, to: Destination) -> bool:
        """Say whether a destination has secrets, so that connections to it are to be served here.
        If that cannot be told they are, too, and are answered why."""
        if to.name is None:
            return False
        try:
            held = await self._look_up()
        except NetworkError:
            return True
        return concerns(held, to)

    async def serve(
        self,
        machine: socket.socket,
        to: Destination,
        dial: Callable[[], Awaitable[socket.socket]],
        watch: Watch,
    ) -> None:
        """Serve a connection of a machine, whose ClientHello was looked at and is still to be read.

        ``to`` has the name by which the host is to be verified. ``dial`` connects to it, and raises
        :exc:`OSError` or :exc:`NetworkError` if that cannot be. Both sockets are closed in the end,
        also when this is cancelled. Whatever goes wrong is told to ``watch`` and to the machine; a
        :exc:`NetworkError` of ``dial``, and what ``watch`` raises, is raised besides.
        """
        try:
            await self._serve(machine, to, dial, watch)
        except (OSError, HttpError, EndedError, TerminatorError) as error:
            watch.told(_words(error))
            await self.awake()
        finally:
            machine.close()

    async def _serve(
        self,
        machine: socket.socket,
        to: Destination,
        dial: Callable[[], Awaitable[socket.socket]],
        watch: Watch,
    ) -> None:
        machine.setblocking(False)
        if to.name is None:
            raise TerminatorError("TLS to an address without a name cannot be looked into.")
        try:
            async with asyncio.timeout(self._limits.greeting_seconds):
                offered = await offered_protocols(machine)
        except (ValueError, TimeoutError) as error:
            raise TerminatorError(f"The machine does not greet as TLS does: {error}.") from error
        protocols = tuple(each for each in SPOKEN if each in offered)
        try:
            upstream = await self._connect(to.name, protocols, dial)
        except (OSError, NetworkError) as error:
            why = f"{to.name} cannot be reached by TLS: {_words(error)}"
            watch.told(why)
            await self._explain(machine, to.name, offered, why)
            if isinstance(error, NetworkError):
                raise
            return
        try:
            chosen = (upstream.protocol,) if upstream.protocol else ()
            context = self._authority.context(to.name, chosen)
            end = Tls(machine, context, before_writing=lambda: self.awake())
            await self._greet(end, to.name)
            await self._pass(end, upstream, Requests(to, self._look_up, watch), watch)
            await self.awake()
        except BaseException as error:
            upstream.reset()
            if isinstance(error, Exception):
                await self.awake()
            _reset(machine)
            raise
        async with asyncio.TaskGroup() as group:
            group.create_task(end.close(), name="ending, the machine's side")
            group.create_task(upstream.close(), name="ending, the host's side")

    async def _connect(
        self, name: str, protocols: tuple[str, ...], dial: Callable[[], Awaitable[socket.socket]]
    ) -> Tls:
        sock = await dial()
        upstream = Tls(sock, self._context(protocols), server_name=name)
        try:
            async with asyncio.timeout(self._limits.greeting_seconds):
                await upstream.handshake()
        except BaseException:
            upstream.reset()
            raise
        return upstream

    def _context(self, protocols: tuple[str, ...]) -> ssl.SSLContext:
        if protocols not in self._contexts:
            context = self._trust()
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if protocols:
                context.set_alpn_protocols(list(protocols))
            self._contexts[protocols] = context
        return self._contexts[protocols]

    async def _greet(self, end: Tls, name: str) -> None:
        try:
            async with asyncio.timeout(self._limits.greeting_seconds):
                await end.handshake()
        except ssl.SSLError as error:
            raise TerminatorError(
                f"The machine does not accept the wall in the place of {name}: {error.reason}.",
                todo="What runs there has to trust the wall's authority: docs/network-secrets.md.",
            ) from error

    async def _pass(self, end: Tls, upstream: Tls, requests: Requests, watch: Watch) -> None:
        """Serve the requests until they end, or nothing has come for too long."""
        noting = _Noting(watch)
        speaker: Http1 | Http2
        if upstream.protocol == "h2":
            speaker = Http2(end, upstream, requests, noting)
        else:
            speaker = Http1(end, upstream, requests, noting)
        serving = asyncio.create_task(speaker.serve(), name="requests at the wall")
        try:
            while not serving.done():
                left = noting.last + self._limits.idle_seconds - time.monotonic()
                if left <= 0 and await self._slept():
                    noting.last = time.monotonic()
                    continue
                if left <= 0:
                    raise TerminatorError(
                        f"Nothing has come for {self._limits.idle_seconds:.0f} s: it is ended."
                    )
                await asyncio.wait([serving], timeout=left)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        serving.result()

    async def _slept(self) -> bool:
        """Wait until the machine is awake, and say whether it slept: that is no idle time."""
        began = time.monotonic()
        await self.awake()
        return time.monotonic() - began > SLEEP_SECONDS

    async def _explain(
        self, machine: socket.socket, name: str, offered: Sequence[str], why: str
    ) -> None:
        """Tell the machine why there is no connection: as an answer where it speaks HTTP/1.1, else
        by an alert."""
        if offered and "http/1.1" not in offered:
            with contextlib.suppress(OSError):
                await asyncio.get_running_loop().sock_sendall(machine, ACCESS_DENIED)
            return
        chosen = ("http/1.1",) if offered else ()
        end = Tls(machine, self._authority.context(name, chosen))
        try:
            async with asyncio.timeout(self._limits.greeting_seconds):
                await end.handshake()
                await serve_refusal(end, 502, why)
        finally:
            await end.close()


async def _at_once() -> None:
    """Return at once: the machine does not sleep."""


class _Noting:
    """Notes when something last came."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.used = watch.used
        self.told = watch.told
        self.last = time.monotonic()

    def sent(self, count: int) -> None:
        self.last = time.monotonic()
        self._watch.sent(count)

    def received(self, count: int) -> None:
        self.last = time.monotonic()
        self._watch.received(count)


def trusting(certificates: str = "") -> Callable[[], ssl.SSLContext]:
    """Return what makes the context by which hosts are verified: by those authorities that this
    computer trusts, and ``certificates`` besides, as PEM."""

    def make() -> ssl.SSLContext:
        context = ssl.create_default_context()
        if certificates:
            context.load_verify_locations(cadata=certificates)
        return context

    return make


def concerns(held: Sequence[Held], to: Destination) -> bool:
    """Say whether any of what a session holds is for requests to a destination."""
    return to.name is not None and any(each.binding.concerns(to.name, to.port) for each in held)


def _reset(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes((1, 0, 0, 0, 0, 0, 0, 0)))
    sock.close()


def _words(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}."
    return str(error) or type(error).__name__
