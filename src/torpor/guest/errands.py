"""Small requests that may not come to an end, done by processes that can be left behind.

A file system whose server hangs holds whoever asks it, in the kernel. So while one is mounted that
may (:mod:`torpor.guest.mounts`), requests about files are done by forks of the agent, one request
at a time each. One that takes too long is answered without it, killed, and left to go when the
kernel lets it. Requests about the same path keep their order.
"""

import errno
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from torpor.guest import files, processes, wire
from torpor.guest.descriptors import MOST, socket_pair
from torpor.guest.errors import describe
from torpor.guest.loop import READ, Loop, Timer
from torpor.guest.mounts import Mounts

LIMIT = 8.0
"""Seconds that a request may take; a freeze waits for at most 10 until all are answered."""
AT_ONCE = 4
"""Processes that do requests at the same time."""
MOST_LEFT = 16
"""Processes that are left behind, and not gone yet, beyond which no request is begun."""
MAX_MESSAGE = 2 * wire.MAX_BODY

Answer = Callable[[bytes], None]
"""Answers a request with a payload, whenever that is."""


class Errand:
    """A request that waits or is being done."""

    def __init__(self, payload: bytes, key: str, answer: Answer) -> None:
        self.payload = payload
        self.key = key
        self.answer = answer

    def refuse(self, error: OSError) -> None:
        """Answer it with an error."""
        self.answer(wire.document({"error": describe(error)}))


class Runner:
    """A process that does one errand after the other."""

    def __init__(self) -> None:
        self.socket, theirs = socket_pair(MAX_MESSAGE)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.dup2(theirs.fileno(), 3)
                os.closerange(4, MOST)
                serve(socket.socket(fileno=3), os.getppid())
            except BaseException as error:
                print(f"torpor errands: {error!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(0)
        theirs.close()
        self.errand: Errand | None = None
        self.timer: Timer | None = None


class Errands:
    """The requests that are done in processes, and those processes."""

    def __init__(self, loop: Loop, mounts: Mounts, left: list[int] | None = None) -> None:
        """Begin with nothing, or with the processes that another agent has ``left`` behind."""
        self._loop = loop
        self._mounts = mounts
        self._waiting: list[Errand] = []
        self._runners: list[Runner] = []
        self._left: dict[int, int] = {}
        for pid in left or ():
            self._leave(pid)

    def needed(self) -> bool:
        """Return whether a request about files is to be done here: because it may not come to an
        end, or behind others that are. If not, no process is kept for it."""
        if self._mounts.may_hang or self._waiting:
            return True
        if any(each.errand is not None for each in self._runners):
            return True
        for runner in list(self._runners):
            self._end(runner)
        return False

    def start(self, wanted: dict[str, Any], payload: bytes, answer: Answer) -> None:
        """Have a request done; it is answered later. Raises OSError (EBUSY) if too many that came
        before it hang."""
        if len(self._left) >= MOST_LEFT:
            why = "too many requests wait for file systems that do not answer"
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), why)
        self._waiting.append(Errand(payload, str(wanted.get("path")), answer))
        self._go_on()

    def requests_lost(self) -> None:
        """The channel was lost: what has not been begun is wanted by nobody."""
        self._waiting.clear()

    def hand_over(self) -> list[int]:
        """End the processes, and return those that are left behind; this must not be used any
        more."""
        self._waiting.clear()
        for runner in list(self._runners):
            self._end(runner)
        for pidfd in self._left.values():
            self._loop.forget(pidfd)
            os.close(pidfd)
        return list(self._left)

    def _go_on(self) -> None:
        """Begin what can be begun."""
        busy = {each.errand.key for each in self._runners if each.errand is not None}
        for errand in list(self._waiting):
            if errand.key in busy:
                continue
            busy.add(errand.key)
            runner = next((each for each in self._runners if each.errand is None), None)
            if runner is None:
                if len(self._runners) >= AT_ONCE:
                    return
                try:
                    runner = self._new_runner()
                except OSError as error:
                    self._waiting.remove(errand)
                    errand.refuse(error)
                    continue
            self._waiting.remove(errand)
            self._begin(runner, errand)

    def _new_runner(self) -> Runner:
        runner = Runner()
        self._runners.append(runner)
        self._loop.watch(runner.socket.fileno(), READ, partial(self._ready, runner))
        return runner

    def _begin(self, runner: Runner, errand: Errand) -> None:
        runner.errand = errand
        runner.timer = self._loop.after(LIMIT, partial(self._too_slow, runner))
        runner.socket.send(errand.payload)  # it reads: it waits for this, and the message fits

    def _ready(self, runner: Runner, _events: int) -> None:
        """An errand has been done, or its process is gone."""
        answer = runner.socket.recv(MAX_MESSAGE)
        errand, runner.errand = runner.errand, None
        if runner.timer is not None:
            runner.timer.cancel()
        if not answer:
            self._end(runner)
            if errand is not None:
                errand.refuse(OSError(errno.EIO, "the process that did it has ended"))
        elif errand is not None:
            errand.answer(answer)
        self._go_on()
        idle = [each for each in self._runners if each.errand is None]
        for each in idle[1:]:
            self._end(each)

    def _too_slow(self, runner: Runner) -> None:
        """Leave a process behind that does not come to an end, and all that waits for the same."""
        assert runner.errand is not None
        key = runner.errand.key
        behind = [each for each in self._waiting if each.key == key]
        self._waiting = [each for each in self._waiting if each.key != key]
        for errand in (runner.errand, *behind):
            errand.refuse(OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), key))
        self._end(runner)
        self._go_on()

    def _end(self, runner: Runner) -> None:
        self._runners.remove(runner)
        if runner.timer is not None:
            runner.timer.cancel()
        self._loop.forget(runner.socket.fileno())
        runner.socket.close()
        os.kill(runner.pid, signal.SIGKILL)
        self._leave(runner.pid)

    def _leave(self, pid: int) -> None:
        """Note a process that has been killed, until it is gone."""
        pidfd = self._left[pid] = os.pidfd_open(pid)

        def gone(_events: int) -> None:
            self._loop.forget(pidfd)
            os.close(pidfd)
            os.waitpid(pid, 0)
            del self._left[pid]

        self._loop.watch(pidfd, READ, gone)


def serve(agent: socket.socket, agent_pid: int) -> None:
    """Do errands until the agent is gone."""
    while payload := agent.recv(MAX_MESSAGE):
        try:
            answer, data = do(*wire.parse_document(payload), agent_pid)
        except Exception as error:
            answer, data = {"error": describe(error)}, b""
        reply = wire.document(answer, data)
        if len(reply) > wire.MAX_BODY:
            reply = wire.document({"error": {"code": "EMSGSIZE", "message": "too long an answer"}})
        agent.send(reply)


def do(wanted: dict[str, Any], blob: bytes, agent_pid: int) -> tuple[dict[str, Any], bytes]:
    """Do one request; ``agent_pid`` is the process of the agent."""
    if wanted["op"] == "processes":
        execs = {int(pid): name for pid, name in wanted["execs"].items()}
        return processes.processes(wanted, execs, agent_pid), b""
    return files.do(wanted["op"], wanted, blob)
