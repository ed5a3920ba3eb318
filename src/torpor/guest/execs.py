"""Commands, their kept output, and who is attached to it.

A command belongs to the machine: it starts with an id that the host chose, runs whether or not
anybody listens, and its output is kept in a bounded log. An *attachment* follows that log from a
sequence number on. One that *holds* makes the command wait when it falls behind, as a pipe would,
and goes on holding for a while after the channel is lost (a freeze, a restarted host), so that it
can attach again and miss nothing; one that does not hold is told of the gap instead.
"""

import fcntl
import json
import os
import socket
import struct
import termios
from collections import deque
from functools import partial
from typing import Any

from torpor.guest import spawner, wire
from torpor.guest.link import Link
from torpor.guest.log import Log
from torpor.guest.loop import READ, WRITE, Loop, Timer
from torpor.guest.wire import Frame, Kind

KEEP = 1 << 20
"""Bytes of output kept of each command unless it asks for another amount."""
MAX_KEEP = 16 << 20
KEEP_FINISHED = 64
"""Finished commands whose output can still be replayed."""
CHUNK = 24 << 10
HOLD_GRACE = 60.0
"""Seconds (of the machine's own running time) that a hold outlasts its attachment."""
STDIN_WINDOW = 256 << 10
HOLD_ROOM = 256 << 10
"""Bytes that a held command may be ahead of its follower, even if fewer are kept: the follower
acknowledges in steps, and would wait for more while the command waits for it."""
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
        self.argv = argv
        self.log = Log(keep)
        self.pid: int | None = None
        self.error: dict[str, str] | None = None
        self.status: int | None = None
        self.ended = False
        self.outputs: dict[int, int] = {}
        self.unread: dict[int, int] = {}
        self.held_from: int | None = None
        self.hold_timer: Timer | None = None
        self.stdin: int | None = None
        self.stdin_seq = 0
        self.stdin_end: int | None = None
        self.stdin_unwritten: deque[bytes] = deque()

    def describe(self) -> dict[str, Any]:
        """Return what the host is told of this command."""
        return {
            "id": self.id,
            "argv": self.argv,
            "pid": self.pid,
            "running": self.status is None,
            "start": self.log.start,
            "end": self.log.end,
            "stdin_seq": self.stdin_seq,
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


class Execs:
    """All commands of this machine."""

    def __init__(self, loop: Loop, cgroup: str) -> None:
        self._loop = loop
        self._spawner = spawner.fork_spawner(cgroup)
        self._execs: dict[str, Exec] = {}
        self._attachments: dict[int, Attachment] = {}
        self._turns: deque[int] = deque()
        self._waiting: dict[str, list[int]] = {}
        self.link: Link  # set by the agent: link and commands know each other
        loop.watch(self._spawner.fileno(), READ, lambda _events: self._spawner_says())

    # Requests

    def start(self, request: int, wanted: dict[str, Any]) -> None:
        """Start the command that ``wanted`` describes, or find it by its id; answers later."""
        exec_id = str(wanted["id"])
        known = self._execs.get(exec_id)
        if known is None:
            known = self._spawn(exec_id, wanted)
        if wanted.get("stream") is not None:
            self._follow(known, wanted)
        if known.pid is not None or known.error is not None:
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
        attachment = self._attachments.pop(int(wanted["stream"]), None)
        if attachment is not None and attachment.hold:
            self._let_go(attachment.exec)
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
        new = Exec(exec_id, argv, min(int(wanted.get("keep") or KEEP), MAX_KEEP))
        message = {
            "id": exec_id,
            "argv": argv,
            "env": {str(k): str(v) for k, v in (wanted.get("env") or {}).items()},
            "cwd": wanted.get("cwd"),
            "user": str(wanted.get("user") or "0"),
        }
        text = json.dumps(message).encode()
        if not argv or len(text) > spawner.MAX_MESSAGE:
            new.error = {"code": "E2BIG" if argv else "EINVAL", "message": "no usable command line"}
            return new
        inputs: tuple[int, int | None]
        if wanted.get("stdin"):
            inputs = os.pipe()
        else:
            inputs = os.open("/dev/null", os.O_RDONLY), None
        out, err = os.pipe(), os.pipe()
        theirs = [inputs[0], out[1], err[1]]
        try:
            socket.send_fds(self._spawner, [text], theirs)
        finally:
            for fd in theirs:
                os.close(fd)
        new.stdin = inputs[1]
        new.outputs = {out[0]: STDOUT, err[0]: STDERR}
        ours = list(new.outputs) if new.stdin is None else [new.stdin, *new.outputs]
        for fd in ours:
            os.set_blocking(fd, False)
        self._execs[exec_id] = new
        self._watch_outputs(new)
        return new

    def _spawner_says(self) -> None:
        data = self._spawner.recv(spawner.MAX_MESSAGE)
        if not data:
            raise SystemExit("the spawner is gone")  # init starts agent and spawner anew
        said = json.loads(data)
        known = self._execs.get(said["id"])
        if known is None:
            return
        if "status" in said:
            known.status = said["status"]
            # All that the command itself wrote is in its pipes by now. What it left running may
            # hold them open for ever, so the end is counted in bytes, not awaited.
            known.unread = {fd: _readable(fd) for fd in known.outputs}
            self._end_if_read(known)
            return
        known.pid = said.get("pid")
        known.error = said.get("error")
        for request in self._waiting.pop(known.id, []):
            self._answer(request, known)
        if known.error is not None:
            self._close(known)
            del self._execs[known.id]
            for stream in [s for s, a in self._attachments.items() if a.exec is known]:
                del self._attachments[stream]
        self.link.flush()

    def _answer(self, request: int, known: Exec) -> None:
        answer = known.describe() if known.error is None else {"error": known.error}
        self.link.send(Kind.REPLY, request, wire.document(answer))

    def _end_if_read(self, known: Exec) -> None:
        if known.ended or known.status is None or any(known.unread.values()):
            return
        known.ended = True
        self._watch_outputs(known)
        if known.stdin is not None:
            self._close_stdin(known)
        finished = [each for each in self._execs.values() if each.ended]
        for old in finished[: max(0, len(finished) - KEEP_FINISHED)]:
            if not any(each.exec is old for each in self._attachments.values()):
                self._close(old)
                del self._execs[old.id]
        self.link.flush()

    def _close(self, known: Exec) -> None:
        for fd in known.outputs:
            self._loop.forget(fd)
            os.close(fd)
        known.outputs = {}
        if known.stdin is not None:
            self._close_stdin(known)

    # Output

    def _watch_outputs(self, known: Exec) -> None:
        full = (
            known.held_from is not None
            and known.log.end - known.held_from >= max(known.log.keep, HOLD_ROOM)
        ) and not known.ended
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
        if data and not known.ended:
            known.log.append(known.outputs[fd], data, known.held_from)
            self._watch_outputs(known)
        elif not data:
            del known.outputs[fd]
            self._loop.forget(fd)
            os.close(fd)
        # Read on after the end, and drop: a closed pipe would kill what the command left running.
        if fd in known.unread:
            known.unread[fd] = max(0, known.unread[fd] - len(data)) if data else 0
            self._end_if_read(known)
        self.link.flush()

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
        log = attachment.exec.log
        if attachment.seq < log.start:
            gap = {"from": attachment.seq, "to": log.start}
            # What is lost takes nothing of the window, and what is not yet read still does.
            attachment.acked += log.start - attachment.seq
            attachment.seq = log.start
            return wire.encode(Kind.GAP, attachment.stream, wire.document(gap))
        room = attachment.acked + attachment.window - attachment.seq
        chunk = log.read(attachment.seq, min(CHUNK, room)) if room > 0 else None
        if chunk is not None:
            attachment.seq += len(chunk.data)
            return wire.encode(Kind.CHUNK, attachment.stream, wire.chunk(*chunk))
        if attachment.exec.ended and attachment.seq == log.end:
            del self._attachments[attachment.stream]
            return wire.encode(Kind.END, attachment.stream, wire.document(_ending(attachment.exec)))
        return None

    # Attachments

    def _follow(self, known: Exec, wanted: dict[str, Any]) -> None:
        stream = int(wanted["stream"])
        seq = min(int(wanted.get("seq") or 0), known.log.end)
        window = max(1, int(wanted["window"]))
        hold = bool(wanted.get("hold"))
        self._attachments[stream] = Attachment(stream, known, seq, window, hold)
        self._turns.append(stream)
        if hold:
            if known.hold_timer is not None:
                known.hold_timer.cancel()
                known.hold_timer = None
            known.held_from = seq
            self._watch_outputs(known)  # it may have waited for the follower before

    def attachments_lost(self) -> None:
        """The channel began anew: nobody is attached; holds last for a grace time."""
        for attachment in self._attachments.values():
            if attachment.hold:
                known = attachment.exec
                known.hold_timer = self._loop.after(HOLD_GRACE, partial(self._let_go, known))
        self._attachments.clear()
        self._turns.clear()
        self._waiting.clear()

    def _let_go(self, known: Exec) -> None:
        known.held_from = None
        known.hold_timer = None
        self._watch_outputs(known)

    def frame(self, frame: Frame) -> None:
        """Take an ACK, CHUNK or END of a stream from the host."""
        attachment = self._attachments.get(frame.stream)
        if attachment is None:
            return
        known = attachment.exec
        if frame.kind == Kind.ACK:
            attachment.acked = max(attachment.acked, wire.parse_ack(frame.payload))
            if attachment.hold:
                known.held_from = attachment.acked
                self._watch_outputs(known)
        elif frame.kind == Kind.CHUNK and known.stdin is not None:
            seq, _, data = wire.parse_chunk(frame.payload)
            fresh = data[max(0, self._stdin_expected(known) - seq) :]
            if fresh:
                known.stdin_unwritten.append(fresh)
                self._write_stdin(known, attachment.stream)
        elif frame.kind == Kind.END:
            known.stdin_end = int(wire.parse_document(frame.payload)[0]["bytes"])
            self._write_stdin(known, attachment.stream)

    # Standard input

    def _stdin_expected(self, known: Exec) -> int:
        return known.stdin_seq + sum(map(len, known.stdin_unwritten))

    def _write_stdin(self, known: Exec, stream: int) -> None:
        if known.stdin is None:
            return
        before = known.stdin_seq
        try:
            while known.stdin_unwritten:
                data = known.stdin_unwritten[0]
                written = os.write(known.stdin, data)
                known.stdin_seq += written
                if written == len(data):
                    known.stdin_unwritten.popleft()
                else:
                    known.stdin_unwritten[0] = data[written:]
        except BlockingIOError:
            self._loop.watch(known.stdin, WRITE, lambda _events: self._write_stdin(known, stream))
        except BrokenPipeError:
            known.stdin_seq = self._stdin_expected(known)  # nobody reads: taken as read
            self._close_stdin(known)
        else:
            self._loop.forget(known.stdin)
            if known.stdin_end is not None and known.stdin_seq >= known.stdin_end:
                self._close_stdin(known)
        if known.stdin_seq != before and stream in self._attachments:
            self.link.send(Kind.ACK, stream, wire.ack(known.stdin_seq))
            self.link.flush()

    def _close_stdin(self, known: Exec) -> None:
        if known.stdin is not None:
            self._loop.forget(known.stdin)
            os.close(known.stdin)
            known.stdin = None
            known.stdin_unwritten.clear()


def _readable(fd: int) -> int:
    size: bytes = fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0")
    return int(struct.unpack("i", size)[0])


def _ending(known: Exec) -> dict[str, Any]:
    status = known.status or 0
    signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    code = os.waitstatus_to_exitcode(status) if signal is None else None
    return {"exit": code, "signal": signal, "bytes": known.log.end}
