"""Commands: started by the spawner, told apart by an id that the host chose.

A command belongs to the machine and not to a connection: its output and input are a *flow*
(:mod:`torpor.guest.streams`), and it runs on whether or not anybody follows.
"""

import fcntl
import os
import resource
import signal
import struct
import termios
import time
from functools import partial
from typing import Any

from torpor.guest import spawner, succession
from torpor.guest.descriptors import allow_many_descriptors
from torpor.guest.flow import STDERR, STDOUT, Flow, FlowError
from torpor.guest.link import Answer
from torpor.guest.loop import Loop, Timer
from torpor.guest.streams import Flows

KEEP = 1 << 20
"""Bytes of output kept of each command unless it asks for another amount."""
MAX_KEEP = 16 << 20
SHOWN = 256
"""Characters of a command line that are told to the host, which must get all of them in a frame."""
TERM_GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL to a command that is over its time limit."""


class Exec:
    """A command while it starts and runs. Its flow outlives it."""

    def __init__(self, flow: Flow, terminal: int | None, limit: float | None) -> None:
        self.flow = flow
        self.terminal = terminal
        self.limit = limit
        self.pid: int | None = None
        self.signals: list[int] = []
        """What it is to be sent as soon as it runs."""
        self.waiting: list[Answer] = []
        self.due: float | None = None
        self.timer: Timer | None = None
        self.timed_out = False


class Execs:
    """The commands that are starting or running."""

    def __init__(
        self, loop: Loop, cgroup: str, flows: Flows, left: dict[str, Any] | None = None
    ) -> None:
        """Begin with no command, or go on with those that another agent has ``left``."""
        self._loop = loop
        self._flows = flows
        self._running: dict[str, Exec] = {}
        # What commands may open is what this process might, before it was allowed more.
        self._limits = (
            resource.getrlimit(resource.RLIMIT_NOFILE) if left is None else left["limits"]
        )
        started = spawner.fork_spawner(cgroup, self._limits)
        allow_many_descriptors()
        self._spawner = spawner.Client(loop, started, self._spawner_says)
        self._older: list[spawner.Client] = []
        self._of_older: set[str] = set()
        if left is not None:
            self._take_over(left)

    def start(self, wanted: dict[str, Any], _received_ns: int, answer: Answer) -> None:
        """Start the command that ``wanted`` describes, or find it by its id; answers later."""
        exec_id = str(wanted["id"])
        flow = self._flows.get(exec_id)
        if flow is None:
            flow = self._spawn(exec_id, wanted).flow
        if wanted.get("stream") is not None:
            self._flows.follow(flow, wanted)
        known = self._running.get(exec_id)
        if known is not None and known.pid is None:
            known.waiting.append(answer)
        else:
            answer(flow.describe())

    def signal(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Send a signal to the process group of a command. Raises :exc:`FlowError`."""
        known = self._find(wanted)
        number = int(wanted["signal"])
        if known.pid is None:  # once it runs
            if not 0 <= number < signal.NSIG:
                raise FlowError("EINVAL", f"there is no signal {number}")
            known.signals.append(number)
        else:
            os.killpg(known.pid, number)
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

    def _find(self, wanted: dict[str, Any]) -> Exec:
        flow = self._flows.find(wanted)
        known = self._running.get(flow.id)
        if known is None:
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
        flow = Flow(exec_id, keep, about, "pipes" if size is None else "terminal")
        limit = int(wanted["limit_ms"]) / 1000 if wanted.get("limit_ms") else None
        if size is None:
            stdin, out, err = self._spawner.start(message, stdin=bool(wanted.get("stdin")))
            new = Exec(flow, None, limit)
            self._flows.add(flow, {out: STDOUT, err: STDERR}, stdin)
        else:
            shown, typed, terminal = self._start_on_terminal(message, size)
            new = Exec(flow, terminal, limit)
            self._flows.add(flow, {shown: STDOUT}, typed)
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
            if known.limit is not None:
                self._call_at(known, time.monotonic() + known.limit)
            self._answer(known, flow.describe())
            for number in known.signals:
                os.killpg(known.pid, number)
            known.signals.clear()
        self._flows.link.flush()

    def _answer(self, known: Exec, answer: dict[str, Any]) -> None:
        for each in known.waiting:
            each(answer)
        known.waiting.clear()

    # Ending

    def _call_at(self, known: Exec, due: float) -> None:
        known.due = due
        known.timer = self._loop.after(due - time.monotonic(), partial(self._over, known))

    def _over(self, known: Exec) -> None:
        """End a command that has run for as long as it may: first by asking."""
        assert known.pid is not None
        number = signal.SIGKILL if known.timed_out else signal.SIGTERM
        known.timed_out = True
        try:
            os.killpg(known.pid, number)
        except ProcessLookupError:
            return  # it has ended, and its status is on the way
        self._call_at(known, time.monotonic() + TERM_GRACE)

    def _forget(self, known: Exec) -> None:
        if known.timer is not None:
            known.timer.cancel()
        if known.terminal is not None:
            os.close(known.terminal)
        del self._running[known.flow.id]
        self._of_older.discard(known.flow.id)
        self._close_older()

    def _close_older(self) -> None:
        """Let the older spawners go when none of their commands runs any more."""
        if self._older and not self._of_older:
            for client in self._older:
                client.close()
            self._older.clear()
            succession.remove_older()

    # Succession

    def hand_over(self) -> dict[str, Any]:
        """Return all commands for another agent; these must not be used any more."""
        return {
            "limits": self._limits,
            "spawners": [each.hand_over() for each in (*self._older, self._spawner)],
            "running": [
                {
                    "id": known.flow.id,
                    "terminal": known.terminal,
                    "limit": known.limit,
                    "pid": known.pid,
                    "due": known.due,
                    "timed_out": known.timed_out,
                    "signals": known.signals,
                }
                for known in self._running.values()
            ],
        }

    def _take_over(self, left: dict[str, Any]) -> None:
        """Go on with the commands of another agent. Their parents, its spawners, stay for as long
        as one runs."""
        for each in left["running"]:
            flow = self._flows.get(each["id"])
            assert flow is not None
            known = Exec(flow, each["terminal"], each["limit"])
            known.pid, known.timed_out = each["pid"], each["timed_out"]
            known.signals = each.get("signals", [])
            self._running[flow.id] = known
            self._of_older.add(flow.id)
            if each["due"] is not None:
                self._call_at(known, each["due"])
        for each in left["spawners"]:
            client = spawner.Client.take_over(self._loop, self._spawner_says, each)
            self._older.append(client)
        self._close_older()


def _set_size(terminal: int, size: dict[str, Any]) -> None:
    rows, columns = int(size["rows"]), int(size["columns"])
    if not (0 < rows < 1 << 16 and 0 < columns < 1 << 16):
        raise FlowError("EINVAL", f"a terminal cannot have {rows} rows and {columns} columns")
    packed = struct.pack("HHHH", rows, columns, 0, 0)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, packed)


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
