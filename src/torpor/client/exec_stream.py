"""What travels on the stream of a command, as plain data: frames in, items out.

From the server, binary: one byte for the source, eight (big-endian) for the number of the first
byte, the bytes; text: a JSON object with a ``type``. To the server, binary: input; text: a JSON
object. Both outputs of a command are numbered together, so one number says where a reader stands.
"""

import json
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torpor.client import fields
from torpor.client.call import path
from torpor.client.errors import AnswerError
from torpor.client.machine_records import Terminal, status_of

HEAD = struct.Struct(">BQ")
SOURCES: dict[int, Literal["stdout", "stderr"]] = {1: "stdout", 2: "stderr"}
LARGEST_FRAME = 16 << 20
FIRST_PATIENCE = 2.0
"""Seconds for which a stream is tried to be opened at first, whatever follows."""
INPUT_PIECE = 64 << 10
"""Bytes of input that are sent in one frame."""
UNSURE_SECONDS = 5.0
"""Input that was sent this long before a connection was lost has arrived."""


@dataclass(frozen=True)
class Output:
    """Bytes that a command wrote; ``seq`` is the number of the first. On a terminal all of it is
    ``stdout``."""

    seq: int
    source: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True)
class Gap:
    """Bytes ``start`` to ``end`` of the output are no longer kept."""

    start: int
    end: int


@dataclass(frozen=True)
class Paused:
    """The session is paused, and the command stands still with it. Input wakes it."""


@dataclass(frozen=True)
class Resumed:
    """The session runs again, and the command goes on."""


@dataclass(frozen=True)
class Disconnected:
    """The connection was lost. It is looked for again; the command knows nothing of it."""

    why: str


@dataclass(frozen=True)
class Reconnected:
    """The connection is there again. No output was lost, or a :class:`Gap` follows.

    ``input_unsure`` is how many bytes of the input may not have arrived: the newest before the
    loss. They are not sent again, for they may have.
    """

    input_unsure: int = 0


@dataclass(frozen=True)
class Exit:
    """The command ended: with ``code``, or by ``signal``. All of its output came before this."""

    code: int | None
    signal: int | None
    timed_out: bool = False

    @property
    def status(self) -> int:
        """What a shell would have as its status: the code, or 128 and the signal's number."""
        return status_of(self.code, self.signal)


Item = Output | Gap | Paused | Resumed | Disconnected | Reconnected | Exit


def stream_path(session: str, exec_id: str, seq: int) -> str:
    """Return where the stream of a command is, from byte ``seq`` on."""
    return f"{path('sessions', session, 'execs', exec_id, 'stream')}?seq={seq}"


def port_path(session: str, port: int) -> str:
    """Return where the stream to a port of a session's machine is. Raises ValueError."""
    if not 1 <= port <= 65535:
        raise ValueError(f"{port} is no port: one is from 1 to 65535")
    return path("sessions", session, "port-forward", str(port))


class Reading:
    """Where a reader stands: ``seq`` is the number of the next byte. What it had is not told
    twice, whatever is sent again after a reconnection."""

    def __init__(self, seq: int = 0) -> None:
        self.seq = seq
        self.exit: Exit | None = None
        self.refused: dict[str, Any] | None = None
        """What the server said before it closed the stream, if it did."""

    def take(self, message: str | bytes) -> Iterator[Item]:
        """Yield what a message tells. Raises :exc:`AnswerError`."""
        if isinstance(message, bytes):
            yield from self._output(message)
            return
        try:
            said = json.loads(message)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            raise AnswerError("The server sent something on a command's stream that is not JSON.")
        yield from self._told(said)

    def _output(self, message: bytes) -> Iterator[Item]:
        if len(message) < HEAD.size or message[0] not in SOURCES:
            raise AnswerError("The server sent output of a command that has no head.")
        kind, seq = HEAD.unpack_from(message)
        data = message[HEAD.size :]
        end = seq + len(data)
        if end <= self.seq:
            return
        if seq < self.seq:
            seq, data = self.seq, data[self.seq - seq :]
        self.seq = end
        yield Output(seq, SOURCES[kind], data)

    def _told(self, said: dict[str, Any]) -> Iterator[Item]:
        match fields.text(said, "type"):
            case "gap":
                gap = Gap(fields.number(said, "start"), fields.number(said, "end"))
                if gap.end > self.seq:
                    yield Gap(max(gap.start, self.seq), gap.end)
                    self.seq = gap.end
            case "paused":
                yield Paused()
            case "resumed":
                yield Resumed()
            case "exit":
                self.exit = Exit(
                    fields.perhaps_number(said, "code"),
                    fields.perhaps_number(said, "signal"),
                    fields.flag(said, "timed_out", False),
                )
                yield self.exit
            case "error":
                self.refused = said  # the close that follows has the status
            case _:
                pass  # a newer server's word


END_OF_INPUT = json.dumps({"type": "eof"}, separators=(",", ":"))


def resize(terminal: Terminal) -> str:
    """Return the message that tells of another size of the terminal."""
    return json.dumps({"type": "resize", "rows": terminal.rows, "columns": terminal.columns})


def signal(number: int) -> str:
    """Return the message that sends a signal."""
    return json.dumps({"type": "signal", "signal": number})


class Unsure:
    """How much input was sent so shortly before a loss that nobody knows whether it arrived."""

    def __init__(self) -> None:
        self._sent: deque[tuple[float, int]] = deque()

    def sent(self, size: int, now: float) -> None:
        """Note what was sent; ``now`` is a monotonic clock's."""
        self._sent.append((now, size))
        self._forget(now)

    def lost(self, now: float) -> int:
        """Return how many bytes may not have arrived."""
        self._forget(now)
        size = sum(size for _, size in self._sent)
        self._sent.clear()
        return size

    def _forget(self, now: float) -> None:
        while self._sent and self._sent[0][0] < now - UNSURE_SECONDS:
            self._sent.popleft()
