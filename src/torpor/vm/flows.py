"""Flows of bytes out of and into a machine: output without loss, input without doubling.

A :class:`Flow` remembers how far it has read and which input the guest has taken, so it can be
attached again, to the same machine after a lost channel, or to another that was thawed from its
snapshot, and goes on where it was. Commands and connections are flows.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from torpor.guest import wire
from torpor.guest.wire import Frame, Kind, WireError
from torpor.vm.channel import MAX_MESSAGE, Channel, plain
from torpor.vm.errors import ChannelLostError, GuestError, VmError

STDOUT, STDERR = 1, 2
WINDOW = 256 << 10
"""Bytes that may be under way in each direction of a stream."""
LARGEST = 1 << 62
"""Bytes that a stream has at most; what is told beyond that is a lie, and fits into no frame."""
PIECES, JOINED = 64, 4 << 10
"""Pieces of output that wait as they came; what comes beyond is joined into pieces of ``JOINED``
bytes: a guest could send a window of single bytes, and each costs far more than that."""


class Output(NamedTuple):
    """Bytes of a flow's output: ``seq`` is the first one's number, ``source`` STDOUT or
    STDERR."""

    seq: int
    source: int
    data: bytes


class Gap(NamedTuple):
    """Bytes ``start`` to ``end`` of the output are no longer kept."""

    start: int
    end: int


class Flow:
    """One flow that we follow. ``what`` says in errors what it is.

    Whoever reads or writes waits for as long as the other side says nothing or takes nothing, which
    is for it to decide; the flow's end, the channel's and the machine's end that. While the machine
    is held (:mod:`torpor.vm.holding`) it is waited for too, unless the flow is not ``patient``:
    then reading and writing raise :exc:`HeldError`.
    """

    def __init__(
        self, flow_id: str, what: str, *, hold: bool = True, seq: int = 0, patient: bool = True
    ) -> None:
        self.id = flow_id
        self.patient = patient
        self.what = what
        self.received = seq
        self.ending: dict[str, Any] | None = None
        """What the guest said of its end, once all of its output has been read."""
        self._ended: dict[str, Any] | None = None
        self._hold = hold
        self._channel: Channel | None = None
        self._stream = 0
        self._attached = False
        self._acked = seq
        self._arrived: deque[Output | Gap] = deque()
        self._arrived_seq = seq
        self._news = asyncio.Event()
        self._failed: VmError | None = None
        self._stdin_unacked: deque[bytes] = deque()
        self._stdin_acked = 0
        self._stdin_sent = 0
        self._stdin_room = asyncio.Event()
        self._stdin_closed = False

    async def attach(self, channel: Channel) -> None:
        """Go on following where we were, perhaps on another machine's channel.

        Raises :exc:`GuestError`: ENOENT if that machine does not know it, ESTALE if the machine
        comes from a snapshot from before it had come as far as we have seen it come.
        """
        self._leave()
        await self.open("stream.attach", channel, {"id": self.id})

    def detach(self) -> None:
        """Stop following: a command runs on, its output is kept in the machine, and it no longer
        waits for us. Whoever stops reading before the end does this, or it may wait for ever.
        After :meth:`attach` it goes on where :meth:`output` was.
        """
        if self._channel is not None:
            self._channel.tell("stream.detach", {"stream": self._stream})
        self._leave()
        self._fail(ChannelLostError(f"{self.what} is not followed any more."))

    async def open(self, op: str, channel: Channel, wanted: dict[str, Any]) -> dict[str, Any]:
        """Ask for ``op``, and follow what comes of it; return the answer."""
        self._failed = None
        self._ended = None
        self._channel = channel
        self._arrived_seq = self.received
        self._arrived.clear()
        self._acked = self.received
        self._stream = channel.open_stream(self._take, self._fail, self._held)
        follow = {
            "stream": self._stream,
            "seq": self.received,
            "window": WINDOW,
            "hold": self._hold,
        }
        try:
            answer, _ = await channel.request(op, wanted | follow, patient=self.patient)
            self._check(answer)
            self._resend_stdin(answer["stdin_seq"])
        except BaseException as error:
            self.detach()
            if isinstance(error, VmError):
                self._fail(error)
            raise
        return answer

    def _check(self, answer: dict[str, Any]) -> None:
        for name in ("stdin_seq", "end"):
            if type(answer.get(name)) is not int or not 0 <= answer[name] <= LARGEST:
                raise ChannelLostError(f"The guest did not say {name!r} of {self.what}.")
        if answer["end"] < self.received or answer["stdin_seq"] < self._stdin_acked:
            raise GuestError(
                "ESTALE",
                f"{self.what} stands at an earlier point in this machine than where we are;"
                " follow it anew from there",
            )
        if answer["stdin_seq"] > self._stdin_sent and self._stdin_unacked:
            raise GuestError(
                "ESTALE", f"{self.what} has taken input of another client instead of ours"
            )

    # Output

    async def output(self) -> AsyncIterator[Output | Gap]:
        """Yield what it writes until it has ended; then :attr:`ending` is set.

        Raises :exc:`ChannelLostError`, or the machine's end; after :meth:`attach` a new call goes
        on.
        """
        while (item := await self.next_output()) is not None:
            yield item

    async def next_output(self) -> Output | Gap | None:
        """Return what comes next, None once it has ended. Raises as :meth:`output`."""
        while True:
            if self._arrived:
                item = self._arrived.popleft()
                self.received = item.end if isinstance(item, Gap) else item.seq + len(item.data)
                self._ack(at_once=isinstance(item, Gap))
                return item
            if self._ended is not None:
                self.ending = self._ended
                return None
            if self._failed is not None:
                raise self._failed
            self._news.clear()
            await self._news.wait()

    def _ack(self, *, at_once: bool) -> None:
        due = at_once or self.received - self._acked >= WINDOW // 4
        if self._channel is not None and due:
            self._acked = max(self._acked, self.received)  # it may count gaps still to be read
            with contextlib.suppress(VmError):  # a lost channel is told by output()
                self._channel.send(Kind.ACK, self._stream, wire.ack(self.received))

    def _take(self, frame: Frame) -> bool:
        """Take in a frame; say whether it told anything new."""
        before = self._stdin_acked
        try:
            self._take_checked(frame)
        except (WireError, KeyError, TypeError, ValueError, OverflowError) as error:
            self._leave()
            why = plain(str(error), MAX_MESSAGE)
            self._fail(ChannelLostError(f"The guest broke the stream of {self.what}: {why}."))
        self._news.set()
        return frame.kind != Kind.ACK or self._stdin_acked > before

    def _take_checked(self, frame: Frame) -> None:
        if frame.kind == Kind.CHUNK:
            seq, source, data = wire.parse_chunk(frame.payload)
            end = seq + len(data)
            if seq != self._arrived_seq or source not in (STDOUT, STDERR):
                raise WireError(f"bytes {seq} where {self._arrived_seq} come next")
            if not data or end > self._acked + WINDOW:
                raise WireError("nothing, or more than the window allows")
            self._arrived_seq = end
            last = self._arrived[-1] if len(self._arrived) >= PIECES else None
            if isinstance(last, Output) and last.source == source and len(last.data) < JOINED:
                self._arrived[-1] = Output(last.seq, source, last.data + data)
            else:
                self._arrived.append(Output(seq, source, data))
        elif frame.kind == Kind.GAP:
            gap, _ = wire.parse_document(frame.payload)
            start, end = int(gap["from"]), int(gap["to"])
            if start != self._arrived_seq or not start < end <= LARGEST:
                raise WireError("a gap that is none")
            # What is lost takes nothing of the window, and what is not yet read still does.
            self._acked += end - start
            self._arrived_seq = end
            if self._arrived and isinstance(self._arrived[-1], Gap):
                start = self._arrived.pop()[0]
            self._arrived.append(Gap(start, end))
        elif frame.kind == Kind.ACK:
            self._take_stdin_ack(wire.parse_ack(frame.payload))
        elif frame.kind == Kind.END:
            end_of, _ = wire.parse_document(frame.payload)
            if end_of["bytes"] != self._arrived_seq:
                raise WireError("the end comes before the last byte")
            self.check_ending(end_of)
            self._ended = end_of
            self._leave()
            self._stdin_room.set()

    def check_ending(self, said: dict[str, Any]) -> None:
        """Raise KeyError, TypeError or ValueError if what the guest said is no end of this flow."""

    def _fail(self, reason: VmError) -> None:
        self._failed = reason
        self._news.set()
        self._stdin_room.set()

    def _held(self, why: VmError) -> None:
        if not self.patient:
            self._fail(why)

    def _leave(self) -> None:
        if self._channel is not None:
            self._channel.close_stream(self._stream)
            self._channel = None
        self._attached = False

    # Input

    @property
    def written(self) -> int:
        """How many bytes of input :meth:`write` has accepted since the beginning."""
        return self._stdin_sent

    async def write(self, data: bytes) -> None:
        """Give ``data`` to its input; returns when it is under way.

        Waits while :data:`WINDOW` bytes are not yet taken. What was accepted (see :attr:`written`)
        and is under way when the channel is lost is sent again at the next :meth:`attach`, so
        nothing is lost or doubled. Raises :exc:`GuestError` (EPIPE) once it has ended.
        """
        for start in range(0, len(data), wire.MAX_CHUNK):
            piece = data[start : start + wire.MAX_CHUNK]
            await self._input_room(len(piece))
            self._stdin_unacked.append(piece)
            self._send_stdin(piece)

    async def _input_room(self, size: int) -> None:
        while True:
            if self._ended is not None:
                raise GuestError("EPIPE", f"{self.what} has ended")
            if self._stdin_sent - self._stdin_acked + size <= WINDOW:
                return
            if self._failed is not None:
                raise self._failed
            self._stdin_room.clear()
            await self._stdin_room.wait()

    async def all_taken(self) -> None:
        """Wait until the guest has given all input that :meth:`write` has accepted to the command.
        Raises as :meth:`write`."""
        while self._stdin_acked < self._stdin_sent:
            if self._ended is not None:
                raise GuestError("EPIPE", f"{self.what} has ended")
            if self._failed is not None:
                raise self._failed
            self._stdin_room.clear()
            await self._stdin_room.wait()

    async def close_stdin(self) -> None:
        """Tell it that its input ends here."""
        self._stdin_closed = True
        self._send_stdin_end()

    # What is given while there is no channel, or none yet, goes with the rest when there is one.

    def _send_stdin(self, piece: bytes) -> None:
        seq = self._stdin_sent
        self._stdin_sent += len(piece)
        if self._channel is not None and self._attached and self._failed is None:
            self._channel.send(Kind.CHUNK, self._stream, wire.chunk(seq, 0, piece))

    def _send_stdin_end(self) -> None:
        if self._channel is not None and self._attached and self._failed is None:
            end = wire.document({"bytes": self._stdin_sent})
            self._channel.send(Kind.END, self._stream, end)

    def _take_stdin_ack(self, seq: int) -> None:
        if not self._stdin_acked <= seq <= self._stdin_sent:
            raise WireError("input acknowledged that was not sent")
        while self._stdin_unacked and self._stdin_acked + len(self._stdin_unacked[0]) <= seq:
            self._stdin_acked += len(self._stdin_unacked.popleft())
        if self._stdin_unacked and seq > self._stdin_acked:
            self._stdin_unacked[0] = self._stdin_unacked[0][seq - self._stdin_acked :]
            self._stdin_acked = seq
        self._stdin_room.set()

    def _resend_stdin(self, taken: int) -> None:
        if taken > self._stdin_sent:  # another client's input: ours comes after it
            self._stdin_acked = self._stdin_sent = taken
        self._take_stdin_ack(taken)
        pieces = list(self._stdin_unacked)
        self._stdin_sent = self._stdin_acked
        self._attached = True
        for piece in pieces:
            self._send_stdin(piece)
        if self._stdin_closed:
            self._send_stdin_end()
