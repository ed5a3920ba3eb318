"""Connecting to a destination: the wall finds its addresses itself, and goes to those alone that it
has checked."""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from torpor.network.errors import NetworkError
from torpor.network.readiness import keep_alive, prepare
from torpor.network.resolver import Resolved
from torpor.network.verdicts import Destination, Judge, Verdict

STAGGER = 0.25
"""Seconds after which the next address is tried beside one that does not answer (RFC 8305, 5)."""
MOST = 8
"""Addresses of one name that are tried."""

Address = IPv4Address | IPv6Address
NameOf = Callable[[IPv4Address], str | None]
"""Says which name an address stands for."""
Resolve = Callable[[str], Awaitable[Resolved]]
"""Finds the addresses of a name."""


class DeniedError(NetworkError):
    """The policy says no."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.why)
        self.verdict = verdict


class UnreachableError(NetworkError):
    """The destination is allowed, and there is no way to it now."""


@dataclass(frozen=True)
class Upstream:
    """A connection that the wall made: to which ``address``, and the verdict on that."""

    sock: socket.socket
    address: Address
    verdict: Verdict


async def found(
    to: Destination, judge: Judge, resolve: Resolve, *, only: Address | None = None
) -> list[tuple[Address, Verdict]]:
    """Return the addresses of a destination that may be dialled, in order. ``only``: none but this
    one, and it if it is the name's. Raises :exc:`DeniedError` if there are only others,
    :exc:`UnreachableError` if there are none."""
    addresses: Sequence[Address] = (to.address,)
    if to.name is not None:
        resolved = await resolve(to.name)
        addresses = resolved.addresses
        if not addresses:
            raise UnreachableError(f"{to.name} has no address: {resolved.why or resolved.outcome}.")
        if only is not None:
            if only not in addresses:
                raise DeniedError(Verdict(False, "names", f"{only} is no address of {to.name}"))
            addresses = (only,)
    judged = [(each, judge.dialled(to, each)) for each in addresses]
    allowed = [(each, verdict) for each, verdict in judged if verdict.allowed]
    if not allowed:
        raise DeniedError(judged[0][1])
    return allowed[:MOST]


async def dial(
    to: Destination,
    judge: Judge,
    resolve: Resolve,
    limit: float,
    *,
    only: Address | None = None,
) -> Upstream:
    """Connect to a destination over TCP, within ``limit`` seconds; ``only`` as in :func:`found`.
    Raises :exc:`DeniedError` and :exc:`UnreachableError`."""
    try:
        async with asyncio.timeout(limit):
            addresses = await found(to, judge, resolve, only=only)
            if len(addresses) == 1:
                address, verdict = addresses[0]
                return Upstream(await _connect(address, to.port), address, verdict)
            return await _first(addresses, to.port)
    except TimeoutError:
        raise UnreachableError(f"Nobody answered within {limit:g} s.") from None
    except OwnHostError as error:
        raise DeniedError(Verdict(False, "own", str(error))) from error
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise UnreachableError(f"It could not be connected to: {why}.") from error


async def _first(addresses: list[tuple[Address, Verdict]], port: int) -> Upstream:
    """Connect to the first address that answers; each has a little time before the next is tried
    as well. Raises OSError."""
    waiting = deque(addresses)
    tries: dict[asyncio.Task[socket.socket], tuple[Address, Verdict]] = {}
    refused: OSError | None = None
    try:
        while waiting or tries:
            if waiting:
                address, verdict = waiting.popleft()
                attempt = asyncio.create_task(_connect(address, port))
                tries[attempt] = address, verdict
            done, _ = await asyncio.wait(
                tries,
                timeout=STAGGER if waiting else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for each in done:
                address, verdict = tries.pop(each)
                try:
                    return Upstream(each.result(), address, verdict)
                except OSError as error:
                    refused = error
    finally:
        await _given_up(list(tries))
    assert refused is not None, "there is at least one address"
    raise refused


async def _given_up(tries: "list[asyncio.Task[socket.socket]]") -> None:
    """End tries that are of no use any more."""
    for each in tries:
        each.cancel()
    for sock in await asyncio.gather(*tries, return_exceptions=True):
        if isinstance(sock, socket.socket):
            sock.close()


class OwnHostError(OSError):
    """What was connected to is this host itself."""


async def _connect(address: Address, port: int) -> socket.socket:
    """Return a connection. Raises OSError."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        prepare(sock)
        keep_alive(sock)
        await asyncio.get_running_loop().sock_connect(sock, (str(address), port))
        # No list of special ranges has this host's own addresses in it.
        if sock.getsockname()[0] == sock.getpeername()[0]:
            raise OwnHostError(f"{address} is this host itself")
    except BaseException:
        sock.close()
        raise
    return sock
