"""A guard on a wire, and what talks through it: clients in the machine, servers on the internet."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from ipaddress import IPv4Address, ip_address

from tests.network.world import (
    CDN,
    EVIL,
    GOOD,
    HOST,
    METADATA,
    OTHER,
    PRIVATE,
    Internet,
    Namespace,
    Wire,
)
from torpor.network.decisions import Decision
from torpor.network.guard import Guard
from torpor.network.host_addresses import OwnAddresses
from torpor.network.judge import PolicyJudge, judge
from torpor.network.limits import Limits
from torpor.network.names import Names
from torpor.network.policy import parse
from torpor.network.resolver import Resolved, Resolver
from torpor.network.services import Handler
from torpor.network.terminating import Terminator
from torpor.network.turns import Turns

HOSTS: Mapping[str, tuple[str, ...]] = {
    "good.test": (GOOD,),
    "evil.test": (EVIL,),
    "www.cdn.test": (CDN,),
    "api.cdn.test": (CDN,),
    "cdn.test": (CDN,),
    "two.test": ("203.0.113.99", GOOD),
    "mixed.test": (PRIVATE, GOOD),
    "rebound.test": ("127.0.0.1",),
    "metadata.test": (METADATA,),
    "private.test": (PRIVATE,),
    "host.test": (HOST,),
    "other.test": (OTHER,),
}
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Walled:
    """A guard that runs, with what was decided."""

    def __init__(self, wire: Wire, internet: Internet) -> None:
        self.wire = wire
        self.internet = internet
        self.names = Names()
        self.decisions: list[Decision] = []
        self.lookups: list[str] = []
        self.faults: list[dict[str, object]] = []
        self.before_lookup: Callable[[str], None] = lambda name: None
        self.guard: Guard

    def lookup(self, name: str) -> Resolved:
        """Look a name up, as the host would."""
        self.lookups.append(name)
        self.before_lookup(name)
        found = HOSTS.get(name, ())
        return Resolved("found" if found else "missing", tuple(ip_address(each) for each in found))

    def address(self, where: str) -> str:
        """Return what a machine dials to get somewhere."""
        with contextlib.suppress(ValueError):
            return str(IPv4Address(where))
        return str(self.names.address(where))

    async def connect(self, where: str, port: int) -> socket.socket:
        """Connect from the machine to a name or an address."""
        sock = self.wire.machine.unbound()
        try:
            async with asyncio.timeout(10):
                loop = asyncio.get_running_loop()
                await loop.sock_connect(sock, (self.address(where), port))
        except BaseException:
            sock.close()
            raise
        return sock

    @contextlib.asynccontextmanager
    async def dialled(
        self,
        where: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        said: str | None = None,
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Connect from the machine; over TLS, saying a name, if there is a context."""
        sock = await self.connect(where, port)
        more = (
            {} if tls is None else {"ssl": tls, "server_hostname": where if said is None else said}
        )
        try:
            async with asyncio.timeout(10):
                reader, writer = await asyncio.open_connection(sock=sock, **more)
        except BaseException:
            sock.close()
            raise
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def say(self, where: str, port: int, data: bytes) -> bytes:
        """Connect, say something, and return all that is answered. Raises OSError at a reset."""
        async with self.dialled(where, port) as (reader, writer), asyncio.timeout(15):
            writer.write(data)
            return await reader.read()

    async def refused(self, where: str, port: int, data: bytes = b"") -> bool:
        """Say whether a connection ends with a reset and nothing was answered before."""
        try:
            return await self.say(where, port, data) == b"never"
        except ConnectionResetError:
            return True

    def denied(self) -> Decision:
        """Return the last decision, which must be a denial."""
        assert self.decisions, "nothing was decided"
        assert not self.decisions[-1].allowed, self.decisions[-1]
        return self.decisions[-1]


@contextlib.asynccontextmanager
async def walled(
    wire: Wire,
    internet: Internet,
    egress: object = "unrestricted",
    *,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    handlers: Mapping[str, Handler] | None = None,
    terminator: Terminator | None = None,
    turns: Turns | None = None,
    session: str = "s-1",
) -> AsyncIterator[Walled]:
    """Have a guard run on a wire, under a policy. No fault of the wall passes unseen, and nothing
    of it is open in the end."""
    made = Walled(wire, internet)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: made.faults.append(context))
    resolver = Resolver(made.lookup)
    made.guard = Guard(
        session,
        wire.ends,
        judged(egress),
        made.names,
        resolver,
        tell=made.decisions.append,
        turns=turns or Turns(),
        limits=limits,
        handlers=handlers,
        terminator=terminator,
    )
    with internet.from_host():
        running = asyncio.create_task(made.guard.run())
        await asyncio.sleep(0)
        try:
            yield made
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            resolver.close()
            drop_waiting(wire)
    assert made.faults == []
    assert made.guard.connections == 0


def judged(egress: object) -> PolicyJudge:
    """Return the judge of a policy, as it is written."""
    return judge(parse(egress), own=OwnAddresses())


def drop_waiting(wire: Wire) -> None:
    """Have nothing of one test wait at the wall for the next."""
    with contextlib.suppress(BlockingIOError):
        while True:
            wire.ends.tcp.accept()[0].close()
    for each in (wire.ends.udp, wire.ends.dns_udp):
        with contextlib.suppress(BlockingIOError):
            while True:
                each.recv(1)


@contextlib.asynccontextmanager
async def serving(
    there: Namespace, address: str, port: int, serve: Serve, tls: ssl.SSLContext | None = None
) -> AsyncIterator[None]:
    """Have something serve connections."""
    tasks: set[asyncio.Task[None]] = set()

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            if not writer.is_closing():
                writer.transport.abort()

    server = await asyncio.start_server(
        served, sock=there.listening(address, port), ssl=tls, limit=1 << 20
    )
    try:
        yield
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send back what comes, to its end."""
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


class Web:
    """A server of HTTP/1.1 that notes what it was asked, byte for byte."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []

    @property
    def hosts(self) -> list[str]:
        """The hosts that were said to it."""
        return [
            line.partition(b":")[2].strip().decode()
            for head in self.heads
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"host:")
        ]

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            lower = head.lower()
            if b"expect: 100-continue" in lower:
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.bodies.append(await _body(reader, lower))
            text = f"{self.name} got {len(self.bodies[-1])} bytes\n".encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
            await writer.drain()
            if b"connection: close" in lower:
                writer.close()
                return


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    for line in head.split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return await reader.readexactly(int(line.partition(b":")[2]))
    if b"transfer-encoding: chunked" not in head:
        return b""
    body = b""
    while size := int((await reader.readline()).partition(b";")[0], 16):
        body += await reader.readexactly(size)
        assert await reader.readexactly(2) == b"\r\n"
    while await reader.readline() != b"\r\n":
        pass
    return body


def request(
    host: str, path: str = "/", *headers: str, body: bytes = b"", method: str = ""
) -> bytes:
    """Return a request, to be the last on its connection unless ``headers`` name Connection."""
    lines = [f"{method or ('POST' if body else 'GET')} {path} HTTP/1.1", f"Host: {host}", *headers]
    if not any(each.lower().startswith("connection") for each in headers):
        lines.append("Connection: close")
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join((*lines, "", "")).encode() + body
