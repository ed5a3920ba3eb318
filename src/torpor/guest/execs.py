"""Commands: started by the spawner, told apart by an id that the host chose.

A command belongs to the machine and not to a connection: its output and input are a *flow*
(:mod:`torpor.guest.streams`), and it runs on whether or not anybody follows.
"""

import fcntl
import os
import signal
import struct
import termios
from functools import partial
from typing import Any

from torpor.guest import spawner, wire
from torpor.guest.loop import Loop, Timer
from torpor.guest.streams import STDERR, STDOUT, Flow, FlowError, Flows
from torpor.guest.wire import Kind

KEEP = 1 << 20
"""Bytes of output kept of each command unless it asks for another amount."""
MAX_KEEP = 16 << 20
SHOWN = 256
"""Characters of a command line that are told to the host, which must get all of them in a frame."""
TERM_GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL to a command that is over its time limit."""


class Exec:
    """A command while it starts and runs. Its flow outlives it."""

    def __init__(self, flow: Flow, terminal: int | None) -> None:
        self.flow = flow
        self.terminal = terminal
        self.pid: int | None = None
        self.waiting: list[int] = []
        self.limit: Timer | None = None
        self.limit_seconds: float | None = None
        self.timed_out = False


class Execs:
    """The commands that are starting or running."""

    def __init__(self, loop: Loop, cgroup: str, flows: Flows) -> None:
        self._loop = loop
        self._spawner = spawner.Client(loop, cgroup, self._spawner_says)
        self._flows = flows
        self._running: dict[str, Exec] = {}

    def start(self, request: int, wanted: dict[str, Any]) -> None:
        """Start the command that ``wanted`` describes, or find it by its id; answers later."""
        exec_id = str(wanted["id"])
        flow = self._flows.get(exec_id)
        if flow is None:
            flow = self._spawn(exec_id, wanted).flow
        if wanted.get("stream") is not None:
            self._flows.follow(flow, wanted)
        known = self._running.get(exec_id)
        if known is not None and known.pid is None:
            known.waiting.append(request)
        else:
            self._flows.link.send(Kind.REPLY, request, wire.document(flow.describe()))

    def signal(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Send a signal to the process group of a command. Raises :exc:`FlowError`."""
        known = self._find(wanted)
        assert known.pid is not None
        os.killpg(known.pid, int(wanted["signal"]))
        return {}

    def resize(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Give a command's terminal another size; the kernel tells it so with SIGWINCH."""
        known = self._find(wanted)
        if known.terminal is None:
            raise FlowError("ENOTTY", f"command {known.flow.id} has no terminal")
        _set_size(known.terminal, wanted)
        return {}

    def list(self) -> dict[str, Any]:
        """Return every command that is still known."""
        return {"execs": [flow.describe() for flow in self._flows.all() if "argv" in flow.about]}

    def requests_lost(self) -> None:
        """The channel was lost: nobody waits for answers any more."""
        for known in self._running.values():
            known.waiting.clear()

    def _find(self, wanted: dict[str, Any]) -> Exec:
        flow = self._flows.find(wanted)
        known = self._running.get(flow.id)
        if known is None or known.pid is None:
            raise FlowError("ESRCH", f"command {flow.id} is not running")
        return known

    # Starting

    def _spawn(self, exec_id: str, wanted: dict[str, Any]) -> Exec:
        work = wanted.get("work")
        argv = [f"({work['name']})"] if work else [str(word) for word in wanted["argv"]]
        if not argv:
            raise FlowError("EINVAL", "a command line has at least one word")
        size = wanted.get("terminal")
        message = {
            "id": exec_id,
            "argv": argv,
            "work": work,
            "env": {str(k): str(v) for k, v in (wanted.get("env") or {}).items()},
            "cwd": wanted.get("cwd"),
            "user": str(wanted.get("user") or "0"),
            "terminal": size is not None,
        }
        keep = min(int(wanted.get("keep") or KEEP), MAX_KEEP)
        about = {"argv": shorten(argv), "pid": None}
        flow = Flow(exec_id, keep, about, terminal=size is not None)
        if size is None:
            stdin, out, err = self._spawner.start(message, stdin=bool(wanted.get("stdin")))
            new = Exec(flow, None)
            self._flows.add(flow, {out: STDOUT, err: STDERR}, stdin)
        else:
            shown, typed, terminal = self._start_on_terminal(message, size)
            new = Exec(flow, terminal)
            self._flows.add(flow, {shown: STDOUT}, typed, _type_end)
        if wanted.get("limit_ms"):
            new.limit_seconds = int(wanted["limit_ms"]) / 1000
        self._running[exec_id] = new
        return new

    def _start_on_terminal(
        self, message: dict[str, Any], size: dict[str, Any]
    ) -> tuple[int, int, int]:
        """Start a command on a new terminal; return our side of it three times: to read what is
        shown, to write what is typed, to change its size. Each is closed at a time of its own."""
        ours, theirs = os.openpty()
        opened = [ours]
        try:
            opened += [os.dup(ours), os.dup(ours)]
            os.set_blocking(ours, False)
            _set_size(ours, size)
            self._spawner.start_on(message, os.dup(theirs))
        except BaseException:
            for fd in opened:
                os.close(fd)
            raise
        finally:
            os.close(theirs)
        shown, typed, terminal = opened
        return shown, typed, terminal

    def _spawner_says(self, said: dict[str, Any]) -> None:
        known = self._running.get(said["id"])
        if known is None:
            return
        flow = known.flow
        if "status" in said:
            self._forget(known)
            self._flows.finish(flow, ending_of(said["status"], timed_out=known.timed_out))
        elif "error" in said:
            self._forget(known)
            self._answer(known, {"error": said["error"]})
            self._flows.discard(flow)
        else:
            known.pid = flow.about["pid"] = said["pid"]
            if known.limit_seconds is not None:
                known.limit = self._loop.after(known.limit_seconds, partial(self._over, known))
            self._answer(known, flow.describe())
        self._flows.link.flush()

    def _answer(self, known: Exec, answer: dict[str, Any]) -> None:
        for request in known.waiting:
            self._flows.link.send(Kind.REPLY, request, wire.document(answer))
        known.waiting.clear()

    # Ending

    def _over(self, known: Exec) -> None:
        """End a command that has run for as long as it may: first by asking."""
        assert known.pid is not None
        number = signal.SIGKILL if known.timed_out else signal.SIGTERM
        known.timed_out = True
        try:
            os.killpg(known.pid, number)
        except ProcessLookupError:
            return  # it has ended, and its status is on the way
        known.limit = self._loop.after(TERM_GRACE, partial(self._over, known))

    def _forget(self, known: Exec) -> None:
        if known.limit is not None:
            known.limit.cancel()
        if known.terminal is not None:
            os.close(known.terminal)
        del self._running[known.flow.id]


def _set_size(terminal: int, size: dict[str, Any]) -> None:
    rows, columns = int(size["rows"]), int(size["columns"])
    if not (0 < rows < 1 << 16 and 0 < columns < 1 << 16):
        raise FlowError("EINVAL", f"a terminal cannot have {rows} rows and {columns} columns")
    packed = struct.pack("HHHH", rows, columns, 0, 0)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, packed)


def _type_end(terminal: int) -> None:
    """End the input of a terminal as a person does: with its end-of-file character, where lines are
    put together. Elsewhere that would be a byte like any other, and nothing is done."""
    _, _, _, modes, _, _, characters = termios.tcgetattr(terminal)
    if modes & termios.ICANON:
        os.write(terminal, characters[termios.VEOF])


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


def ending_of(status: int, *, timed_out: bool) -> dict[str, Any]:
    """Return what END says of a wait status."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    code = os.waitstatus_to_exitcode(status) if number is None else None
    return {"exit": code, "signal": number, "timed_out": timed_out}
