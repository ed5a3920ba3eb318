import asyncio
import os
import socket
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from torpor.guest import wire
from torpor.guest.wire import Decoder, Frame, Kind
from torpor.vm.channel import Channel
from torpor.vm.errors import ChannelLostError, GuestError, VmError
from torpor.vm.execs import Command, Exec, Exit
from torpor.vm.flows import STDERR, STDOUT, WINDOW, Gap, Output

LIMIT = 20.0


class Guest:
    """The agent's end of a channel, played by the test: it follows one command on one stream."""

    def __init__(self) -> None:
        self.ours, self._theirs = socket.socketpair()
        self.ours.setblocking(False)
        self._theirs.setblocking(False)
        self._decoder = Decoder()
        self._heard: list[Frame] = []
        self.stream = 0
        self.wanted: dict[str, Any] = {}

    async def hears(self, kind: Kind) -> Frame:
        """The next frame of this kind; others before it are dropped."""
        async with asyncio.timeout(LIMIT):
            while True:
                while self._heard:
                    frame = self._heard.pop(0)
                    if frame.kind == kind:
                        return frame
                data = await asyncio.get_running_loop().sock_recv(self._theirs, 1 << 20)
                assert data, "the host has closed the channel"
                self._heard += self._decoder.feed(data)

    async def says(self, *frames: bytes) -> None:
        async with asyncio.timeout(LIMIT):
            await asyncio.get_running_loop().sock_sendall(self._theirs, b"".join(frames))

    async def welcomes(self) -> None:
        hello, _ = wire.parse_document((await self.hears(Kind.HELLO)).payload)
        said = {"version": 1, "boot_id": "b", "agent_id": "a", "mono_ns": 5}
        said["epoch"] = hello["epoch"]
        await self.says(wire.encode(Kind.WELCOME, 0, wire.document(said)))

    async def follows(self, **more: Any) -> None:
        """Answer a request to start or to attach."""
        request = await self.hears(Kind.REQUEST)
        self.wanted, _ = wire.parse_document(request.payload)
        self.stream = self.wanted["stream"]
        said = {"id": self.wanted["id"], "pid": 17, "end": 0, "stdin_seq": 0} | more
        await self.says(wire.encode(Kind.REPLY, request.stream, wire.document(said)))

    async def chunk(self, seq: int, data: bytes, source: int = STDOUT) -> None:
        await self.says(wire.encode(Kind.CHUNK, self.stream, wire.chunk(seq, source, data)))

    async def gap(self, start: object, end: object) -> None:
        gap = wire.document({"from": start, "to": end})
        await self.says(wire.encode(Kind.GAP, self.stream, gap))

    async def end(self, count: object, code: object = 0, signal: object = None) -> None:
        end = wire.document({"exit": code, "signal": signal, "bytes": count})
        await self.says(wire.encode(Kind.END, self.stream, end))

    async def ack(self, seq: int) -> None:
        await self.says(wire.encode(Kind.ACK, self.stream, wire.ack(seq)))

    def close(self) -> None:
        self._theirs.close()


async def both(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """Do several things at once, and none of them for ever."""
    async with asyncio.timeout(LIMIT):
        return await asyncio.gather(*work)


async def attached(guest: Guest) -> Channel:
    channel = Channel(guest.ours)
    await both(channel.attach(LIMIT), guest.welcomes())
    return channel


@pytest.fixture
async def guest() -> AsyncIterator[Guest]:
    guest = Guest()
    yield guest
    guest.close()


@pytest.fixture
async def channel(guest: Guest) -> AsyncIterator[Channel]:
    channel = await attached(guest)
    yield channel
    await channel.close()


@pytest.fixture
async def running(guest: Guest, channel: Channel) -> Exec:
    """A command that the scripted guest has started."""
    command = Command(["/bin/cat", "x"], {"A": "b"}, "/", "7", stdin=True, keep=9)
    started, _ = await both(Exec.start(channel, command), guest.follows())
    assert isinstance(started, Exec)
    return started


async def everything(running: Exec) -> list[Output | Gap]:
    return [item async for item in running.output()]


async def follow(running: Exec, seen: list[Output | Gap]) -> None:
    """Note what comes, also what comes before an error."""
    async for item in running.output():
        seen.append(item)  # noqa: PERF401


async def outcome(work: Coroutine[Any, Any, Any]) -> Any:
    """What some work returns, or the error of ours with which it ends. Never for ever."""
    try:
        async with asyncio.timeout(LIMIT):
            return await work
    except VmError as error:
        return error


# Output


async def test_a_command_is_asked_for_as_it_was_given(guest: Guest, running: Exec) -> None:
    assert running.pid == 17
    wanted = guest.wanted
    assert wanted["op"] == "exec.start"
    assert wanted["argv"] == ["/bin/cat", "x"]
    assert (wanted["env"], wanted["cwd"], wanted["user"]) == ({"A": "b"}, "/", "7")
    assert (wanted["stdin"], wanted["keep"], wanted["hold"]) == (True, 9, True)
    assert (wanted["seq"], wanted["window"]) == (0, WINDOW)


async def test_output_comes_in_order_with_its_sources(guest: Guest, running: Exec) -> None:
    await guest.chunk(0, b"out")
    await guest.chunk(3, b"err", STDERR)
    await guest.gap(6, 10)
    await guest.chunk(10, b"end")
    await guest.end(13, 3)
    assert (await both(everything(running)))[0] == [
        Output(0, STDOUT, b"out"),
        Output(3, STDERR, b"err"),
        Gap(6, 10),
        Output(10, STDOUT, b"end"),
    ]
    assert running.exit == Exit(3, None)
    assert not running.exit.ok
    assert running.received == 13


async def test_all_of_the_output_can_be_collected(guest: Guest, running: Exec) -> None:
    await guest.chunk(0, b"out")
    await guest.chunk(3, b"err", STDERR)
    await guest.chunk(6, b"put")
    await guest.end(9, None, 9)
    assert (await both(running.collect()))[0] == (b"output", b"err")
    assert running.exit == Exit(None, 9)
    # The end stands: a second look returns at once.
    assert (await both(running.wait()))[0] == Exit(None, 9)


async def test_the_guest_may_send_a_window_ahead_and_no_more(guest: Guest, running: Exec) -> None:
    for start in range(0, WINDOW, 1 << 16):
        await guest.chunk(start, bytes(1 << 16))
    await guest.chunk(WINDOW, b"x")
    await asyncio.sleep(0.2)  # nobody reads, so nothing is acknowledged
    seen: list[Output | Gap] = []
    error = await outcome(follow(running, seen))
    assert isinstance(error, ChannelLostError)
    assert "window" in str(error)
    assert sum(len(item.data) for item in seen if isinstance(item, Output)) == WINDOW


async def test_what_was_read_is_acknowledged_so_that_output_never_stops(
    guest: Guest, running: Exec
) -> None:
    total = 5 * WINDOW

    async def send() -> None:
        sent = acked = 0
        while sent < total:
            while sent - acked >= WINDOW:
                acked = wire.parse_ack((await guest.hears(Kind.ACK)).payload)
                assert acked <= sent
            await guest.chunk(sent, bytes(1 << 14))
            sent += 1 << 14
        await guest.end(total)

    (out, _), _ = await both(running.collect(), send())
    assert len(out) == total


def gap_document(start: object, end: object) -> bytes:
    return wire.document({"from": start, "to": end})


def end_document(**more: object) -> bytes:
    return wire.document({"exit": 0, "signal": None, "bytes": 3} | more)


BROKEN = {
    "a repeated byte": (Kind.CHUNK, wire.chunk(2, STDOUT, b"x")),
    "a byte left out": (Kind.CHUNK, wire.chunk(4, STDOUT, b"x")),
    "an unknown source": (Kind.CHUNK, wire.chunk(3, 7, b"x")),
    "an empty chunk": (Kind.CHUNK, wire.chunk(3, STDOUT, b"")),
    "half a chunk": (Kind.CHUNK, b"abc"),
    "too much at once": (Kind.CHUNK, wire.chunk(3, STDOUT, bytes(WINDOW))),
    "a gap elsewhere": (Kind.GAP, gap_document(4, 9)),
    "an empty gap": (Kind.GAP, gap_document(3, 3)),
    "a gap backwards": (Kind.GAP, gap_document(3, 1)),
    "a gap of words": (Kind.GAP, gap_document("here", "there")),
    "a gap of nothing": (Kind.GAP, wire.document({})),
    "a gap of lists": (Kind.GAP, gap_document([], {})),
    "no document": (Kind.GAP, b"\xff" * 30),
    "an endless number": (Kind.GAP, b"\x1b\0\0\0" + b'{"from":3,"to":' + b"1e999}     "),
    "an end too early": (Kind.END, end_document(bytes=4)),
    "an end too late": (Kind.END, end_document(bytes=2)),
    "an end of words": (Kind.END, end_document(bytes="3", exit="x")),
    "an exit of words": (Kind.END, end_document(exit="well")),
    "an exit of many digits": (Kind.END, end_document(exit=10**300)),
    "an exit below zero": (Kind.END, end_document(exit=-1)),
    "an exit that is true": (Kind.END, end_document(exit=True)),
    "a signal of many digits": (Kind.END, end_document(exit=None, signal=1 << 63)),
    "a signal of lists": (Kind.END, end_document(signal=[9])),
    "an end without bytes": (Kind.END, wire.document({"exit": 0, "signal": None})),
    "an end without exit": (Kind.END, wire.document({"bytes": 3})),
    "input that was not sent": (Kind.ACK, wire.ack(1)),
    "half an acknowledgement": (Kind.ACK, b"1234"),
}


@pytest.mark.parametrize("broken", BROKEN)
async def test_a_broken_stream_ends_with_an_error_and_alone(
    guest: Guest, channel: Channel, running: Exec, broken: str
) -> None:
    kind, payload = BROKEN[broken]
    await guest.chunk(0, b"abc")
    await guest.says(wire.encode(kind, guest.stream, payload))
    # Whatever still comes for it is nobody's.
    await guest.chunk(3, b"def")
    await guest.end(6)
    seen: list[Output | Gap] = []
    error = await outcome(follow(running, seen))
    assert isinstance(error, ChannelLostError)
    assert "broke the stream" in str(error)
    assert seen == [Output(0, STDOUT, b"abc")]
    assert running.exit is None
    assert channel._streams == {}
    # Others on the channel are not concerned.
    other, _ = await both(Exec.start(channel, Command(["/bin/true"])), guest.follows())
    await guest.end(0)
    assert (await both(other.wait()))[0] == Exit(0, None)


async def test_unknown_kinds_on_a_stream_are_dropped(guest: Guest, running: Exec) -> None:
    for kind in (0, 1, 3, 10, 200):
        await guest.says(wire.encode(kind, guest.stream, b"what"))
    await guest.end(0)
    assert (await both(running.wait()))[0] == Exit(0, None)


@pytest.mark.parametrize("flood", ["empty chunks", "gaps", "gaps and chunks", "small chunks"])
async def test_a_guest_that_floods_a_stream_takes_bounded_memory(
    guest: Guest, running: Exec, flood: str
) -> None:
    """Nobody reads the output meanwhile."""
    big = bytes(wire.MAX_CHUNK)
    seq = 0
    for _ in range(40):
        if flood == "empty chunks":
            await guest.says(*[wire.encode(5, guest.stream, wire.chunk(seq, 1, b""))] * 1000)
        elif flood == "gaps":
            gaps = [
                wire.encode(Kind.GAP, guest.stream, gap_document(at, at + 1))
                for at in range(seq, seq + 1000)
            ]
            await guest.says(*gaps)
            seq += 1000
        elif flood == "gaps and chunks":
            await guest.gap(seq, seq + 1)
            await guest.chunk(seq + 1, big)
            seq += 1 + len(big)
        else:
            for _ in range(1000):
                await guest.chunk(seq, b"x")
                seq += 1
        await asyncio.sleep(0)
    await asyncio.sleep(0.2)
    held = list(running._arrived)
    assert sum(len(item.data) for item in held if isinstance(item, Output)) <= WINDOW
    assert sum(isinstance(item, Gap) for item in held) <= 3
    assert len(held) <= WINDOW


@pytest.mark.parametrize("reader", ["at the end", "all along"])
async def test_gaps_leave_the_window_as_it_was(guest: Guest, running: Exec, reader: str) -> None:
    """A guest that counts as the agent does is never refused and never stuck."""
    total = 0
    seen: list[Output | Gap] = []

    async def read() -> None:
        if reader == "at the end":
            await asyncio.sleep(0.3)
        await follow(running, seen)

    async def send() -> None:
        nonlocal total
        seq = acked = 0
        for step in range(60):
            if step % 7 == 3:
                await guest.gap(seq, seq + 100_000)
                seq, acked = seq + 100_000, acked + 100_000
            size = 24 << 10
            while acked + WINDOW - seq < size:
                acked = max(acked, wire.parse_ack((await guest.hears(Kind.ACK)).payload))
            await guest.chunk(seq, bytes(size))
            seq += size
        total = seq
        await guest.end(seq)

    await both(read(), send())
    sizes = (len(i.data) if isinstance(i, Output) else i.end - i.start for i in seen)
    assert sum(sizes) == total


# The end of a channel, and the next one


async def test_output_ends_with_the_channel_after_what_had_come(
    guest: Guest, running: Exec
) -> None:
    await guest.chunk(0, b"abc")
    await asyncio.sleep(0.05)
    guest.close()
    seen: list[Output | Gap] = []
    assert isinstance(await outcome(follow(running, seen)), ChannelLostError)
    assert seen == [Output(0, STDOUT, b"abc")]


async def test_a_silent_guest_keeps_nobody_after_the_channel_is_closed(
    channel: Channel, running: Exec
) -> None:
    waiting = [
        asyncio.create_task(outcome(running.wait())),
        asyncio.create_task(outcome(running.write(bytes(2 * WINDOW)))),
    ]
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in waiting)
    await channel.close()
    for task in waiting:
        assert isinstance(await task, ChannelLostError)


async def test_it_goes_on_where_it_was_on_another_channel(guest: Guest, running: Exec) -> None:
    await guest.chunk(0, b"abc")
    await guest.chunk(3, b"not read any more")
    output = running.output()
    async with asyncio.timeout(LIMIT):
        assert await anext(output) == Output(0, STDOUT, b"abc")
    await output.aclose()
    assert running.received == 3
    guest.close()
    again = Guest()
    channel = await attached(again)
    await both(running.attach(channel), again.follows(end=20))
    assert (again.wanted["op"], again.wanted["seq"]) == ("stream.attach", 3)
    await again.chunk(3, b"defg")
    await again.end(7)
    assert (await both(running.collect()))[0] == (b"defg", b"")
    await channel.close()
    again.close()


@pytest.mark.parametrize(
    "said",
    [
        {"pid": None},
        {"pid": "x"},
        {"stdin_seq": None},
        {"stdin_seq": "0"},
        {"stdin_seq": -1},
        {"stdin_seq": True},
        {"end": []},
        {"end": 1.5},
    ],
)
async def test_an_answer_of_the_wrong_form_is_an_error(
    guest: Guest, channel: Channel, said: dict[str, Any]
) -> None:
    start = outcome(Exec.start(channel, Command(["/bin/true"])))
    error, _ = await both(start, guest.follows(**said))
    assert isinstance(error, VmError)
    assert channel._streams == {}


async def test_a_refused_command_leaves_nothing(guest: Guest, channel: Channel) -> None:
    refusal = {"error": {"code": "ENOENT", "message": "no such program"}}
    start = outcome(Exec.start(channel, Command(["/none"])))
    error, _ = await both(start, guest.follows(**refusal))
    assert isinstance(error, GuestError)
    assert error.code == "ENOENT"
    assert channel._streams == {}


@pytest.mark.parametrize("earlier", [{"end": 2}, {"stdin_seq": 1, "end": 3}])
async def test_a_machine_that_is_not_so_far_yet_is_refused(
    guest: Guest, running: Exec, earlier: dict[str, int]
) -> None:
    """As when it was thawed from a snapshot that is older than what was read."""
    await both(running.write(b"input"))
    await guest.ack(2)
    await guest.chunk(0, b"abc")
    output = running.output()
    async with asyncio.timeout(LIMIT):
        await anext(output)
    await output.aclose()
    guest.close()
    other = Guest()
    channel = await attached(other)
    more = {"stdin_seq": 2} | earlier
    error, _ = await both(outcome(running.attach(channel)), other.follows(**more))
    assert isinstance(error, GuestError)
    assert error.code == "ESTALE"
    await channel.close()
    other.close()


# Input


async def taken(guest: Guest, count: int) -> bytes:
    """The next ``count`` bytes of input that arrive at the guest, which must be in order."""
    data = b""
    start: int | None = None
    while len(data) < count:
        seq, _, piece = wire.parse_chunk((await guest.hears(Kind.CHUNK)).payload)
        start = seq if start is None else start
        assert seq == start + len(data)
        data += piece
    return data


async def test_input_waits_for_room(guest: Guest, running: Exec) -> None:
    data = os.urandom(3 * WINDOW)
    writing = asyncio.create_task(running.write(data))
    seen = await taken(guest, WINDOW)
    await asyncio.sleep(0.05)
    assert not writing.done()
    while len(seen) < len(data):
        await guest.ack(len(seen))
        seen += await taken(guest, min(WINDOW, len(data) - len(seen)) // 2 or 1)
    await both(_result(writing))
    assert seen == data
    await running.close_stdin()
    end, _ = wire.parse_document((await guest.hears(Kind.END)).payload)
    assert end == {"bytes": len(data)}


async def _result(task: "asyncio.Task[Any]") -> Any:
    return await task


@pytest.mark.parametrize("acked", [0, 2, 6, 9])
@pytest.mark.parametrize("told", [True, False])
async def test_input_that_was_under_way_is_sent_again_from_where_the_guest_is(
    guest: Guest, running: Exec, acked: int, told: bool
) -> None:
    for piece in (b"abc", b"def", b"ghi"):
        await both(running.write(piece))
    await running.close_stdin()
    assert await taken(guest, 9) == b"abcdefghi"
    if told:
        await guest.ack(acked)
        await asyncio.sleep(0.05)
    guest.close()
    again = Guest()
    channel = await attached(again)
    await both(running.attach(channel), again.follows(stdin_seq=acked))
    if acked < 9:
        assert await taken(again, 9 - acked) == b"abcdefghi"[acked:]
    end, _ = wire.parse_document((await again.hears(Kind.END)).payload)
    assert end == {"bytes": 9}
    await channel.close()
    again.close()


async def test_input_to_a_command_that_ends_is_an_error_not_a_wait(
    guest: Guest, running: Exec
) -> None:
    writing = asyncio.create_task(outcome(running.write(bytes(2 * WINDOW))))
    await asyncio.sleep(0.05)
    await guest.end(0)
    error = await writing
    assert isinstance(error, GuestError)
    assert error.code == "EPIPE"
