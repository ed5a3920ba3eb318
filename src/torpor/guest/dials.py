"""Connections to ports inside the machine, for the host.

They are the agent's own sockets, not those of a process of the user: a connection ends when whoever
asked for it leaves, and after a freeze it goes on where it was, if they come back in time.
"""

import errno
import os
import socket
from typing import Any

from torpor.guest.errors import describe
from torpor.guest.flow import STDOUT, Flow, FlowError
from torpor.guest.link import Answer
from torpor.guest.loop import WRITE, Loop, Timer
from torpor.guest.streams import Flows

KEEP = 256 << 10
"""Bytes from the port that are kept for whoever attaches again."""
CONNECT_LIMIT = 5.0
"""Seconds; a freeze waits for at most 10 until every request is answered."""
MOST = 1024
"""Connections at a time."""
ADDRESSES = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
"""Where a port is looked for, in this order: a server may listen at one of the two alone."""


class Dials:
    """Makes connections; once made, they are flows."""

    def __init__(self, loop: Loop, flows: Flows) -> None:
        self._loop = loop
        self._flows = flows
        self._pending: set[Dial] = set()

    def start(self, wanted: dict[str, Any], _received_ns: int, answer: Answer) -> None:
        """Connect to the port that ``wanted`` names; answers later. Raises :exc:`FlowError`."""
        known = self._flows.get(str(wanted["id"]))
        if known is not None:
            raise FlowError("EEXIST", f"there is a flow {wanted['id']!r} already")
        open_now = sum(flow.connection for flow in self._flows.all())
        if open_now + len(self._pending) >= MOST:
            raise FlowError("EMFILE", f"{MOST} connections into this machine are open already")
        port = int(wanted["port"])
        if not 0 < port < 1 << 16:
            raise FlowError("EINVAL", f"{port} is no port")
        dial = Dial(answer, wanted, port)
        self._pending.add(dial)
        self._try(dial)

    def requests_lost(self) -> None:
        """The channel was lost: nobody waits for answers any more."""
        for dial in list(self._pending):
            self._leave(dial)

    def _try(self, dial: "Dial") -> None:
        """Try the next address."""
        family, address = dial.addresses.pop(0)
        try:
            dial.sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            dial.sock.setblocking(False)
            dial.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            problem = dial.sock.connect_ex((address, dial.port))
        except OSError as error:  # no descriptor, or no IPv6
            problem = error.errno or errno.EIO
        if problem not in (0, errno.EINPROGRESS) or dial.sock is None:
            self._failed(dial, problem)
            return
        dial.limit = self._loop.after(CONNECT_LIMIT, lambda: self._failed(dial, errno.ETIMEDOUT))
        self._loop.watch(dial.sock.fileno(), WRITE, lambda _events: self._connected(dial))

    def _connected(self, dial: "Dial") -> None:
        assert dial.sock is not None
        problem = dial.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if problem:
            self._failed(dial, problem)
            return
        try:
            answer = self._open(dial).describe()
        except (OSError, FlowError, KeyError, ValueError, TypeError) as error:
            self._refuse(dial, error)
        else:
            dial.sock = None  # the flow has it
            self._answer(dial, answer)

    def _failed(self, dial: "Dial", problem: int) -> None:
        if problem == errno.ECONNREFUSED and dial.addresses:
            self._close(dial)
            self._try(dial)
        else:
            self._refuse(dial, OSError(problem, os.strerror(problem), f"port {dial.port}"))

    def _refuse(self, dial: "Dial", error: Exception) -> None:
        said = describe(error)
        if isinstance(error, FlowError):
            said["code"] = error.code
        self._answer(dial, {"error": said})

    def _answer(self, dial: "Dial", answer: dict[str, Any]) -> None:
        self._leave(dial)
        dial.answer(answer)

    def _leave(self, dial: "Dial") -> None:
        self._pending.discard(dial)
        self._close(dial)

    def _close(self, dial: "Dial") -> None:
        if dial.limit is not None:
            dial.limit.cancel()
            dial.limit = None
        if dial.sock is not None:
            self._loop.forget(dial.sock.fileno())
            dial.sock.close()
            dial.sock = None

    def _open(self, dial: "Dial") -> Flow:
        assert dial.sock is not None
        sink = os.dup(dial.sock.fileno())
        flow = Flow(str(dial.wanted["id"]), KEEP, {"port": dial.port}, "connection")
        self._loop.forget(dial.sock.fileno())
        self._flows.add(flow, {dial.sock.detach(): STDOUT}, sink)
        self._flows.follow(flow, dial.wanted)
        return flow


class Dial:
    """A connection in the making."""

    def __init__(self, answer: Answer, wanted: dict[str, Any], port: int) -> None:
        self.answer = answer
        self.wanted = wanted
        self.port = port
        self.addresses = list(ADDRESSES)
        self.sock: socket.socket | None = None
        self.limit: Timer | None = None
