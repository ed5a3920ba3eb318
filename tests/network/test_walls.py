"""All walls of a host: each machine has its own, and none has another's."""

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from ipaddress import ip_address

import pytest

from tests.network.walled import HOSTS, Walled, drop_waiting, echo, judged, request, serving
from tests.network.world import ANYWHERE, GOOD, Internet, Wire, needs_root
from torpor.network.decisions import Decision
from torpor.network.errors import NetworkError
from torpor.network.link import Ends
from torpor.network.names import Names
from torpor.network.resolver import Resolved, Resolver
from torpor.network.walls import Walls

pytestmark = needs_root


@dataclass
class Linked:
    """A link whose sockets outlive it, so that the next test has them."""

    ends: Ends
    closed: int = 0

    def close(self) -> None:
        self.closed += 1


class Wires:
    """Hands out wires as links."""

    def __init__(self, *wires: Wire) -> None:
        self.links = [Linked(wire.ends) for wire in wires]
        self._left = list(self.links)

    async def take(self) -> Linked:
        return self._left.pop(0)

    async def rebuilt(self, pid: int) -> Linked:
        return self._left.pop(0)


@dataclass
class Two:
    """Two machines and the walls of their host."""

    walls: Walls[Linked]
    one: Walled
    other: Walled
    decisions: list[tuple[str, Decision]]
    links: list[Linked]


@pytest.fixture
async def two(wire: Wire, other_wire: Wire, internet: Internet) -> AsyncIterator[Two]:
    decisions: list[tuple[str, Decision]] = []
    one, other = Walled(wire, internet), Walled(other_wire, internet)

    def lookup(name: str) -> Resolved:
        return one.lookup(name)

    resolver = Resolver(lookup)
    wires = Wires(wire, other_wire)
    walls = Walls(wires, resolver, lambda key, made: decisions.append((key, made)))
    with internet.from_host():
        await walls.open("m-1", judged(["good.test"]), one.names)
        await walls.adopt("m-2", 42, judged(["evil.test"]), other.names)
        try:
            yield Two(walls, one, other, decisions, wires.links)
        finally:
            await walls.close_all()
            resolver.close()
            for each in (wire, other_wire):
                drop_waiting(each)


async def test_who_calls_is_known_by_the_wire(two: Two) -> None:
    name = "gateway.torpor.internal"
    for machine, key in ((two.one, "m-1"), (two.other, "m-2")):
        answer = await machine.say(name, 80, request("m-9"))
        assert f'"session": "{key}"'.encode() in answer


async def test_each_has_its_own_policy_and_decisions_say_whose(
    two: Two, internet: Internet
) -> None:
    async with serving(internet.far, ANYWHERE, 80, echo):
        assert b"403" in await two.one.say("evil.test", 80, request("evil.test"))
        assert b"403" in await two.other.say("good.test", 80, request("good.test"))
        assert {(key, made.name) for key, made in two.decisions} == {
            ("m-1", "evil.test"), ("m-2", "good.test"),
        }  # fmt: skip
        assert await two.walls.policy("m-1", judged(["evil.test"])) == 0
        async with two.one.dialled("evil.test", 80) as (reader, writer):
            writer.write(request("evil.test"))
            assert (await reader.readline()).startswith(b"GET / ")
        assert two.walls.traffic("m-1")[-1].host == "evil.test"
    assert HOSTS


async def test_a_wall_stands_through_a_sleep_and_goes_with_all_that_is_open(
    two: Two, internet: Internet
) -> None:
    async with serving(internet.far, GOOD, 80, echo), two.one.dialled("good.test", 80) as (
        reader, writer,
    ):  # fmt: skip
        writer.write(request("good.test"))
        assert await reader.readline()
        assert await two.walls.pause("m-1") is True
        assert two.walls.link("m-1") is two.links[0]
        two.walls.resume("m-1")
        await two.walls.close("m-1")
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1 << 20)
    assert "m-1" not in two.walls
    assert [link.closed for link in two.links] == [1, 0]
    assert [made.ended for key, made in two.decisions if key == "m-1"][-1]
    await two.walls.close("m-1")  # there is none any more


async def test_a_second_wall_of_one_machine_is_refused(wire: Wire, internet: Internet) -> None:
    resolver = Resolver(lambda name: Resolved("missing"))
    wires = Wires(wire, wire)
    walls = Walls(wires, resolver, lambda key, made: None)
    await walls.open("m-1", judged("none"), Names())
    with pytest.raises(NetworkError, match="already"):
        await walls.open("m-1", judged("none"), Names())
    assert [link.closed for link in wires.links] == [0, 1]
    await walls.close_all()
    resolver.close()


async def test_a_guard_that_fails_lets_nothing_through_and_says_so(
    wire: Wire, internet: Internet
) -> None:
    told: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context["message"]))
    resolver = Resolver(lambda name: Resolved("found", (ip_address(GOOD),)))
    wires = Wires(wire)
    broken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    broken.close()
    wires.links[0].ends = replace(wire.ends, udp=broken)
    walls = Walls(wires, resolver, lambda key, made: None)
    await walls.open("m-1", judged("unrestricted"), Names())
    for _ in range(20):
        await asyncio.sleep(0)
    assert told == ["The wall of m-1 has failed: its machine reaches nothing."]
    sock = await Walled(wire, internet).connect(GOOD, 80)
    await loop.sock_sendall(sock, b"\0")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await loop.sock_recv(sock, 1)
    sock.close()
    await walls.close_all()
    resolver.close()
    drop_waiting(wire)
