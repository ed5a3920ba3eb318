"""The host's end of the guest channel: epochs, requests, streams.

The guest is not trusted: what it sends is bounded and checked, and whatever it does wrong ends the
one request or stream that it concerns, or the channel, never the program.
"""

import asyncio
import contextlib
import itertools
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from torpor.guest import wire
from torpor.guest.wire import Frame, Kind, WireError
from torpor.vm.errors import (
    ChannelLostError,
    GuestError,
    HeldError,
    UnansweredError,
    VmError,
)
from torpor.vm.holding import Holding
from torpor.vm.replies import Replies, Reply

HELLO_EVERY = 0.02
"""Seconds between two HELLOs: bytes are lost until the guest has opened its port."""
HELLO_SLOWEST = 0.25
NUDGE_AFTER = 1.0
"""Seconds of silence after which the guest is nudged, while something is awaited of it."""
NUDGE_SLOWEST = 10.0
ANSWER_LIMIT = 60.0
"""Seconds that an answer may take unless another limit is given. The agent answers at once, or
bounds what it waits for; this is for a busy host."""
MAX_UNASKED = 16 << 20
"""Bytes that a guest may send, since the last frame that somebody waited for, without anybody
waiting: garbage, answers that come too late, streams that are closed. Then the channel ends, so
that a guest that floods it takes no more of the host than that."""
MAX_UNSENT = 32 << 20
"""Bytes that may wait for a guest that does not read, before the channel ends."""
MAX_WAITING = 1 << 20
"""Bytes that may wait before a request waits as well."""
MAX_MESSAGE = 2000
"""Characters of a guest's error message that are passed on."""


def plain(said: object, limit: int) -> str:
    """Return what a guest said as text that may go to a terminal or a file: at most ``limit``
    characters, each that does not print replaced."""
    text = said if isinstance(said, str) else repr(said)
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text[:limit])


def readable(said: object) -> str:
    """Return a text that a guest told as UTF-8 can say it. Its names are bytes, and what it says
    may have half a surrogate pair in it."""
    text = said if isinstance(said, str) else repr(said)
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True)
class Welcome:
    """What the agent said at the start of an epoch, and when.

    ``mono_ns`` is the guest's monotonic clock when it spoke, ``heard_ns`` the host's when we heard.
    ``code`` is the digest of the agent's files, empty if it does not know.
    """

    version: int
    boot_id: str
    agent_id: str
    mono_ns: int
    heard_ns: int
    code: str = ""


def _misbehaves(what: str) -> ChannelLostError:
    return ChannelLostError(
        f"The guest channel was ended: the machine {what}.",
        state="The machine runs on; commands in it are not followed any more.",
        todo="Attach to it again, or end it: something in it may be hostile.",
    )


class Channel:
    """A connection to one machine's agent."""

    def __init__(
        self,
        sock: socket.socket,
        explain: Callable[[VmError], Awaitable[VmError]] | None = None,
        holding: Holding | None = None,
    ) -> None:
        """Take over a connected socket. ``explain`` may know a better reason for its end,
        ``holding`` knows when its machine is held."""
        self._sock = sock
        self._explain = explain
        self.holding = holding or Holding()
        self._epoch = secrets.token_hex(16)
        self._decoder = wire.Decoder()
        self._numbers = itertools.count(1)
        self._replies = Replies(self.holding)
        self._streams: dict[int, Callable[[Frame], bool | None]] = {}
        self._held_streams: dict[int, Callable[[HeldError], None]] = {}
        self._lost_streams: dict[int, Callable[[VmError], None]] = {}
        self._welcome: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self._lost: VmError | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._nudging: asyncio.Task[None] | None = None
        self._awaiting = asyncio.Event()
        self._heard = 0.0
        self._unasked = 0
        self.holding.watch(self._holding_changed)

    async def attach(self, limit: float) -> Welcome:
        """Begin an epoch: say HELLO until the agent echoes it. Raises :exc:`ChannelLostError`
        (:exc:`UnansweredError`: within ``limit`` seconds), and :exc:`HeldError` as soon as the
        machine is held."""
        reader, self._writer = await asyncio.open_connection(sock=self._sock)
        self._writer.transport.set_write_buffer_limits(high=MAX_WAITING)
        self._reading = asyncio.create_task(self._read(reader), name="guest channel")
        self._nudging = asyncio.create_task(self._nudge(), name="guest channel nudges")
        hello = wire.document({"version": wire.VERSION, "epoch": self._epoch})
        pause = HELLO_EVERY
        deadline = time.monotonic() + limit
        while True:
            self.holding.check()
            # The flag before it ends whatever an earlier epoch has left half-way.
            self._write(wire.FLAG + wire.encode(Kind.HELLO, 0, hello))
            done, _ = await asyncio.wait([self._welcome], timeout=pause)
            if done:
                return self._welcome.result()
            if time.monotonic() > deadline:
                raise UnansweredError(f"The guest agent did not answer within {limit:g} s.")
            pause = min(pause * 1.5, HELLO_SLOWEST)

    async def request(
        self,
        op: str,
        document: dict[str, Any] | None = None,
        blob: bytes = b"",
        *,
        urgent: bool = False,
        patient: bool = False,
        limit: float = ANSWER_LIMIT,
    ) -> tuple[dict[str, Any], bytes]:
        """Ask the agent for ``op`` and return its document and bytes.

        Waits while the channel is held quiet, which a freeze bounds, unless ``urgent``. Raises
        :exc:`GuestError` if the agent refuses, :exc:`ChannelLostError` or the machine's end if
        there is no answer (:exc:`UnansweredError`: within ``limit`` seconds), and
        :exc:`HeldError` as soon as the machine is held. A ``patient`` request waits while it is,
        and no such time counts.
        """
        while not urgent and not self._open.is_set():
            await self._open.wait()
        if self._lost is not None:
            raise self._lost
        if not patient:
            self.holding.check()
        payload = wire.document({"op": op} | (document or {}), blob)
        if len(payload) > wire.MAX_BODY:  # the agent would drop it, and we would wait
            size = f"{len(payload)} bytes"
            raise GuestError("E2BIG", f"a request of {size} does not fit into a frame")
        number = next(self._numbers)
        try:
            async with self._replies.awaited(number, limit, patient=patient) as reply:
                self._awaiting.set()
                await self._room(reply)
                if not reply.done():
                    self._write(wire.encode(Kind.REQUEST, number, payload))
                answer, data = await reply
        except TimeoutError:
            raise UnansweredError(
                f"The guest agent did not answer {op!r} within {limit:g} s.",
                state="It may have been done all the same.",
            ) from None
        error = answer.get("error")
        if isinstance(error, dict):
            raise GuestError(plain(error.get("code"), 64), plain(error.get("message"), MAX_MESSAGE))
        if error is not None:
            raise GuestError("EPROTO", f"the agent refused {op!r} and did not say why")
        return answer, data

    def tell(self, op: str, document: dict[str, Any]) -> None:
        """Ask the agent for ``op`` and do not wait for its answer. Does nothing once the channel is
        lost."""
        if self._lost is None:
            payload = wire.document({"op": op} | document)
            self._write(wire.encode(Kind.REQUEST, next(self._numbers), payload))

    @asynccontextmanager
    async def quiet(self, limit: float) -> AsyncIterator[None]:
        """Hold back new requests, and wait until those under way are answered. Raises
        TimeoutError, and :exc:`HeldError` as soon as the machine is held."""
        self._open.clear()
        try:
            async with asyncio.timeout(limit):
                await self._replies.idle()
            yield
        finally:
            self._open.set()

    def _holding_changed(self) -> None:
        """Tell the streams that cannot wait for a machine that is held."""
        for held in list(self._held_streams.values()):
            if (error := self.holding.error()) is not None:
                held(error)

    @property
    def lost(self) -> VmError | None:
        """Why the channel is of no use any more, or None."""
        return self._lost

    # Streams

    def open_stream(
        self,
        take: Callable[[Frame], bool | None],
        lost: Callable[[VmError], None],
        held: Callable[[HeldError], None] | None = None,
    ) -> int:
        """Return the number of a new stream; ``take`` gets its frames, ``lost`` the channel's
        end, ``held`` each time that the machine is held.

        ``take`` says False to a frame that told it nothing new.
        """
        number = next(self._numbers)
        self._streams[number] = take
        self._lost_streams[number] = lost
        if held is not None:
            self._held_streams[number] = held
        self._awaiting.set()
        return number

    def close_stream(self, number: int) -> None:
        """Forget a stream; frames that still come for it are dropped."""
        for each in (self._streams, self._lost_streams, self._held_streams):
            each.pop(number, None)

    def send(self, kind: Kind, stream: int, payload: bytes) -> None:
        """Send a frame of a stream; how much may be under way is the stream's own affair."""
        self._write(wire.encode(kind, stream, payload))

    # Bytes

    def _write(self, data: bytes) -> None:
        if self._lost is not None:
            raise self._lost
        assert self._writer is not None, "attach first"
        self._writer.write(data)
        if self._writer.transport.get_write_buffer_size() > MAX_UNSENT:
            self.lose(_misbehaves("does not read what it is sent"))
            self._writer.transport.abort()

    async def _room(self, reply: Reply) -> None:
        """Wait until what was written before is nearly all under way, or there is a reply all the
        same: an error."""
        assert self._writer is not None, "attach first"
        if self._writer.transport.get_write_buffer_size() > MAX_WAITING // 4:  # it may be paused
            draining = asyncio.ensure_future(self._writer.drain())
            try:
                either: set[asyncio.Future[Any]] = {draining, reply}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                draining.cancel()
                # An error of the socket is the channel's end, which _read tells.
                await asyncio.gather(draining, return_exceptions=True)
        if self._lost is not None:
            raise self._lost

    async def _read(self, reader: asyncio.StreamReader) -> None:
        reason: VmError = ChannelLostError("The guest channel was closed.")
        try:
            while data := await reader.read(256 << 10):
                self._heard = time.monotonic()
                self._unasked += len(data)
                for frame in self._decoder.feed(data):
                    if self._take(frame):
                        self._unasked = 0
                if self._unasked > MAX_UNASKED:
                    self.lose(_misbehaves("floods it with what nobody waits for"))
                    break
        except (OSError, ValueError) as error:
            reason = ChannelLostError(f"The guest channel failed: {error}.")
        if self._explain is not None:
            reason = await self._explain(reason)
        self.lose(reason)
        if self._writer is not None:
            self._writer.transport.abort()  # QEMU drops what the guest still sends

    async def _nudge(self) -> None:
        """Send a lone flag, which says nothing, while an answer or output is awaited and none
        comes.

        A wake-up that is lost between QEMU and the guest (seen once under emulation, under load, in
        some thousands of thaws) would otherwise leave bytes lying there until the next ones come.
        """
        pause = NUDGE_AFTER
        while self._lost is None:
            if not (self._replies or self._streams):  # an idle machine costs the host nothing
                self._awaiting.clear()
                await self._awaiting.wait()
            await asyncio.sleep(pause)
            awaited = self._replies or self._streams
            if awaited and time.monotonic() - self._heard >= pause:
                self._write(wire.FLAG)
                pause = min(2 * pause, NUDGE_SLOWEST)
            else:
                pause = NUDGE_AFTER

    def _take(self, frame: Frame) -> bool:
        """Give a frame to whoever waits for it; say whether anybody does."""
        if frame.kind == Kind.WELCOME:
            return self._take_welcome(frame)
        if not self._welcome.done():
            return False  # of an earlier epoch
        if frame.kind == Kind.BORN:
            self.lose(
                ChannelLostError(
                    "The guest agent was started anew.",
                    state="The machine runs on; commands that were followed are no longer known.",
                    todo="Attach to it again.",
                )
            )
        elif frame.kind == Kind.REPLY:
            return self._replies.give(frame.stream, frame.payload)
        else:
            take = self._streams.get(frame.stream)
            if take is not None:
                # A stream says False to what told it nothing new. Gaps are rare, and a guest could
                # go on telling of them.
                return take(frame) is not False and frame.kind != Kind.GAP
        return False

    def _take_welcome(self, frame: Frame) -> bool:
        said, _ = wire.parse_document(frame.payload)
        if said.get("epoch") != self._epoch or self._welcome.done():
            return False
        if said.get("version") != wire.VERSION:
            raise WireError(f"the agent speaks version {plain(said.get('version'), 20)}")
        try:
            self._welcome.set_result(
                Welcome(
                    version=wire.VERSION,
                    boot_id=plain(said["boot_id"], 64),
                    agent_id=plain(said["agent_id"], 64),
                    mono_ns=int(said["mono_ns"]),
                    heard_ns=time.monotonic_ns(),
                    code=plain(said.get("code", ""), 64),
                )
            )
        except (KeyError, TypeError, ValueError) as error:
            raise WireError(f"a welcome that is none: {error}") from None
        return True

    def lose(self, reason: VmError) -> None:
        """End everything that waits for this channel with ``reason``; the first reason stays."""
        if self._lost is not None:
            return
        self._lost = reason
        self._replies.lose(reason)
        for lost in list(self._lost_streams.values()):
            lost(reason)
        for each in (self._streams, self._lost_streams, self._held_streams):
            each.clear()
        self.holding.unwatch(self._holding_changed)
        if self._nudging is not None:
            self._nudging.cancel()
        if not self._welcome.done():
            self._welcome.set_exception(reason)
            self._welcome.exception()  # read: nobody may be waiting

    async def close(self, reason: VmError | None = None) -> None:
        """Disconnect; the machine is not touched. What was said on a channel that is not lost still
        goes out; of a lost one nothing may come between the words of the next."""
        lost = self._lost is not None
        self.lose(reason or ChannelLostError("The guest channel was closed by the host."))
        if self._reading is not None:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading
        if self._writer is not None:
            if lost:
                self._writer.transport.abort()
            self._writer.close()
        else:
            self._sock.close()
