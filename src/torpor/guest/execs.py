"""Commands, their kept output, and who is attached to it.

A command belongs to the machine: it starts with an id that the host chose, runs whether or not
anybody listens, and its output is kept in a bounded log. An *attachment* follows that log from a
sequence number on. One that *holds* makes the command wait when it falls behind, as a pipe would,
and goes on holding for a while after the channel is lost (a freeze, a restarted host), so that it
can attach again and miss nothing; one that does not hold is told of the gap instead.
"""

import fcntl
import os
import struct
import termios
from collections import deque
from functools import partial
from typing import Any

from torpor.guest import spawner, wire
from torpor.guest.inputs import Input
from torpor.guest.link import Link
from torpor.guest.log import Log
from torpor.guest.loop import READ, Loop, Timer
from torpor.guest.wire import Frame, Kind

KEEP = 1 << 20
"""Bytes of output kept of each command unless it asks for another amount."""
MAX_KEEP = 16 << 20
KEEP_FINISHED = 64
"""Finished commands whose output can still be replayed."""
KEEP_FINISHED_BYTES = 16 << 20
"""Bytes of output that all finished commands together keep, the last one's in any case."""
CHUNK = 24 << 10
HOLD_GRACE = 60.0
"""Seconds (of the machine's own running time) that a hold outlasts its attachment."""
SHOWN = 256
"""Characters of a command line that are told to the host, which must get all of them in a frame."""
STDOUT, STDERR = 1, 2


class ExecError(Exception):
    """A request about a command that cannot be met; ``code`` goes to the host."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Exec:
    """One command."""

    def __init__(self, exec_id: str, argv: list[str], keep: int) -> None:
        self.id = exec_id
        self.argv = shorten(argv)
        self.log = Log(keep)
        self.pid: int | None = None
        self.error: dict[str, str] | None = None
        self.status: int | None = None
        self.ended = False
        self.outputs: dict[int, int] = {}
        self.unread: dict[int, int] = {}
        self.attachments: list[Attachment] = []
        self.lost_holds: list[int] = []
        self.hold_timer: Timer | None = None
        self.room = keep
        self.input: Input
        self.input_from: Attachment | None = None

    @property
    def held_from(self) -> int | None:
        """The first byte of output that somebody who holds has not consumed; None if nobody
        holds."""
        holds = [each.acked for each in self.attachments if each.hold] + self.lost_holds
        return min(holds) if holds else None

    def describe(self) -> dict[str, Any]:
        """Return what the host is told of this command."""
        return {
            "id": self.id,
            "argv": self.argv,
            "pid": self.pid,
            "running": self.status is None,
            "start": self.log.start,
            "end": self.log.end,
            "stdin_seq": self.input.taken,
        }


class Attachment:
    """A follower of one command's output on one stream of the channel."""

    def __init__(self, stream: int, exec_: Exec, seq: int, window: int, hold: bool) -> None:
        self.stream = stream
        self.exec = exec_
        self.seq = seq
        self.acked = seq
        self.window = window
        self.hold = hold
        self.input_acked = -1


class Execs:
    """All commands of this machine, in the order of their starts, the finished ones of their
    ends."""

    def __init__(self, loop: Loop, cgroup: str) -> None:
        self._loop = loop
        self._spawner = spawner.Client(loop, cgroup, self._spawner_says)
        self._execs: dict[str, Exec] = {}
        self._attachments: dict[int, Attachment] = {}
        self._turns: deque[int] = deque()
        self._waiting: dict[str, list[int]] = {}
        self.link: Link  # set by the agent: link and commands know each other

    # Requests

    def start(self, request: int, wanted: dict[str, Any]) -> None:
        """Start the command that ``wanted`` describes, or find it by its id; answers later."""
        exec_id = str(wanted["id"])
        known = self._execs.get(exec_id)
        if known is None:
            known = self._spawn(exec_id, wanted)
        if wanted.get("stream") is not None:
            self._follow(known, wanted)
        if known.pid is not None:
            self._answer(request, known)
        else:
            self._waiting.setdefault(exec_id, []).append(request)

    def attach(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Follow a command from a sequence number on. Raises :exc:`ExecError`."""
        known = self._find(wanted)
        self._follow(known, wanted)
        return known.describe()

    def detach(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Stop following; an attachment that held lets go."""
        attachment = self._attachments.get(int(wanted["stream"]))
        if attachment is not None:
            self._remove(attachment)
            self._watch_outputs(attachment.exec)
            self._forget_oldest()
        return {}

    def signal(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Send a signal to the process group of a command. Raises :exc:`ExecError`."""
        known = self._find(wanted)
        if known.pid is None or known.status is not None:
            raise ExecError("ESRCH", f"command {known.id} is not running")
        os.killpg(known.pid, int(wanted["signal"]))
        return {}

    def list(self) -> dict[str, Any]:
        """Return every command that is still known."""
        return {"execs": [known.describe() for known in self._execs.values()]}

    def _find(self, wanted: dict[str, Any]) -> Exec:
        known = self._execs.get(str(wanted.get("id")))
        if known is None:
            raise ExecError("ENOENT", f"this machine knows no command {wanted.get('id')!r}")
        return known

    # Starting and ending

    def _spawn(self, exec_id: str, wanted: dict[str, Any]) -> Exec:
        argv = [str(word) for word in wanted["argv"]]
        if not argv:
            raise ExecError("EINVAL", "a command line has at least one word")
        new = Exec(exec_id, argv, min(int(wanted.get("keep") or KEEP), MAX_KEEP))
        message = {
            "id": exec_id,
            "argv": argv,
            "env": {str(k): str(v) for k, v in (wanted.get("env") or {}).items()},
            "cwd": wanted.get("cwd"),
            "user": str(wanted.get("user") or "0"),
        }
        stdin, out, err = self._spawner.start(message, stdin=bool(wanted.get("stdin")))
        new.input = Input(self._loop, stdin, partial(self._acknowledge_input, new))
        new.outputs = {out: STDOUT, err: STDERR}
        self._execs[exec_id] = new
        self._watch_outputs(new)
        return new

    def _spawner_says(self, said: dict[str, Any]) -> None:
        known = self._execs.get(said["id"])
        if known is None:
            return
        if "status" in said:
            known.status = said["status"]
            # All that the command itself wrote is in its pipes by now. What it left running may
            # hold them open for ever, so the end is counted in bytes, not awaited.
            known.unread = {fd: _readable(fd) for fd in known.outputs}
            self._end_if_read(known)
        elif "error" in said:
            known.error = said["error"]
            self._answer_waiting(known)
            for attachment in list(known.attachments):
                self._remove(attachment)
            self._let_go(known)
            known.input.close()
            self._drain(known)
            del self._execs[known.id]
        else:
            known.pid = said["pid"]
            self._answer_waiting(known)
        self.link.flush()

    def _answer_waiting(self, known: Exec) -> None:
        for request in self._waiting.pop(known.id, []):
            self._answer(request, known)

    def _answer(self, request: int, known: Exec) -> None:
        answer = known.describe() if known.error is None else {"error": known.error}
        self.link.send(Kind.REPLY, request, wire.document(answer))

    def _end_if_read(self, known: Exec) -> None:
        if known.ended or known.status is None or any(known.unread.values()):
            return
        known.ended = True
        known.input.close()
        self._drain(known)
        self._execs[known.id] = self._execs.pop(known.id)  # behind those that ended before
        self._forget_oldest()
        self.link.flush()

    def _forget_oldest(self) -> None:
        """Forget finished commands past what is kept, but none that somebody follows or held."""
        finished = [each for each in self._execs.values() if each.ended]
        kept = sum(each.log.end - each.log.start for each in finished)
        count = len(finished)
        for old in finished[:-1]:
            if count <= KEEP_FINISHED and kept <= KEEP_FINISHED_BYTES:
                return
            if not old.attachments and not old.lost_holds:
                count -= 1
                kept -= old.log.end - old.log.start
                del self._execs[old.id]

    # Output

    def _watch_outputs(self, known: Exec) -> None:
        held_from = known.held_from
        full = held_from is not None and known.log.end - held_from >= known.room
        for fd in known.outputs:
            if full:
                self._loop.forget(fd)
            else:
                self._loop.watch(fd, READ, partial(self._read, known, fd))

    def _read(self, known: Exec, fd: int, _events: int) -> None:
        try:
            data = os.read(fd, 64 << 10)
        except BlockingIOError:
            return
        if data:
            known.log.append(known.outputs[fd], data, known.held_from)
            self._watch_outputs(known)
        else:
            del known.outputs[fd]
            self._loop.forget(fd)
            os.close(fd)
        if fd in known.unread:
            known.unread[fd] = max(0, known.unread[fd] - len(data)) if data else 0
            self._end_if_read(known)
        self.link.flush()

    def _drain(self, known: Exec) -> None:
        """Read on after the end, and drop: a closed pipe would kill what the command left
        running."""
        for fd in known.outputs:
            self._loop.watch(fd, READ, partial(self._drop, fd))
        known.outputs = {}

    def _drop(self, fd: int, _events: int) -> None:
        try:
            if os.read(fd, 64 << 10):
                return
        except BlockingIOError:
            return
        self._loop.forget(fd)
        os.close(fd)

    def pull(self) -> bytes | None:
        """Return the next frame of stream data, the attachments taking turns; None if none is
        due."""
        for _ in range(len(self._turns)):
            stream = self._turns[0]
            self._turns.rotate(-1)
            attachment = self._attachments.get(stream)
            frame = None if attachment is None else self._next_frame(attachment)
            if frame is not None:
                return frame
            if attachment is None:
                self._turns.remove(stream)
        return None

    def _next_frame(self, attachment: Attachment) -> bytes | None:
        known, log = attachment.exec, attachment.exec.log
        room = attachment.acked + attachment.window - attachment.seq
        if attachment.seq < log.start and room > 0:
            gap = {"from": attachment.seq, "to": log.start}
            # The window moves with the gap and is not opened by it: else one who never reads would
            # be sent a window's worth with each gap.
            attachment.acked += log.start - attachment.seq
            attachment.seq = log.start
            self._watch_outputs(known)
            return wire.encode(Kind.GAP, attachment.stream, wire.document(gap))
        chunk = log.read(attachment.seq, min(CHUNK, room)) if room > 0 else None
        if chunk is not None:
            attachment.seq += len(chunk.data)
            return wire.encode(Kind.CHUNK, attachment.stream, wire.chunk(*chunk))
        if known.ended and attachment.seq == log.end:
            self._remove(attachment)
            return wire.encode(Kind.END, attachment.stream, wire.document(_ending(known)))
        return None

    # Attachments

    def _follow(self, known: Exec, wanted: dict[str, Any]) -> None:
        seq = int(wanted.get("seq") or 0)
        if seq > known.log.end:
            raise ExecError(
                "ESTALE",
                f"command {known.id} has written {known.log.end} bytes here, not {seq}: this"
                " machine comes from a snapshot from before the rest was written",
            )
        window = max(1, int(wanted["window"]))
        attachment = Attachment(int(wanted["stream"]), known, seq, window, bool(wanted.get("hold")))
        self._attachments[attachment.stream] = attachment
        known.attachments.append(attachment)
        self._turns.append(attachment.stream)
        if attachment.hold:
            known.room = max(known.room, window)
            # It takes over from the one that was lost where it goes on.
            lost = [held for held in known.lost_holds if held <= seq]
            if lost:
                known.lost_holds.remove(max(lost))
            if not known.lost_holds:
                self._let_go(known)
        self._watch_outputs(known)

    def _remove(self, attachment: Attachment) -> None:
        known = attachment.exec
        self._attachments.pop(attachment.stream, None)
        known.attachments.remove(attachment)
        if known.input_from is attachment:  # no reference cycles: what is forgotten goes at once
            known.input_from = None

    def attachments_lost(self) -> None:
        """The channel was lost or began anew: nobody is attached; holds last for a grace time."""
        for attachment in list(self._attachments.values()):
            known = attachment.exec
            self._remove(attachment)
            if attachment.hold:
                known.lost_holds.append(attachment.acked)
                if known.hold_timer is not None:
                    known.hold_timer.cancel()
                known.hold_timer = self._loop.after(HOLD_GRACE, partial(self._let_go, known))
        self._turns.clear()
        self._waiting.clear()

    def _let_go(self, known: Exec) -> None:
        if known.hold_timer is not None:
            known.hold_timer.cancel()
            known.hold_timer = None
        known.lost_holds.clear()
        self._watch_outputs(known)
        if known.ended:
            self._forget_oldest()

    def frame(self, frame: Frame) -> None:
        """Take an ACK, CHUNK or END of a stream from the host."""
        attachment = self._attachments.get(frame.stream)
        if attachment is None:
            return
        known = attachment.exec
        if frame.kind == Kind.ACK:
            attachment.acked = max(attachment.acked, wire.parse_ack(frame.payload))
            self._watch_outputs(known)
        elif frame.kind == Kind.CHUNK:
            known.input_from = attachment
            known.input.take(wire.parse_chunk(frame.payload))
            self._acknowledge_input(known)
        elif frame.kind == Kind.END:
            known.input_from = attachment
            known.input.end_at(int(wire.parse_document(frame.payload)[0]["bytes"]))

    def _acknowledge_input(self, known: Exec) -> None:
        """Tell who sends the input how much of it is taken, if they do not know."""
        sender = known.input_from
        if sender is None or sender.input_acked == known.input.taken:
            return
        sender.input_acked = known.input.taken
        self.link.send(Kind.ACK, sender.stream, wire.ack(known.input.taken))
        self.link.flush()


def shorten(argv: list[str]) -> list[str]:
    """Return a command line cut down to what is shown of it."""
    shown = []
    left = SHOWN
    for word in argv:
        shown.append(word[:left])
        left -= len(word) + 1
        if left <= 0:
            return [*shown, "..."]
    return shown


def _readable(fd: int) -> int:
    size: bytes = fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0")
    return int(struct.unpack("i", size)[0])


def _ending(known: Exec) -> dict[str, Any]:
    status = known.status or 0
    signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    code = os.waitstatus_to_exitcode(status) if signal is None else None
    return {"exit": code, "signal": signal, "bytes": known.log.end}
