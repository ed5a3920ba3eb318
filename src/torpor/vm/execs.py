"""Commands in a machine, as the host sees them: output without loss, input without doubling.

An :class:`Exec` remembers how far it has read and which input the guest has taken, so it can be
attached again, to the same machine after a lost channel, or to another that was thawed from its
snapshot, and goes on where it was.
"""

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torpor.guest import wire
from torpor.guest.wire import Frame, Kind, WireError
from torpor.vm.channel import Channel
from torpor.vm.errors import ChannelLostError, GuestError, VmError

STDOUT, STDERR = 1, 2
WINDOW = 256 << 10
"""Bytes that may be under way in each direction of a stream."""


@dataclass(frozen=True)
class Command:
    """What to run: ``argv`` without a shell, in ``cwd`` (the user's home if None), as ``user``.

    ``keep`` is how many bytes of output the guest keeps for replay.
    """

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    user: str = "0"
    stdin: bool = False
    keep: int | None = None


class Output(NamedTuple):
    """Bytes that a command wrote: ``seq`` is the first one's number, ``source`` STDOUT or
    STDERR."""

    seq: int
    source: int
    data: bytes


class Gap(NamedTuple):
    """Bytes ``start`` to ``end`` of the output are no longer kept."""

    start: int
    end: int


@dataclass(frozen=True)
class Exit:
    """How a command ended: ``code`` or the number of the ``signal`` that killed it."""

    code: int | None
    signal: int | None

    @property
    def ok(self) -> bool:
        """Whether the command exited with 0."""
        return self.code == 0


class Exec:
    """One command that we follow."""

    def __init__(self, exec_id: str, *, hold: bool = True, seq: int = 0) -> None:
        self.id = exec_id
        self.pid: int | None = None
        self.received = seq
        self.exit: Exit | None = None
        """How the command ended, once all of its output has been read."""
        self._ended: Exit | None = None
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

    @classmethod
    async def start(cls, channel: Channel, command: Command) -> "Exec":
        """Start a command. Raises :exc:`GuestError`, for example ENOENT if there is no such
        program."""
        new = cls(secrets.token_hex(8))
        wanted = {
            "id": new.id,
            "argv": list(command.argv),
            "env": dict(command.env),
            "cwd": command.cwd,
            "user": command.user,
            "stdin": command.stdin,
            "keep": command.keep,
        }
        await new._open("exec.start", channel, wanted)
        return new

    async def attach(self, channel: Channel) -> None:
        """Go on following the command where we were, perhaps on another machine's channel.

        Raises :exc:`GuestError`: ENOENT if that machine does not know the command, ESTALE if it
        comes from a snapshot from before the command had come as far as we have seen it come.
        """
        self._leave()
        await self._open("exec.attach", channel, {"id": self.id})

    def detach(self) -> None:
        """Stop following: the command runs on, its output is kept in the machine, and it no longer
        waits for us. Whoever stops reading before the end does this, or the command may wait for
        ever. After :meth:`attach` it goes on where :meth:`output` was.
        """
        if self._channel is not None:
            self._channel.tell("exec.detach", {"stream": self._stream})
        self._leave()
        self._fail(ChannelLostError(f"Command {self.id} is not followed any more."))

    async def _open(self, op: str, channel: Channel, wanted: dict[str, Any]) -> None:
        self._failed = None
        self._ended = None
        self._channel = channel
        self._arrived_seq = self.received
        self._arrived.clear()
        self._acked = self.received
        self._stream = channel.open_stream(self._take, self._fail)
        follow = {
            "stream": self._stream,
            "seq": self.received,
            "window": WINDOW,
            "hold": self._hold,
        }
        try:
            answer, _ = await channel.request(op, wanted | follow)
            self._check(answer)
            self.pid = answer["pid"]
            self._resend_stdin(answer["stdin_seq"])
        except BaseException as error:
            self.detach()
            if isinstance(error, VmError):
                self._fail(error)
            raise

    def _check(self, answer: dict[str, Any]) -> None:
        for name in ("pid", "stdin_seq", "end"):
            if type(answer.get(name)) is not int or answer[name] < 0:
                raise ChannelLostError(f"The guest did not say {name!r} of command {self.id}.")
        if answer["end"] < self.received or answer["stdin_seq"] < self._stdin_acked:
            raise GuestError(
                "ESTALE",
                f"command {self.id} stands at an earlier point in this machine than where we are;"
                " follow it anew from there",
            )
        if answer["stdin_seq"] > self._stdin_sent and self._stdin_unacked:
            raise GuestError(
                "ESTALE", f"command {self.id} has taken input of another client instead of ours"
            )

    # Output

    async def output(self) -> AsyncIterator[Output | Gap]:
        """Yield what the command writes until it has ended; then :attr:`exit` is set.

        Raises :exc:`ChannelLostError`, or the machine's end; after :meth:`attach` a new call goes
        on.
        """
        while True:
            while self._arrived:
                item = self._arrived.popleft()
                self.received = item.end if isinstance(item, Gap) else item.seq + len(item.data)
                self._ack(at_once=isinstance(item, Gap))
                yield item
            if self._ended is not None:
                self.exit = self._ended
                return
            if self._failed is not None:
                raise self._failed
            self._news.clear()
            await self._news.wait()

    async def collect(self) -> tuple[bytes, bytes]:
        """Read to the end and return all of standard output and standard error."""
        parts: dict[int, list[bytes]] = {STDOUT: [], STDERR: []}
        async for item in self.output():
            if isinstance(item, Output):
                parts[item.source].append(item.data)
        return b"".join(parts[STDOUT]), b"".join(parts[STDERR])

    async def wait(self) -> Exit:
        """Read to the end, drop the output and return how the command ended."""
        async for _ in self.output():
            pass
        assert self.exit is not None
        return self.exit

    def _ack(self, *, at_once: bool) -> None:
        due = at_once or self.received - self._acked >= WINDOW // 4
        if self._channel is not None and due:
            self._acked = max(self._acked, self.received)  # it may count gaps still to be read
            with contextlib.suppress(VmError):  # a lost channel is told by output()
                self._channel.send(Kind.ACK, self._stream, wire.ack(self.received))

    def _take(self, frame: Frame) -> None:
        try:
            self._take_checked(frame)
        except (WireError, KeyError, TypeError, ValueError, OverflowError) as error:
            self._leave()
            self._fail(ChannelLostError(f"The guest broke the stream of {self.id}: {error}."))
        self._news.set()

    def _take_checked(self, frame: Frame) -> None:
        if frame.kind == Kind.CHUNK:
            seq, source, data = wire.parse_chunk(frame.payload)
            end = seq + len(data)
            if seq != self._arrived_seq or source not in (STDOUT, STDERR):
                raise WireError(f"bytes {seq} where {self._arrived_seq} come next")
            if not data or end > self._acked + WINDOW:
                raise WireError("nothing, or more than the window allows")
            self._arrived_seq = end
            self._arrived.append(Output(seq, source, data))
        elif frame.kind == Kind.GAP:
            gap, _ = wire.parse_document(frame.payload)
            start, end = int(gap["from"]), int(gap["to"])
            if start != self._arrived_seq or end <= start:
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
            code, signal = end_of["exit"], end_of["signal"]
            self._ended = Exit(
                None if code is None else int(code), None if signal is None else int(signal)
            )
            self._leave()
            self._stdin_room.set()

    def _fail(self, reason: VmError) -> None:
        self._failed = reason
        self._news.set()
        self._stdin_room.set()

    def _leave(self) -> None:
        if self._channel is not None:
            self._channel.close_stream(self._stream)
            self._channel = None
        self._attached = False

    # Input

    @property
    def written(self) -> int:
        """How many bytes of input :meth:`write` has accepted since the command's start."""
        return self._stdin_sent

    async def write(self, data: bytes) -> None:
        """Give ``data`` to the command's standard input; returns when it is under way.

        Waits while :data:`WINDOW` bytes are not yet taken. What was accepted (see :attr:`written`)
        and is under way when the channel is lost is sent again at the next :meth:`attach`, so
        nothing is lost or doubled. Raises :exc:`GuestError` (EPIPE) once the command has ended.
        """
        for start in range(0, len(data), wire.MAX_CHUNK):
            piece = data[start : start + wire.MAX_CHUNK]
            await self._input_room(len(piece))
            self._stdin_unacked.append(piece)
            self._send_stdin(piece)

    async def _input_room(self, size: int) -> None:
        while True:
            if self._ended is not None:
                raise GuestError("EPIPE", f"command {self.id} has ended")
            if self._stdin_sent - self._stdin_acked + size <= WINDOW:
                return
            if self._failed is not None:
                raise self._failed
            self._stdin_room.clear()
            await self._stdin_room.wait()

    async def close_stdin(self) -> None:
        """Tell the command that its input ends here."""
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
