"""The walls of this computer, with real links: what stands, for how long, and what goes through."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any

import dns.message
import dns.rdatatype
import pytest

from tests.network.link.conftest import OtherEnd
from tests.network.world import GOOD, Internet, needs_root
from tests.waiting import eventually
from torpor.network.decisions import Decision
from torpor.network.link import BuildError, Links, Probed
from torpor.network.link.link import build
from torpor.network.resolver import Resolved, Resolver
from torpor.sessions.hosts import SESSION, Wall
from torpor.sessions.local_walls import LocalWalls, Parts, names_of
from torpor.vm import FreezeError, HostError
from torpor.vm.wire import Wired

LIST = Wall({"allow": [{"host": "good.test:7"}]})
WHOSE = {SESSION: "s1"}
RESOLVER = ("198.19.255.1", 53)


def lookup(name: str) -> Resolved:
    return Resolved("found", (ip_address(GOOD),))


def machine(name: str = "m1", *, card: bool = True) -> Any:
    """What of a machine its wall uses."""
    record = SimpleNamespace(card=card, labels=WHOSE)
    return SimpleNamespace(id=name, pid=1, running=True, record=record, wired=None)


@pytest.fixture(scope="module")
def internet() -> Iterator[Internet]:
    try:
        build().close()
    except BuildError as error:
        pytest.skip(f"this host cannot build links: {error}")
    made = Internet()
    with made.from_host():
        yield made
    made.close()


class World:
    """The walls, and what was told of them."""

    def __init__(self) -> None:
        self.links = Links(0)
        self.walls = LocalWalls(self.links, parts=Parts(resolver=Resolver(lookup)))
        self.decisions: list[tuple[str, Decision]] = []
        self.walls.on_decision(lambda *told: self.decisions.append(told))
        self.ends: list[OtherEnd] = []

    async def start(
        self, wall: Wall = LIST, snapshot: str = "p", event: str = "create", name: str = "m1"
    ) -> Any:
        """Start a machine; return it and its wire."""
        async with self.walls.opened(WHOSE, wall, snapshot, event) as opened:
            opened.machine = machine(name)
        return opened

    def plug(self, opened: Any) -> OtherEnd:
        """Put a kernel at the machine's end of a wire."""
        end = OtherEnd(opened.link.wire)
        self.ends.append(end)
        return end

    def standing(self) -> int:
        return len(self.walls._standing)


@pytest.fixture
async def world(internet: Internet) -> AsyncIterator[World]:
    made = World()
    yield made
    for end in made.ends:
        end.close()
    await made.walls.close_all()
    await made.links.close()


@pytest.fixture
async def echo(internet: Internet) -> AsyncIterator[None]:
    """What is said to good.test:7 comes back."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(1 << 16):
                writer.write(piece)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, sock=internet.far.listening(GOOD, 7))
    yield
    server.close()


def looked_up(end: OtherEnd, name: str) -> str | None:
    """Return the address that a machine gets for a name."""
    with end.new_socket(socket.SOCK_DGRAM) as asking:
        asking.sendto(dns.message.make_query(name, "A").to_wire(), RESOLVER)
        answer = dns.message.from_wire(asking.recv(4096)).answer
    return str(answer[0][0]) if answer else None


def connected(end: OtherEnd, name: str = "good.test") -> socket.socket:
    """Return a connection from a machine to port 7 of a name."""
    address = looked_up(end, name)
    assert address is not None
    return end.dial((address, 7))


def said(connection: socket.socket, words: bytes) -> bytes:
    """Return what comes back."""
    connection.sendall(words)
    return connection.recv(4096)


@needs_root
async def test_a_machine_reaches_what_its_policy_says_and_all_of_it_is_told(
    world: World, echo: None
) -> None:
    end = world.plug(await world.start())
    connection = await asyncio.to_thread(connected, end)
    assert await asyncio.to_thread(said, connection, b"\0hello") == b"\0hello"
    assert await asyncio.to_thread(looked_up, end, "evil.test") is None
    connection.close()
    await eventually(
        lambda: asyncio.sleep(0, [each for _, each in world.decisions if each.allowed]),
        lambda found: any(each.ended for each in found),
    )
    assert {session for session, _ in world.decisions} == {"s1"}
    denied = [each for _, each in world.decisions if not each.allowed]
    assert denied[0].name == "evil.test"
    (counted,) = world.walls.traffic()
    assert (counted.session, counted.host, counted.machine) == ("s1", "good.test", "m1")
    assert (counted.connections, counted.sent_bytes, counted.received_bytes) == (1, 6, 6)
    names = world.walls.names("m1")
    assert list(json.loads(names or "")) == ["good.test"]
    assert names_of(Wall(names=names)).plain() == json.loads(names or "")


@needs_root
async def test_another_policy_cuts_what_it_does_not_allow(world: World, echo: None) -> None:
    end = world.plug(await world.start())
    connection = await asyncio.to_thread(connected, end)
    assert await asyncio.to_thread(said, connection, b"\0") == b"\0"
    assert await world.walls.set(machine(), Wall({"allow": [{"host": "other.test:7"}]})) == 1
    with pytest.raises(OSError, match=r"reset|refused"):
        assert await asyncio.to_thread(said, connection, b"\0") == b"\0"
    assert await asyncio.to_thread(looked_up, end, "good.test") is None


@needs_root
async def test_a_connection_goes_on_after_a_pause_on_the_same_wire(
    world: World, echo: None
) -> None:
    opened = await world.start()
    connection = await asyncio.to_thread(connected, world.plug(opened))
    assert await asyncio.to_thread(said, connection, b"\0before") == b"\0before"
    async with world.walls.frozen(machine(), "snap", stop=True) as names:
        world.walls.ended("m1")  # its process ends, and that is told
    assert "good.test" in (names() or "")
    assert world.walls.names("m1") is None
    again = await world.start(snapshot="snap", event="resume", name="m2")
    assert again.link is opened.link
    assert await asyncio.to_thread(said, connection, b"\0after") == b"\0after"
    (counted,) = world.walls.traffic()
    assert (counted.machine, counted.connections, counted.sent_bytes) == ("m2", 1, 13)


@needs_root
@pytest.mark.parametrize("start", [("older", "resume"), ("snap", "rollback"), ("snap", "fork")])
async def test_nothing_goes_on_where_another_machine_comes(
    world: World, start: tuple[str, str]
) -> None:
    opened = await world.start()
    async with world.walls.frozen(machine(), "snap", stop=True):
        pass
    again = await world.start(snapshot=start[0], event=start[1], name="m2")
    assert again.link is not opened.link
    await eventually(lambda: asyncio.sleep(0, world.standing()), lambda count: count == 1)


@needs_root
async def test_a_session_that_sleeps_costs_nothing_once_its_connections_are_given_up(
    world: World,
) -> None:
    for wall, snapshot in ((Wall({**LIST.egress, "hold": 0}), "a"), (LIST, "b")):  # type: ignore[dict-item]
        await world.start(wall)
        async with world.walls.frozen(machine(), snapshot, stop=True):
            pass
        if snapshot == "b":
            assert world.standing() == 1
            world.walls.forget("b")  # it was destroyed meanwhile
        await eventually(lambda: asyncio.sleep(0, world.standing()), lambda count: not count)


@needs_root
async def test_a_machine_that_could_not_be_frozen_goes_on_to_be_served(
    world: World, echo: None
) -> None:
    end = world.plug(await world.start())
    connection = await asyncio.to_thread(connected, end)
    for stop in (True, False):
        with pytest.raises(FreezeError):
            async with world.walls.frozen(machine(), "snap", stop=stop):
                raise FreezeError("Its disk cannot be written.")
        assert await asyncio.to_thread(said, connection, b"\0") == b"\0"


@needs_root
async def test_a_wall_ends_with_its_machine_and_what_it_counted_is_told_once_more(
    world: World, echo: None
) -> None:
    connection = await asyncio.to_thread(connected, world.plug(await world.start()))
    assert await asyncio.to_thread(said, connection, b"\0") == b"\0"
    world.walls.ended("m1")
    await eventually(lambda: asyncio.sleep(0, world.standing()), lambda count: not count)
    assert [each.sent_bytes for each in world.walls.traffic()] == [1]
    assert world.walls.traffic() == []


@needs_root
async def test_a_machine_that_an_earlier_program_has_left_gets_its_wall_where_it_is(
    world: World, echo: None
) -> None:
    left = machine()
    link = await world.links.take()  # as it was built when the machine was found
    left.wired = Wired(link, world.links)
    end = OtherEnd(link.wire)
    world.ends.append(end)
    assert await world.walls.set(left, LIST) == 0
    connection = await asyncio.to_thread(connected, end)
    assert await asyncio.to_thread(said, connection, b"\0") == b"\0"
    assert left.wired.link is link  # on which it is started again, should it be rebooted
    left.wired.let_go()
    assert await asyncio.to_thread(said, connection, b"\0") == b"\0"  # it is the wall's now
    assert await world.walls.set(left, Wall("none")) == 1
    assert {session for session, _ in world.decisions} == {"s1"}


@needs_root
async def test_no_wall_is_left_of_a_machine_that_did_not_start_or_has_no_card(
    world: World,
) -> None:
    with pytest.raises(HostError, match="No memory"):
        async with world.walls.opened(WHOSE, LIST, "p", "create"):
            raise HostError("No memory.")
    assert world.standing() == 0
    async with world.walls.opened(WHOSE, LIST, "p", "create") as opened:
        opened.machine = machine(card=False)
    assert world.standing() == 0
    assert "no network" in (world.walls.why_none(machine(card=False)) or "")
    assert world.walls.why_none(machine()) is None


async def test_where_no_link_can_be_built_only_what_is_open_is_started() -> None:
    walls = LocalWalls(None, Probed("AppArmor takes the rights", "Allow user namespaces."))
    assert walls.missing == "AppArmor takes the rights"
    for egress in ("none", LIST.egress):
        with pytest.raises(HostError, match="AppArmor takes the rights") as refused:
            async with walls.opened(WHOSE, Wall(egress), "p", "create"):
                pytest.fail("it was started")
        assert refused.value.todo == "Allow user namespaces."
        with pytest.raises(HostError):
            await walls.set(machine(), Wall(egress))
    for egress in (None, {"deny": ["x.test"]}):
        async with walls.opened(WHOSE, Wall(egress), "p", "create") as opened:
            opened.machine = machine(card=False)
        assert opened.link is None
        assert "AppArmor" in (walls.check(egress) or "")
    assert walls.why_none(machine(card=False)) == "AppArmor takes the rights"
    async with walls.frozen(machine(), "snap", stop=True) as names:
        assert names() is None
    await walls.close_all()


def test_names_that_cannot_be_read_are_looked_up_anew() -> None:
    for broken in ("{", "[]", '{"a.test": "8.8.8.8"}'):
        assert len(names_of(Wall(names=broken))) == 0
