"""A guest that lies in every frame of the channel: the host's end neither crashes, nor waits for
ever, nor grows."""

import asyncio
import gc
import json
import socket
import struct
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from torpor.guest import wire
from torpor.guest.wire import Decoder, Kind
from torpor.vm import channel as channels
from torpor.vm.agent import GuestAgent
from torpor.vm.channel import Channel
from torpor.vm.errors import ChannelLostError, GuestError, VmError
from torpor.vm.execs import Command
from torpor.vm.flows import STDOUT, WINDOW

LIMIT = 30.0
WORDS = (
    "epoch version boot_id agent_id mono_ns error code message pid stdin_seq start end running from"
    " to exit signal bytes execs size mode uid gid mtime_ns again_ns synced_ns id argv processes"
    " next hooks path target"
)
NAMES = st.sampled_from(WORDS.split())
NUMBERS = st.one_of(
    st.integers(-2, 12),
    st.sampled_from(
        [WINDOW, WINDOW + 1, 1 << 31, (1 << 32) - 1, 1 << 62, 1 << 63, 1 << 64, 10**30]
    ),
)
ODD = st.sampled_from(["\ud800", "\udcff", "\x1b[2J"])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats() | st.text(max_size=8) | ODD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
GOOD = {"pid": 7, "stdin_seq": 0, "start": 0, "end": 0, "running": True, "size": 3}
DOCUMENTS = st.one_of(
    st.dictionaries(NAMES, VALUES, max_size=5),
    st.dictionaries(NAMES, VALUES, max_size=2).map(lambda more: GOOD | more),
    st.just({"from": 0, "to": 1 << 63}),
    st.just({"exit": 0, "signal": None, "bytes": 0}),
)
DEEP = b"[" * 100_000
PAYLOADS = st.one_of(
    st.builds(wire.document, DOCUMENTS, st.binary(max_size=40)),
    st.builds(
        lambda seq, source, data: struct.pack("<QB", seq, source) + data,
        st.sampled_from([0, 1, 5, WINDOW, (1 << 64) - 1]),
        st.integers(0, 4),
        st.one_of(st.binary(max_size=40), st.just(bytes(WINDOW))),
    ),
    st.sampled_from([0, 1, WINDOW, (1 << 64) - 1]).map(wire.ack),
    st.binary(max_size=60),
    st.just(len(DEEP).to_bytes(4, "little") + DEEP),
    st.just(wire.document({"n": 1}).replace(b"1}", b"9}") * 2),
    st.just((5000).to_bytes(4, "little") + b'{"pid":' + b"9" * 4992 + b"}"),
)
FRAMES = st.tuples(
    st.one_of(st.sampled_from(list(Kind)), st.integers(0, 255)),
    st.one_of(st.sampled_from(["asked", "stream"]), st.integers(0, 12), st.just((1 << 32) - 1)),
    PAYLOADS,
)
SCRIPTS = st.lists(st.one_of(FRAMES, st.binary(max_size=80)), max_size=12)


class Liar:
    """The guest's end: answers HELLO so that there is a channel, then follows a script, a few
    frames after each request, and closes at its end."""

    def __init__(self, script: list[Any], *, honest_start: bool) -> None:
        self.ours, self._theirs = socket.socketpair()
        for each in (self.ours, self._theirs):
            each.setblocking(False)
        self._script = list(script)
        self._honest = honest_start

    async def run(self) -> None:
        decoder = Decoder()
        asked: tuple[int, bytes] | None = None
        try:
            while self._script or self._honest:
                for frame in decoder.feed(await self._hear()):
                    if frame.kind == Kind.HELLO and self._honest:
                        hello, _ = wire.parse_document(frame.payload)
                        await self._say(_welcome(hello["epoch"]))
                        self._honest = False
                    elif frame.kind in (Kind.HELLO, Kind.REQUEST):
                        asked = (frame.stream, frame.payload)
                if asked is not None:
                    await self._lie(*asked)
        except OSError:
            return  # the host has had enough
        finally:
            self._theirs.close()

    async def _hear(self) -> bytes:
        """What the host says; nothing, if it waits for us to go on."""
        ready = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._theirs, ready.set)
        try:
            async with asyncio.timeout(0.02):  # not around a read, which could lose what it read
                await ready.wait()
            data = self._theirs.recv(1 << 20)
        except (TimeoutError, BlockingIOError):
            return b""
        finally:
            loop.remove_reader(self._theirs)
        if not data:
            raise ConnectionResetError
        return data

    async def _say(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._theirs, data)

    async def _lie(self, asked: int, payload: bytes) -> None:
        wanted, _ = wire.parse_document(payload)
        stream = wanted.get("stream", asked)
        for step in self._script[:4]:
            data = step
            if isinstance(step, tuple):
                kind, number, said = step
                number = {"asked": asked, "stream": stream}.get(number, number)
                data = wire.encode(kind, number, said)
            await self._say(data)
        del self._script[:4]


def _welcome(epoch: str) -> bytes:
    said = {"version": 1, "epoch": epoch, "boot_id": "b", "agent_id": "a", "mono_ns": 5}
    return wire.encode(Kind.WELCOME, 0, wire.document(said))


async def _run(agent: GuestAgent) -> None:
    await agent.run("/bin/true")


async def _talk(agent: GuestAgent) -> None:
    started = await agent.start(Command(["/bin/cat"], stdin=True))
    await started.write(bytes(3 * WINDOW))
    await started.close_stdin()
    await started.collect()


async def _read(agent: GuestAgent) -> None:
    await agent.read_file("/etc/passwd")


async def _small(agent: GuestAgent) -> None:
    for ask in (
        agent.commands, agent.processes, agent.statistics, agent.hooks, agent.status,
        lambda: agent.stat("/"), lambda: agent.quiesce(10),
    ):  # fmt: skip
        try:
            await ask()
        except ChannelLostError:
            raise
        except VmError:
            continue


async def _list(agent: GuestAgent) -> None:
    async for _ in agent.files.list("/"):
        pass


async def _watch(agent: GuestAgent) -> None:
    async with await agent.files.watch("/") as watching:
        async for _ in watching.events():
            pass


async def _wake(agent: GuestAgent) -> None:
    await agent.wake(None)


Doing = Callable[[GuestAgent], Awaitable[None]]
WORK: list[Doing] = [_run, _talk, _read, _small, _list, _watch, _wake]


async def lied_to(
    script: list[Any], work: Callable[[GuestAgent], Awaitable[None]], honest: bool
) -> None:
    """Do ``work`` with a guest that follows ``script``; anything but our own errors fails."""
    unexpected: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unexpected.append(context))
    guest = Liar(script, honest_start=honest)
    lying = asyncio.create_task(guest.run())
    channel = Channel(guest.ours)
    told = ""
    try:
        async with asyncio.timeout(LIMIT):  # far beyond what it takes: a wait for ever fails
            agent = GuestAgent(channel, await channel.attach(0.2))
            await work(agent)
    except VmError as error:
        told = str(error)
    finally:
        await channel.close()
        lying.cancel()
        await asyncio.gather(lying, return_exceptions=True)
    assert len(told) < 10_000
    assert all(c.isprintable() or c == "\n" for c in told)
    assert not channel._replies
    assert channel._streams == {}
    gc.collect()  # what nobody took of a task is told then
    assert unexpected == []


@pytest.mark.parametrize("work", WORK)
@given(script=SCRIPTS, honest=st.sampled_from([True, True, True, False]))
@example(
    script=[
        (Kind.REPLY, "asked", wire.document(GOOD)),
        (Kind.GAP, "stream", wire.document({"from": 0, "to": 1 << 63})),
    ],
    honest=True,
)
@example(script=[(Kind.REPLY, "asked", wire.document(GOOD | {"stdin_seq": 1 << 70}))], honest=True)
@example(script=[(Kind.REPLY, "asked", wire.document(GOOD | {"end": 10**30}))], honest=True)
@settings(suppress_health_check=list(HealthCheck), max_examples=60)
def test_no_lie_makes_the_host_crash_or_wait(
    work: Callable[[GuestAgent], Awaitable[None]], script: list[Any], honest: bool
) -> None:
    asyncio.run(lied_to(script, work, honest))


# Growth


async def attached(limit: float = 30.0) -> tuple[Channel, socket.socket]:
    """A channel, and the guest's end of it."""
    guest = Liar([], honest_start=True)
    theirs = guest._theirs.dup()
    theirs.setblocking(False)
    channel = Channel(guest.ours)
    await asyncio.gather(channel.attach(limit), guest.run())
    return channel, theirs


async def pour(theirs: socket.socket, data: bytes, times: int) -> bool:
    """Send ``data`` again and again; say whether the host let all of it in."""
    try:
        async with asyncio.timeout(LIMIT):
            for _ in range(times):
                await asyncio.get_running_loop().sock_sendall(theirs, data)
    except ConnectionError:
        return False
    return True


@pytest.mark.parametrize(
    "flood",
    [
        bytes(100_000),
        b"\x7e" * 10_000,
        wire.encode(Kind.REPLY, 4711, bytes(100_000)),
        wire.encode(Kind.CHUNK, 4711, bytes(50_000)),
        wire.encode(Kind.ACK, 4711, wire.ack(0)) * 100,
        wire.encode(200, 1, bytes(1000)),
    ],
)
async def test_a_flood_ends_the_channel_and_takes_no_memory(
    flood: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "MAX_UNASKED", 4 << 20)
    channel, theirs = await attached()
    tracemalloc.start()
    try:
        let_in = await pour(theirs, flood, (40 << 20) // len(flood))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not let_in
    assert most < 16 << 20
    with pytest.raises(ChannelLostError, match="floods"):
        await channel.request("status")
    await channel.close()
    theirs.close()


async def test_answers_that_are_waited_for_are_no_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "MAX_UNASKED", 1 << 20)
    channel, theirs = await attached()
    decoder = Decoder()
    loop = asyncio.get_running_loop()
    for _ in range(8):
        asking = asyncio.create_task(channel.request("file.read"))
        frames = []
        while not [frame for frame in frames if frame.kind == Kind.REQUEST]:
            frames = list(decoder.feed(await loop.sock_recv(theirs, 1 << 16)))
        number = next(frame.stream for frame in frames if frame.kind == Kind.REQUEST)
        answer = wire.encode(Kind.REPLY, number, wire.document({}, bytes(900_000)))
        await loop.sock_sendall(theirs, answer)
        assert len((await asking)[1]) == 900_000
    assert channel.lost is None
    await channel.close()
    theirs.close()


async def test_a_guest_that_does_not_read_makes_requests_wait_and_takes_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channel, theirs = await attached()
    for _ in range(50):
        with pytest.raises(ChannelLostError, match="did not answer"):
            await channel.request("file.write", {}, bytes(900_000), limit=0.02)
    assert channel._writer is not None
    assert channel._writer.transport.get_write_buffer_size() < 4 << 20
    monkeypatch.setattr(channels, "MAX_UNSENT", 4 << 20)
    with pytest.raises(ChannelLostError, match="does not read"):
        _send_without_end(channel)
    await channel.close()
    theirs.close()


def _send_without_end(channel: Channel) -> None:
    for _ in range(100):
        channel.send(Kind.CHUNK, 1, bytes(100_000))


async def test_a_window_of_single_bytes_is_joined() -> None:
    channel, theirs = await attached()
    agent_work = asyncio.create_task(_start(channel))
    decoder = Decoder()
    loop = asyncio.get_running_loop()
    request = None
    while request is None:
        for frame in decoder.feed(await loop.sock_recv(theirs, 1 << 16)):
            request = frame if frame.kind == Kind.REQUEST else request
    wanted, _ = wire.parse_document(request.payload)
    await loop.sock_sendall(theirs, wire.encode(Kind.REPLY, request.stream, wire.document(GOOD)))
    running = await agent_work
    count = 50_000
    single = b"".join(
        wire.encode(Kind.CHUNK, wanted["stream"], wire.chunk(seq, STDOUT, b"x"))
        for seq in range(count)
    )
    await loop.sock_sendall(theirs, single)
    async with asyncio.timeout(LIMIT):
        while running._arrived_seq < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert len(running._arrived) < 100
    seen = b""
    async with asyncio.timeout(LIMIT):
        while len(seen) < count:
            item = await running.next_output()
            assert item is not None
            seen += item[2]
    assert seen == b"x" * count
    await channel.close()
    theirs.close()


async def _start(channel: Channel) -> Any:
    welcome = channels.Welcome(1, "b", "a", 5, 0)
    return await GuestAgent(channel, welcome).start(Command(["/bin/true"]))


async def test_a_file_without_end_is_not_read_to_its_end() -> None:
    channel, theirs = await attached()
    reading = asyncio.create_task(
        GuestAgent(channel, channels.Welcome(1, "b", "a", 5, 0)).read_file("/x", limit=1 << 20)
    )
    decoder, loop = Decoder(), asyncio.get_running_loop()
    async with asyncio.timeout(LIMIT):
        while not reading.done():
            try:
                async with asyncio.timeout(1):
                    data = await loop.sock_recv(theirs, 1 << 16)
            except TimeoutError:
                continue
            for frame in decoder.feed(data):
                if frame.kind == Kind.REQUEST:
                    piece = wire.document({"size": 1, "end": False}, bytes(200_000))
                    await loop.sock_sendall(theirs, wire.encode(Kind.REPLY, frame.stream, piece))
    with pytest.raises(GuestError, match="EFBIG"):
        await reading
    await channel.close()
    theirs.close()


def test_depth_and_digits_of_a_document_are_bounded() -> None:
    for text in (b"[" * 500_000, b'{"n":' + b"9" * 100_000 + b"}", b'{"n":1e999}', b'{"a":NaN}'):
        with pytest.raises(wire.WireError):
            wire.parse_document(len(text).to_bytes(4, "little") + text)
    assert json.loads(wire.document({"n": 1})[4:]) == {"n": 1}
