"""A machine that is held by a full disk: what is asked of it says so, what streams waits."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from tests.vm.test_execs import Guest, both
from torpor.guest import wire
from torpor.guest.wire import Kind
from torpor.vm.agent import GuestAgent
from torpor.vm.channel import MAX_UNASKED, Channel, Welcome
from torpor.vm.errors import GuestError, HeldError, UnansweredError, disk_is_full
from torpor.vm.execs import Command, Connection, Exec
from torpor.vm.files import Files
from torpor.vm.holding import Holding

WHERE = Path("/disk")


@pytest.fixture
async def guest() -> AsyncIterator[Guest]:
    guest = Guest()
    yield guest
    guest.close()


@pytest.fixture
async def channel(guest: Guest) -> AsyncIterator[Channel]:
    channel = Channel(guest.ours, holding=Holding())
    await both(channel.attach(20), guest.welcomes())
    yield channel
    await channel.close()


def hold(channel: Channel) -> None:
    channel.holding.begin("m", WHERE)


async def under_way(guest: Guest, work: Any) -> "tuple[asyncio.Task[Any], int]":
    """Begin something, and return it with the number of its first request."""
    task = asyncio.ensure_future(work)
    return task, (await guest.hears(Kind.REQUEST)).stream


async def held(task: Awaitable[Any]) -> None:
    with pytest.raises(HeldError, match="disk is full"):
        async with asyncio.timeout(20):
            await task


ASKED: dict[str, Callable[[Channel], Awaitable[Any]]] = {
    "quiesce": lambda channel: GuestAgent(channel, Welcome(1, "b", "a", 0, 0)).quiesce(10),
    "status": lambda channel: GuestAgent(channel, Welcome(1, "b", "a", 0, 0)).status(),
    "processes": lambda channel: GuestAgent(channel, Welcome(1, "b", "a", 0, 0)).processes(),
    "commands": lambda channel: GuestAgent(channel, Welcome(1, "b", "a", 0, 0)).commands(),
    "read": lambda channel: Files(channel).read("/f"),
    "write": lambda channel: Files(channel).write("/f", bytes(1 << 20)),
    "replace": lambda channel: Files(channel).write("/f", bytes(1 << 20), atomic=True),
    "directory": lambda channel: Files(channel).make_directory("/d"),
    "link": lambda channel: Files(channel).make_link("/l", "/f"),
    "move": lambda channel: Files(channel).move("/f", "/g"),
    "remove": lambda channel: Files(channel).remove("/f"),
    "remove a tree": lambda channel: Files(channel).remove("/d", recursive=True),
    "change": lambda channel: Files(channel).change("/f", mode=0o600),
    "unpack": lambda channel: Files(channel).unpack("/d"),
    "pack": lambda channel: Files(channel).pack("/d"),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
async def test_what_is_asked_of_a_held_machine_is_refused(
    guest: Guest, channel: Channel, ask: Callable[[Channel], Awaitable[Any]]
) -> None:
    hold(channel)
    await held(ask(channel))
    channel.holding.end()
    task, _ = await under_way(guest, channel.request("op"))
    assert not task.done()
    task.cancel()


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
async def test_what_is_under_way_when_a_machine_is_held_ends_at_once(
    guest: Guest, channel: Channel, ask: Callable[[Channel], Awaitable[Any]]
) -> None:
    task, _ = await under_way(guest, ask(channel))
    hold(channel)
    await held(task)
    assert not channel._replies


async def test_what_has_no_room_on_its_way_ends_too(guest: Guest, channel: Channel) -> None:
    tasks = [asyncio.ensure_future(channel.request("op", {}, bytes(512 << 10))) for _ in range(12)]
    await asyncio.sleep(0.05)  # the guest reads nothing
    hold(channel)
    for task in tasks:
        await held(task)


async def test_a_machine_that_is_held_is_not_attached_to(guest: Guest) -> None:
    channel = Channel(guest.ours)
    task = asyncio.ensure_future(channel.attach(1000))
    await guest.hears(Kind.HELLO)
    hold(channel)
    await held(task)
    await channel.close()


async def test_nothing_is_brought_to_rest_that_is_held(guest: Guest, channel: Channel) -> None:
    asking, _ = await under_way(guest, channel.request("op", patient=True))

    async def quiet() -> None:
        async with channel.quiet(1000):
            raise AssertionError("it is not quiet")

    waiting = asyncio.ensure_future(quiet())
    await asyncio.sleep(0)
    hold(channel)
    await held(waiting)
    await held(quiet())
    asking.cancel()


async def test_a_patient_request_waits_and_its_time_does_not_count(
    guest: Guest, channel: Channel
) -> None:
    task, number = await under_way(guest, channel.request("op", patient=True, limit=0.3))
    hold(channel)
    await asyncio.sleep(0.5)
    assert not task.done()
    channel.holding.end()
    await guest.says(wire.encode(Kind.REPLY, number, wire.document({"ok": 1})))
    assert (await task)[0] == {"ok": 1}


async def test_the_time_of_a_patient_request_goes_on_when_the_machine_does(
    guest: Guest, channel: Channel
) -> None:
    hold(channel)
    task, _ = await under_way(guest, channel.request("op", patient=True, limit=0.1))
    channel.holding.end()
    with pytest.raises(UnansweredError):
        await task


async def test_answers_that_come_after_all_are_no_flood(guest: Guest, channel: Channel) -> None:
    piece = bytes(512 << 10)
    count = MAX_UNASKED // len(piece) + 4
    tasks = [asyncio.ensure_future(channel.request("file.read")) for _ in range(count)]
    numbers = [(await guest.hears(Kind.REQUEST)).stream for _ in tasks]
    hold(channel)
    for task in tasks:
        await held(task)
    channel.holding.end()
    asking = asyncio.ensure_future(channel.request("op"))
    last = (await guest.hears(Kind.REQUEST)).stream
    for number in numbers:
        await guest.says(wire.encode(Kind.REPLY, number, wire.document({}, piece)))
    await guest.says(wire.encode(Kind.REPLY, last, wire.document({"ok": 1})))
    assert (await asking)[0] == {"ok": 1}


# Commands and connections


async def test_no_command_and_no_connection_is_begun_in_a_held_machine(channel: Channel) -> None:
    hold(channel)
    await held(Exec.start(channel, Command(["/bin/true"])))
    await held(Connection.open_to(channel, 80))
    assert channel._writer is not None
    assert not channel._streams


async def test_a_command_that_is_being_started_or_runs_is_waited_for(
    guest: Guest, channel: Channel
) -> None:
    starting = asyncio.ensure_future(Exec.start(channel, Command(["/bin/cat"], stdin=True)))
    request = await guest.hears(Kind.REQUEST)
    hold(channel)
    await asyncio.sleep(0.05)
    assert not starting.done()
    channel.holding.end()
    wanted, _ = wire.parse_document(request.payload)
    said = {"id": wanted["id"], "pid": 17, "end": 0, "stdin_seq": 0}
    await guest.says(wire.encode(Kind.REPLY, request.stream, wire.document(said)))
    running = await starting
    hold(channel)
    reading = asyncio.ensure_future(running.next_output())
    await running.write(b"in")
    taken = asyncio.ensure_future(running.all_taken())
    await asyncio.sleep(0.05)
    assert not reading.done()
    assert not taken.done()
    channel.holding.end()
    await guest.says(
        wire.encode(Kind.ACK, wanted["stream"], wire.ack(2)),
        wire.encode(Kind.CHUNK, wanted["stream"], wire.chunk(0, 1, b"out")),
    )
    await taken
    item = await reading
    assert item is not None
    assert item[2] == b"out"


async def test_an_archive_on_its_way_in_ends_and_is_ended_in_the_machine(
    guest: Guest, channel: Channel
) -> None:
    unpacking, _ = await both(Files(channel).unpack("/d"), guest.follows())
    await unpacking.write(b"some")
    finishing = asyncio.ensure_future(unpacking.finish())
    await asyncio.sleep(0)
    hold(channel)
    await held(finishing)
    await held(unpacking.write(bytes(1 << 20)))
    unpacking.close()
    wanted = {}
    while wanted.get("op") != "exec.signal":
        wanted, _ = wire.parse_document((await guest.hears(Kind.REQUEST)).payload)
    assert wanted["id"] == guest.wanted["id"]
    assert wanted["signal"] == SIGKILL


async def test_work_that_was_just_being_started_is_ended_in_the_machine(
    guest: Guest, channel: Channel
) -> None:
    starting = asyncio.ensure_future(Files(channel).unpack("/d"))
    asked, _ = wire.parse_document((await guest.hears(Kind.REQUEST)).payload)
    hold(channel)
    await held(starting)
    wanted = {}
    while wanted.get("op") != "exec.signal":
        wanted, _ = wire.parse_document((await guest.hears(Kind.REQUEST)).payload)
    assert (wanted["id"], wanted["signal"]) == (asked["id"], SIGKILL)


async def test_a_watch_waits(guest: Guest, channel: Channel) -> None:
    watch, _ = await both(Files(channel).watch("/d"), guest.follows())
    reading = asyncio.ensure_future(anext(aiter(watch.events())))
    await asyncio.sleep(0)
    hold(channel)
    await asyncio.sleep(0.05)
    assert not reading.done()
    channel.holding.end()
    line = b'{"event":"ready","path":""}\n'
    await guest.says(wire.encode(Kind.CHUNK, guest.stream, wire.chunk(0, 1, line)))
    assert (await reading)["event"] == "ready"


# In general


def test_no_request_is_without_a_limit() -> None:
    limit = inspect.signature(Channel.request).parameters["limit"]
    assert 0 < limit.default <= 60
    assert limit.annotation is float


async def test_a_guest_that_never_answers_is_given_up(guest: Guest, channel: Channel) -> None:
    with pytest.raises(UnansweredError, match="'op' within"):
        await channel.request("op", limit=0.05)
    assert not channel._replies


async def test_each_who_asks_gets_an_error_of_its_own() -> None:
    holding = Holding()
    holding.begin("m", WHERE)
    assert holding.error() is not holding.error()
    holding.end()
    assert holding.error() is None


async def test_what_is_awaited_ends_when_the_machine_is_held() -> None:
    holding = Holding()
    assert await holding.unless_held(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(ValueError, match="wrong"):
        await holding.unless_held(_fails())
    waiting = asyncio.ensure_future(holding.unless_held(asyncio.sleep(1000)))
    await asyncio.sleep(0)
    holding.begin("m", WHERE)
    await held(waiting)


async def _fails() -> None:
    raise ValueError("wrong")


def test_a_full_disk_is_seen_behind_other_errors() -> None:
    def behind(cause: Exception) -> Exception:
        try:
            raise ValueError from cause
        except ValueError as error:
            return error

    assert disk_is_full(OSError(28, "no space"))
    assert disk_is_full(behind(behind(HeldError("held"))))
    assert not disk_is_full(behind(OSError(5, "i/o")))
    assert not disk_is_full(GuestError("ENOSPC", "the machine's own disk"))
    assert not disk_is_full(None)
