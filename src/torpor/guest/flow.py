"""A flow: what one command or connection in the machine writes and reads (see
:mod:`torpor.guest.streams`)."""

import fcntl
import os
import struct
import termios
from typing import Any

from torpor.guest.inputs import Input
from torpor.guest.log import Log
from torpor.guest.loop import Timer

STDOUT, STDERR = 1, 2


class FlowError(Exception):
    """A request about a flow that cannot be met; ``code`` goes to the host."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Flow:
    """What one command or connection writes (``outputs``, kept in ``log``) and reads (``input``).

    ``about`` is what the host is told of it beside the numbers. ``ending`` is how it ended, as END
    tells it, from when that is known; ``ended`` says that all of its output is in the log too.
    ``kind`` is one of :data:`torpor.guest.inputs.FINISH`. A connection ends when its output does or
    when nobody follows it any more, and is forgotten then; a command runs on, and its output can be
    replayed.
    """

    def __init__(
        self,
        flow_id: str,
        keep: int,
        about: dict[str, Any],
        kind: str = "pipes",
    ) -> None:
        self.id = flow_id
        self.about = about
        self.kind = kind
        self.log = Log(keep)
        self.room = keep
        self.ending: dict[str, Any] | None = None
        self.ended = False
        self.outputs: dict[int, int] = {}
        self.unread: dict[int, int] = {}
        self.attachments: list[Attachment] = []
        self.lost_holds: list[int] = []
        self.hold_timer: Timer | None = None
        self.input: Input
        self.input_from: Attachment | None = None

    @property
    def held_from(self) -> int | None:
        """The first byte of output that somebody who holds has not consumed; None if nobody
        holds."""
        holds = [each.acked for each in self.attachments if each.hold] + self.lost_holds
        return min(holds) if holds else None

    @property
    def full(self) -> bool:
        """Whether the writer is to wait for somebody who holds."""
        held_from = self.held_from
        return held_from is not None and self.log.end - held_from >= self.room

    @property
    def terminal(self) -> bool:
        """Whether it is that of a terminal."""
        return self.kind == "terminal"

    @property
    def connection(self) -> bool:
        """Whether it is a connection to a port."""
        return self.kind == "connection"

    def describe(self) -> dict[str, Any]:
        """Return what the host is told of this flow."""
        return {
            "id": self.id,
            **self.about,
            "running": self.ending is None,
            "start": self.log.start,
            "end": self.log.end,
            "stdin_seq": self.input.taken,
        }


class Attachment:
    """A follower of one flow's output on one stream of the channel."""

    def __init__(self, stream: int, flow: Flow, seq: int, window: int, hold: bool) -> None:
        self.stream = stream
        self.flow = flow
        self.seq = seq
        self.acked = seq
        self.window = window
        self.hold = hold
        self.input_acked = -1


def read_some(fd: int) -> bytes | None:
    """Return what can be read now, nothing at the end, None if there is nothing yet."""
    try:
        return os.read(fd, 64 << 10)
    except BlockingIOError:
        return None
    except OSError:
        # EIO: no process has the terminal open any more. ECONNRESET and its like: of a connection.
        return b""


def readable(fd: int) -> int:
    size: bytes = fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0")
    return int(struct.unpack("i", size)[0])
