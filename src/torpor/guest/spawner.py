"""The process that starts commands.

It lives in the cgroup of the user's processes, so that what it starts is born there: moving a
process between cgroups waits for an RCU grace period (``kernel/cgroup/cgroup.c``,
``cgroup_attach_lock``), which each exec would pay. It is frozen with its cgroup, so a command that
is asked for during a freeze starts after the thaw.

Agent and spawner talk over a SOCK_SEQPACKET pair, one JSON object a message. To the spawner:
``{"id", "argv", "work", "env", "cwd", "user", "terminal"}`` with the descriptors of standard input,
output and error, or of the terminal that is all three. ``work`` is null, or names something that
the spawner does itself in a child (:mod:`torpor.guest.work`) in place of starting ``argv``. From
it: ``{"id", "pid"}`` or ``{"id", "error": {"code", "message"}}``, and later ``{"id",
"status"}`` with the wait status.
"""

import ctypes
import errno
import json
import os
import resource
import socket
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torpor.guest.descriptors import MOST, close_all, socket_pair
from torpor.guest.errors import describe
from torpor.guest.loop import READ, WRITE, Loop
from torpor.guest.starts import MAX_MESSAGE, Starts

CLONE_NEWCGROUP = 0x02000000
REAP_EVERY = 5.0


class Client:
    """The agent's end: asks for commands, never waits. ``said`` gets what the spawner says."""

    def __init__(
        self,
        loop: Loop,
        spawner: tuple[socket.socket, int],
        said: Callable[[dict[str, Any]], None],
    ) -> None:
        self._loop = loop
        self._said = said
        self._socket, self._pid = spawner
        self._socket.setblocking(False)
        self._unsent: deque[tuple[str, bytes, list[int]]] = deque()
        self._watch()

    def hand_over(self) -> dict[str, Any]:
        """Return all that this is, for :meth:`take_over`; it must not be used any more."""
        self._loop.forget(self._socket.fileno())
        return {"socket": self._socket.detach(), "pid": self._pid, "unsent": list(self._unsent)}

    @classmethod
    def take_over(
        cls, loop: Loop, said: Callable[[dict[str, Any]], None], left: dict[str, Any]
    ) -> "Client":
        """Go on with a spawner that another agent has started."""
        client = cls(loop, (socket.socket(fileno=left["socket"]), left["pid"]), said)
        client._unsent.extend(tuple(each) for each in left["unsent"])
        client._watch()
        return client

    def close(self) -> None:
        """Let the spawner go; it ends."""
        self._loop.forget(self._socket.fileno())
        self._socket.close()
        self._reap()

    def _reap(self) -> None:
        # Frozen with the user's processes it ends only once they run again.
        if os.waitpid(self._pid, os.WNOHANG) == (0, 0):
            self._loop.after(REAP_EVERY, self._reap)

    def start(self, message: dict[str, Any], *, stdin: bool) -> tuple[int | None, int, int]:
        """Ask for a command; return our ends of its input (or None), output and error pipes.

        Raises OSError, nothing being asked for then.
        """
        text = _encode(message)
        opened: list[int] = []
        try:
            if stdin:
                opened += os.pipe()
            else:
                opened += [os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), -1]
            opened += os.pipe()
            opened += os.pipe()
        except OSError:
            close_all(opened)
            raise
        their_in, our_in, our_out, their_out, our_err, their_err = opened
        for fd in (our_in, our_out, our_err):
            if fd >= 0:
                os.set_blocking(fd, False)
        self._unsent.append((message["id"], text, [their_in, their_out, their_err]))
        self._send()
        return (our_in if stdin else None), our_out, our_err

    def start_on(self, message: dict[str, Any], terminal: int) -> None:
        """Ask for a command on a terminal, which is closed here then. Raises OSError, nothing being
        asked for then."""
        try:
            text = _encode(message)
        except BaseException:
            os.close(terminal)
            raise
        self._unsent.append((message["id"], text, [terminal]))
        self._send()

    def _send(self) -> None:
        """Send what fits. While the spawner is frozen nothing is read, and the rest waits here."""
        while self._unsent:
            exec_id, text, fds = self._unsent[0]
            try:
                socket.send_fds(self._socket, [text], fds)
            except BlockingIOError:
                break
            except OSError as error:
                said = {"id": exec_id, "error": describe(error)}
                self._loop.after(0, partial(self._said, said))
            self._unsent.popleft()
            close_all(fds)
        self._watch()

    def _watch(self) -> None:
        self._loop.watch(self._socket.fileno(), READ | (WRITE if self._unsent else 0), self._ready)

    def _ready(self, _events: int) -> None:
        try:
            data = self._socket.recv(MAX_MESSAGE)
        except BlockingIOError:
            pass
        else:
            if not data:
                raise SystemExit("the spawner is gone")  # init starts agent and spawner anew
            self._said(json.loads(data))
        if self._unsent:
            self._send()


def _encode(message: dict[str, Any]) -> bytes:
    # A word of a command line is bytes: what is not UTF-8 comes as lone surrogates.
    text = json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")
    if len(text) > MAX_MESSAGE:
        raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
    return text


def fork_spawner(cgroup: str, limits: tuple[int, int]) -> tuple[socket.socket, int]:
    """Start a spawner in ``cgroup``; return the agent's end of its socket, and its process id.

    It is a fork without exec, so it shares the agent's memory. ``limits`` are those of the
    descriptors that a command may have open.
    """
    ours, theirs = socket_pair(MAX_MESSAGE)
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(theirs.fileno(), 3)
            os.closerange(4, MOST)  # of an agent that took over from another: its flows
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            _enter(cgroup)
            Starts(socket.socket(fileno=3)).serve()
        except BaseException as error:
            print(f"torpor spawner: {error!r}", file=sys.stderr, flush=True)
        finally:
            os._exit(0)
    theirs.close()
    return ours, pid


def _enter(cgroup: str) -> None:
    with open(f"{cgroup}/cgroup.procs", "w") as procs:
        procs.write("0")
    # From inside, the user's cgroup is the root: what a container engine makes stays frozen with
    # it.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWCGROUP) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWCGROUP)")
    # A group has processes or hands its controllers on, not both (Documentation/admin-guide/
    # cgroup-v2.rst, "No Internal Process Constraint"). So all live one level down, and a container
    # engine finds the root of its tree free.
    os.makedirs(f"{cgroup}/commands", exist_ok=True)
    with open(f"{cgroup}/commands/cgroup.procs", "w") as procs:
        procs.write("0")
    os.setsid()
    # What it starts is the user's, and may be killed for want of memory; the agent may not.
    Path("/proc/self/oom_score_adj").write_text("0")
