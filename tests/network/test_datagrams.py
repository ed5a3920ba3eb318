"""A machine's UDP: answers come from where they were asked, and nothing else does."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from ipaddress import IPv4Address
from typing import cast

import dns.message
import dns.query
import dns.rcode
import pytest

from tests.network.walled import HOSTS, Walled, judged, walled
from tests.network.world import (
    ANYWHERE,
    GOOD,
    HOST,
    METADATA,
    OTHER,
    PRIVATE,
    Internet,
    Namespace,
    Wire,
    needs_root,
)
from tests.waiting import eventually
from torpor.network.limits import Limits
from torpor.network.verdicts import Destination

pytestmark = needs_root


class Echo(asyncio.DatagramProtocol):
    """Sends each datagram back, more than once if its first byte says so."""

    def __init__(self) -> None:
        self.got: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.got.append(data)
        self._transport.sendto(data * 100 if data.startswith(b"*") else data, addr)


@contextlib.asynccontextmanager
async def echoing(there: Namespace, address: str, port: int) -> AsyncIterator[Echo]:
    sock = there.unbound(socket.SOCK_DGRAM)
    sock.bind((address, port))
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(Echo, sock=sock)
    try:
        yield protocol
    finally:
        transport.close()


@contextlib.contextmanager
def asking(wall: Walled, where: str, port: int) -> Iterator[socket.socket]:
    with wall.wire.machine.unbound(socket.SOCK_DGRAM) as sock:
        sock.connect((wall.address(where), port))
        yield sock


async def ask(sock: socket.socket, data: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(5):
        sock.send(data)
        return await loop.sock_recv(sock, 65535)


async def test_answers_come_from_the_address_that_was_asked(wire: Wire, internet: Internet) -> None:
    rules = ["udp://good.test:123"]
    async with echoing(internet.far, GOOD, 123) as echo, walled(wire, internet, rules) as wall:
        with asking(wall, "good.test", 123) as sock:  # connected: others are not heard
            assert await ask(sock, b"time?") == b"time?"
            assert await ask(sock, b"*" + b"long" * 12) == (b"*" + b"long" * 12) * 100  # in pieces
        assert echo.got[0] == b"time?"
        begun = wall.decisions[0]
        assert (begun.transport, begun.name, begun.connected_to) == ("udp", "good.test", GOOD)


@pytest.mark.parametrize(
    ("where", "port"),
    [("good.test", 124), ("evil.test", 123), (GOOD, 123), (METADATA, 123), ("good.test", 443)],
)
async def test_what_is_denied_is_refused_at_once(
    where: str, port: int, wire: Wire, internet: Internet
) -> None:
    async with (
        echoing(internet.far, ANYWHERE, port) as echo,
        walled(wire, internet, ["udp://good.test:123"]) as wall,
    ):
        for _ in range(2):
            with asking(wall, where, port) as sock, pytest.raises(ConnectionRefusedError):
                await ask(sock, b"time?")
        assert echo.got == []
        if port != 443:  # which the link refuses by itself
            assert not wall.denied().allowed


@pytest.mark.parametrize("where", [METADATA, PRIVATE, HOST, "rebound.test", "host.test"])
async def test_what_is_not_the_internet_is_never_reached(
    where: str, wire: Wire, internet: Internet
) -> None:
    async with (
        echoing(internet.far, ANYWHERE, 123) as far,
        echoing(internet.host, ANYWHERE, 123) as host,
        walled(wire, internet) as wall,
    ):
        with asking(wall, where, 123) as sock, pytest.raises(ConnectionRefusedError):
            await ask(sock, b"time?")
        assert far.got == host.got == []
        assert not wall.denied().allowed


async def test_a_closed_port_is_told(wire: Wire, internet: Internet) -> None:
    async with walled(wire, internet) as wall:
        with asking(wall, GOOD, 9) as sock, pytest.raises(ConnectionRefusedError):
            await ask(sock, b"?")


async def test_flows_end_when_idle_and_are_bounded(wire: Wire, internet: Internet) -> None:
    async with (
        echoing(internet.far, GOOD, 123),
        walled(wire, internet, limits=Limits(flows=3, flow_idle=0.5)) as wall,
        contextlib.AsyncExitStack() as stack,
    ):
        for _ in range(3):
            sock = stack.enter_context(asking(wall, GOOD, 123))
            assert await ask(sock, b"1") == b"1"
        with asking(wall, GOOD, 123) as fourth, pytest.raises(ConnectionRefusedError):
            await ask(fourth, b"2")
        assert "3 flows" in wall.denied().why

        async def ended() -> int:
            return sum(each.allowed and each.ended for each in wall.decisions)

        await eventually(ended, lambda count: count == 3)
        with asking(wall, GOOD, 123) as later:
            assert await ask(later, b"3") == b"3"


async def test_a_changed_policy_ends_flows(wire: Wire, internet: Internet) -> None:
    async with echoing(internet.far, GOOD, 123), walled(wire, internet) as wall:
        with asking(wall, "good.test", 123) as sock:
            assert await ask(sock, b"1") == b"1"
            assert await wall.guard.policy(judged(["other.test"])) == 1
            with pytest.raises(ConnectionRefusedError):
                await ask(sock, b"2")


async def test_quic_is_refused_also_where_no_link_does(wire: Wire, internet: Internet) -> None:
    async with walled(wire, internet, "unrestricted") as wall:
        quic = Destination("good.test", IPv4Address("198.18.1.1"), 443, "udp")
        assert not wall.guard._datagrams._may_begin(quic).allowed


async def test_what_comes_while_the_machine_sleeps_is_lost(wire: Wire, internet: Internet) -> None:
    async with echoing(internet.far, GOOD, 123) as echo, walled(wire, internet) as wall:
        with asking(wall, GOOD, 123) as sock:
            assert await ask(sock, b"1") == b"1"
            await wall.guard.hold()
            sock.send(b"2")

            async def got() -> list[bytes]:
                return echo.got

            await eventually(got, lambda all_of_it: b"2" in all_of_it)
            await asyncio.sleep(0.2)
            wall.guard.go_on()
            assert await ask(sock, b"3") == b"3"


async def test_names_are_told_and_denied_ones_reach_no_resolver(
    wire: Wire, internet: Internet
) -> None:
    async with walled(wire, internet, ["good.test"]) as wall:
        for resolver in ("198.19.255.1", "8.8.8.8"):  # any is this one
            for over in (dns.query.udp, dns.query.tcp):
                good = await asyncio.to_thread(_query, wire, over, resolver, "good.test")
                assert good.answer[0][0].address == wall.address("good.test")
                denied = await asyncio.to_thread(_query, wire, over, resolver, "aGVsbG8.evil.test")
                assert denied.rcode() == dns.rcode.NXDOMAIN
        assert set(wall.lookups) == {"good.test"}
        assert wall.denied().name == "agvsbg8.evil.test"
        assert wall.denied().add == "agvsbg8.evil.test"
    assert "good.test" in HOSTS
    assert OTHER


def _query(wire: Wire, over: object, resolver: str, name: str) -> dns.message.Message:
    asked = dns.message.make_query(name, "A")

    def ask() -> dns.message.Message:
        return over(asked, resolver, timeout=5)  # type: ignore[operator]

    return wire.machine.call(ask)
