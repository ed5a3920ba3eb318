import asyncio
import contextlib
import json
import secrets
import socket
import struct
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from torpor.guest import wire
from torpor.guest.wire import Decoder, Frame, Kind
from torpor.vm import channel as channel_module
from torpor.vm.agent import GuestAgent
from torpor.vm.channel import Channel, Welcome, plain
from torpor.vm.errors import ChannelLostError, GuestError, MachineDiedError, VmError

LIMIT = 10.0


class Guest:
    """The other end of a channel, which says what the test wants."""

    def __init__(self) -> None:
        self.ours, self._theirs = socket.socketpair()
        self.ours.setblocking(False)
        self._theirs.setblocking(False)
        self._decoder = Decoder()
        self._heard: list[Frame] = []

    async def hears(self, kind: Kind) -> Frame:
        """The next frame of this kind; others before it are dropped."""
        while True:
            while self._heard:
                frame = self._heard.pop(0)
                if frame.kind == kind:
                    return frame
            data = await asyncio.get_running_loop().sock_recv(self._theirs, 1 << 20)
            assert data, "the host has closed the channel"
            self._heard += self._decoder.feed(data)

    async def says(self, *frames: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._theirs, b"".join(frames))

    async def welcome(self, **more: Any) -> None:
        hello, _ = wire.parse_document((await self.hears(Kind.HELLO)).payload)
        await self.says(welcome(hello["epoch"], **more))

    async def answers(self, document: dict[str, Any] | bytes, blob: bytes = b"") -> dict[str, Any]:
        """Answer the next request, and return what it wanted."""
        request = await self.hears(Kind.REQUEST)
        payload = document if isinstance(document, bytes) else wire.document(document, blob)
        await self.says(wire.encode(Kind.REPLY, request.stream, payload))
        return wire.parse_document(request.payload)[0]

    def close(self) -> None:
        self._theirs.close()


def welcome(epoch: str, **more: Any) -> bytes:
    said = {"version": 1, "epoch": epoch, "boot_id": "b", "agent_id": "a", "mono_ns": 5}
    return wire.encode(Kind.WELCOME, 0, wire.document(said | more))


def reply(number: int, document: dict[str, Any]) -> bytes:
    return wire.encode(Kind.REPLY, number, wire.document(document))


async def both(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """Do several things at once, and none of them for ever."""
    async with asyncio.timeout(LIMIT):
        return await asyncio.gather(*work)


@pytest.fixture
async def guest() -> AsyncIterator[Guest]:
    guest = Guest()
    yield guest
    guest.close()
    guest.ours.close()


@pytest.fixture
async def channel(guest: Guest) -> AsyncIterator[Channel]:
    """A channel whose guest has said welcome."""
    channel = Channel(guest.ours)
    await both(channel.attach(LIMIT), guest.welcome())
    yield channel
    await channel.close()


# Attaching


async def test_hello_is_said_until_the_agent_answers(guest: Guest) -> None:
    channel = Channel(guest.ours)

    async def answer_the_fifth() -> str:
        epochs = set()
        for _ in range(5):
            hello, _blob = wire.parse_document((await guest.hears(Kind.HELLO)).payload)
            epochs.add(hello["epoch"])
        (epoch,) = epochs
        await guest.says(welcome(epoch), welcome(epoch, boot_id="another"))
        return str(epoch)

    said, _ = await both(channel.attach(LIMIT), answer_the_fifth())
    assert isinstance(said, Welcome)
    assert (said.version, said.boot_id, said.agent_id, said.mono_ns) == (1, "b", "a", 5)
    await channel.close()


async def test_each_attachment_has_an_epoch_of_its_own() -> None:
    epochs = []
    for _ in range(2):
        guest = Guest()
        channel = Channel(guest.ours)
        with contextlib.suppress(ChannelLostError):
            await channel.attach(0)
        hello, _ = wire.parse_document((await guest.hears(Kind.HELLO)).payload)
        epochs.append(hello["epoch"])
        await channel.close()
        guest.close()
    assert epochs[0] != epochs[1]


async def test_what_comes_before_the_welcome_is_of_an_earlier_epoch(guest: Guest) -> None:
    channel = Channel(guest.ours)
    seen: list[Frame] = []
    stream = channel.open_stream(seen.append, lambda _: None)
    late = wire.encode(Kind.CHUNK, stream, wire.chunk(0, 1, b"late"))
    await guest.says(late[3:], late, reply(1, {}), welcome("another epoch"), late)
    await both(channel.attach(LIMIT), guest.welcome())
    await guest.says(wire.encode(Kind.CHUNK, stream, wire.chunk(0, 1, b"new")))
    await both(channel.request("ping"), guest.answers({}))
    assert [frame.payload for frame in seen] == [wire.chunk(0, 1, b"new")]
    await channel.close()


async def test_a_guest_that_says_nothing_is_an_error(guest: Guest) -> None:
    channel = Channel(guest.ours)
    with pytest.raises(ChannelLostError, match=r"did not answer within 0\.1 s"):
        await both(channel.attach(0.1))
    await channel.close()


async def test_a_guest_that_hangs_up_is_an_error(guest: Guest) -> None:
    channel = Channel(guest.ours)
    guest.close()
    with pytest.raises(ChannelLostError):
        await both(channel.attach(LIMIT))
    await channel.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": None},
        {"version": "x"},
        {"version": []},
        {"mono_ns": {}},
        {"mono_ns": "now"},
        {"mono_ns": "9" * 5000},
    ],
)
async def test_a_welcome_of_the_wrong_form_is_an_error(guest: Guest, wrong: dict[str, Any]) -> None:
    channel = Channel(guest.ours)
    with pytest.raises(ChannelLostError):
        await both(channel.attach(LIMIT), guest.welcome(**wrong))
    await channel.close()


async def test_the_names_in_a_welcome_are_short_and_printable(guest: Guest) -> None:
    channel = Channel(guest.ours)
    names = {"boot_id": "\ud800\x1b[2J" + "x" * 10_000, "agent_id": ["\x00"] * 1000}
    said, _ = await both(channel.attach(LIMIT), guest.welcome(**names))
    for name in (said.boot_id, said.agent_id):
        assert len(name) <= 64
        assert name.isprintable()
        name.encode()
    await channel.close()


# Requests


async def test_requests_are_answered_in_any_order(guest: Guest, channel: Channel) -> None:
    async def answer() -> None:
        requests = [await guest.hears(Kind.REQUEST) for _ in range(3)]
        for request in reversed(requests):
            wanted, blob = wire.parse_document(request.payload)
            await guest.says(
                wire.encode(Kind.REPLY, request.stream, wire.document({"n": wanted["n"]}, blob))
            )

    *answers, _ = await both(
        *(channel.request("op", {"n": n}, bytes([n])) for n in range(3)), answer()
    )
    assert answers == [({"n": n}, bytes([n])) for n in range(3)]


async def test_a_refusal_is_an_error_with_its_code(guest: Guest, channel: Channel) -> None:
    refusal = {"error": {"code": "ENOENT", "message": "no such file"}}
    with pytest.raises(GuestError, match=r"no such file \(ENOENT\)") as error:
        await both(channel.request("file.read"), guest.answers(refusal))
    assert error.value.code == "ENOENT"


@pytest.mark.parametrize(
    "error",
    [
        "a text", 7, [], True, 0, {}, {"code": None}, {"code": [1], "message": {"a": "b"}},
        {"code": "E" * 10_000, "message": "m" * 900_000},
        {"code": "\x1b[31m", "message": "\ud800 \x07 \x1b]0;title\x07"},
    ],
    ids=range(10),
)  # fmt: skip
async def test_a_refusal_of_any_form_is_an_error_that_can_be_shown(
    guest: Guest, channel: Channel, error: object
) -> None:
    with pytest.raises(GuestError) as raised:
        await both(channel.request("op"), guest.answers({"error": error}))
    shown = str(raised.value)
    shown.encode()
    assert len(shown) < 2200
    assert all(c.isprintable() or c == "\n" for c in shown)
    # The channel goes on.
    (answer, _), _ = await both(channel.request("op"), guest.answers({"ok": 1}))
    assert answer == {"ok": 1}


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff" * 50,
        struct.pack("<I", 2**32 - 1),
        struct.pack("<I", 2) + b"[]",
        struct.pack("<I", 9) + b'{"a":NaN}',
        struct.pack("<I", 600_000) + b"[" * 600_000,
        struct.pack("<I", 5006) + b'{"a":' + b"9" * 5000 + b"}",
    ],
    ids=range(7),
)
async def test_an_answer_that_is_none_ends_the_channel(
    guest: Guest, channel: Channel, payload: bytes
) -> None:
    with pytest.raises(ChannelLostError, match="failed"):
        await both(channel.request("op"), guest.answers(payload))
    with pytest.raises(ChannelLostError):
        await both(channel.request("op"))


async def test_what_was_not_asked_for_is_dropped(guest: Guest, channel: Channel) -> None:
    odd = [
        *(reply(number, {"wrong": 1}) for number in (0, 77, 2**32 - 1)),
        *(wire.encode(kind, 9, secrets.token_bytes(20)) for kind in (0, 1, 3, 5, 6, 7, 8, 10, 255)),
        welcome("another epoch"),
        secrets.token_bytes(1000) + wire.FLAG,
    ]

    async def answer() -> None:
        request = await guest.hears(Kind.REQUEST)
        right = reply(request.stream, {"right": 1})
        await guest.says(*odd, right, reply(request.stream, {"wrong": 2}), *odd)

    (answer_, _), _ = await both(channel.request("op"), answer())
    assert answer_ == {"right": 1}
    (answer_, _), _ = await both(channel.request("op"), guest.answers({"again": 1}))
    assert answer_ == {"again": 1}


async def test_a_request_ends_with_the_channel(guest: Guest, channel: Channel) -> None:
    async def hang_up() -> None:
        await guest.hears(Kind.REQUEST)
        guest.close()

    results = await both(
        *(_outcome(channel.request("op")) for _ in range(3)),
        hang_up(),
    )
    assert all(isinstance(result, ChannelLostError) for result in results[:3])


async def _outcome(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await work
    except VmError as error:
        return error


async def test_a_silent_guest_is_waited_for_no_longer_than_asked(
    guest: Guest, channel: Channel
) -> None:
    with pytest.raises(ChannelLostError, match=r"did not answer 'op' within 0\.05 s"):
        await both(channel.request("op", limit=0.05))
    # An answer that comes too late is nobody's.
    request = await guest.hears(Kind.REQUEST)
    await guest.says(reply(request.stream, {"late": 1}))
    (answer, _), _ = await both(channel.request("op"), guest.answers({"ok": 1}))
    assert answer == {"ok": 1}


@pytest.mark.parametrize("step", ["quiesce", "resume", "wake"])
async def test_no_step_of_a_freeze_or_thaw_waits_for_ever(
    channel: Channel, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr("torpor.vm.agent.ANSWER_LIMIT", 0.05)
    monkeypatch.setattr("torpor.vm.agent.WAKE_LIMIT_MS", 10)
    agent = GuestAgent(channel, Welcome(1, "b", "a", 0, 0))
    call = {
        "quiesce": lambda: agent.quiesce(10),
        "resume": agent.resume,
        "wake": lambda: agent.wake(None),
    }
    with pytest.raises(ChannelLostError, match="did not answer"):
        await both(call[step]())


@pytest.mark.parametrize(
    "answer", [{}, {"synced_ns": "x"}, {"synced_ns": None}, {"execs": 3}, {"size": 1, "mode": "x"}]
)
async def test_answers_without_their_content_are_errors(
    guest: Guest, channel: Channel, answer: dict[str, Any]
) -> None:
    agent = GuestAgent(channel, Welcome(1, "b", "a", 0, 0))
    for call in (agent.quiesce(10), agent.commands(), agent.stat("/")):
        with pytest.raises(GuestError):
            await both(call, guest.answers(answer))


async def test_a_cancelled_request_leaves_nothing(guest: Guest, channel: Channel) -> None:
    task = asyncio.create_task(channel.request("op"))
    request = await guest.hears(Kind.REQUEST)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not channel._replies
    await guest.says(reply(request.stream, {}))
    async with channel.quiet(1):
        pass


# Quiet


async def test_while_it_is_quiet_only_the_urgent_goes_out(guest: Guest, channel: Channel) -> None:
    first = asyncio.create_task(channel.request("first"))
    request = await guest.hears(Kind.REQUEST)

    async def be_quiet() -> tuple[asyncio.Task[Any], dict[str, Any]]:
        async with channel.quiet(LIMIT):
            held = asyncio.create_task(channel.request("held"))
            _, wanted = await both(channel.request("urgent", urgent=True), guest.answers({}))
            assert not held.done()
            return held, wanted

    quiet = asyncio.create_task(be_quiet())
    await asyncio.sleep(0.02)
    assert not quiet.done()  # the first is still under way
    await guest.says(reply(request.stream, {}))
    held, wanted = (await both(quiet_result(quiet)))[0]
    assert wanted["op"] == "urgent"
    assert (await both(guest.answers({})))[0]["op"] == "held"
    await both(quiet_result(held), quiet_result(first))


async def quiet_result(task: "asyncio.Task[Any]") -> Any:
    return await task


async def test_a_request_that_is_never_answered_does_not_keep_it_from_quiet(
    guest: Guest, channel: Channel
) -> None:
    task = asyncio.create_task(channel.request("op"))
    await guest.hears(Kind.REQUEST)
    with pytest.raises(TimeoutError):
        async with channel.quiet(0.05):
            pass
    assert channel._open.is_set()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


# The end


async def test_the_first_reason_stays_and_reaches_all(guest: Guest, channel: Channel) -> None:
    lost: list[VmError] = []
    channel.open_stream(lambda _: None, lost.append)
    task = asyncio.create_task(channel.request("op"))
    await guest.hears(Kind.REQUEST)
    died = MachineDiedError("it died")
    channel.lose(died)
    channel.lose(ChannelLostError("later"))
    for work in (quiet_result(task), channel.request("op")):
        with pytest.raises(MachineDiedError, match="it died"):
            await both(work)
    with pytest.raises(MachineDiedError):
        channel.send(Kind.ACK, 1, wire.ack(0))
    assert lost == [died]


async def test_a_better_reason_is_asked_for() -> None:
    guest = Guest()

    async def explain(error: VmError) -> VmError:
        return MachineDiedError(f"the machine died ({error})")

    channel = Channel(guest.ours, explain)
    await both(channel.attach(LIMIT), guest.welcome())
    guest.close()
    with pytest.raises(MachineDiedError, match="the machine died"):
        await both(channel.request("op"))
    await channel.close()


async def test_closing_is_quiet_whatever_came_before(guest: Guest, channel: Channel) -> None:
    await guest.says(secrets.token_bytes(100_000))
    await channel.close()
    await channel.close()
    with pytest.raises(ChannelLostError, match="closed by the host"):
        await channel.request("op")


async def test_a_flood_of_anything_takes_bounded_memory(guest: Guest, channel: Channel) -> None:
    block = b"x" * (1 << 20)

    async def flood() -> None:
        for _ in range(10):
            await guest.says(block)
        for _ in range(2000):
            await guest.says(
                reply(4711, {"a": "b" * 1000}), wire.encode(Kind.CHUNK, 4711, block[:1000])
            )

    task = asyncio.create_task(flood())
    while not task.done():
        await asyncio.sleep(0.01)
        assert len(channel._decoder._buffer) < 4 * wire.MAX_BODY
    await task
    (answer, _), _ = await both(channel.request("op"), guest.answers({"ok": 1}))
    assert answer == {"ok": 1}
    assert not channel._replies


def test_plain_text_is_what_can_be_printed() -> None:
    assert plain("no \u00fcber\nlines", 100) == "no \u00fcber\nlines"
    assert plain("\x1b[1m\ud800\u202e\x00", 100) == "?[1m???"
    assert plain("x" * 100, 10) == "x" * 10
    assert plain(None, 10) == "None"
    assert json.loads(json.dumps(plain("\udfff", 5))) == "?"


def test_the_pause_between_hellos_is_short() -> None:
    assert 0 < channel_module.HELLO_EVERY < channel_module.HELLO_SLOWEST <= 1


async def test_a_guest_that_is_awaited_in_silence_is_nudged(
    guest: Guest, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lone flag wakes an agent to which a wake-up was lost, and says nothing."""
    monkeypatch.setattr(channel_module, "NUDGE_AFTER", 0.02)
    await asyncio.sleep(1.1)  # the first pause was begun with the usual length
    loop = asyncio.get_running_loop()
    asking = asyncio.ensure_future(channel.request("op"))
    request = await guest.hears(Kind.REQUEST)
    assert await loop.sock_recv(guest._theirs, 1) == wire.FLAG
    assert await loop.sock_recv(guest._theirs, 1) == wire.FLAG
    await guest.says(reply(request.stream, {"right": 1}))
    assert (await asking)[0] == {"right": 1}
    await asyncio.sleep(0.2)
    with contextlib.suppress(BlockingIOError):
        guest._theirs.recv(100)
    await asyncio.sleep(0.2)
    with pytest.raises(BlockingIOError):  # nothing is awaited, so nothing is said
        guest._theirs.recv(1)
