"""The guest agent: takes requests from the guest channel and answers them.

One thread, one event loop (:mod:`torpor.guest.loop`). What a request may take long for is done
piece by piece, so that the agent is always about to answer.
"""

import os
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torpor.guest import files, wire
from torpor.guest.dials import Dials
from torpor.guest.errors import describe
from torpor.guest.execs import Execs
from torpor.guest.link import Link, open_port
from torpor.guest.loop import Loop
from torpor.guest.rest import Rest, RestError
from torpor.guest.streams import FlowError, Flows
from torpor.guest.wire import Frame, Kind

CGROUP = Path("/run/torpor/cgroup/user")


class Agent:
    """Wires loop, link, commands and rest together, and dispatches requests."""

    def __init__(self, port: int, cgroup: Path) -> None:
        self._loop = Loop()
        self._rest = Rest(cgroup)
        self._flows = Flows(self._loop)
        self._execs = Execs(self._loop, str(cgroup), self._flows)
        self._dials = Dials(self._loop, self._flows)
        greeting = {
            "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "agent_id": secrets.token_hex(8),
        }
        self._link = Link(self._loop, port, greeting, self._frame, self._lost, self._flows.pull)
        self._flows.link = self._link
        self._simple: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "ping": lambda _: {},
            "status": lambda _: self._status(),
            "quiesce": self._rest.quiesce,
            "resume": self._rest.resume,
            "stream.attach": self._flows.attach,
            "stream.detach": self._flows.detach,
            "exec.signal": self._execs.signal,
            "exec.resize": self._execs.resize,
            "exec.list": lambda _: self._execs.list(),
            "file.stat": files.status,
        }
        self._answered_later = {"exec.start": self._execs.start, "dial": self._dials.start}

    def run(self) -> None:
        """Serve until the end of the machine."""
        while True:
            self._loop.turn()

    def _frame(self, frame: Frame) -> None:
        if frame.kind == Kind.REQUEST:
            self._request(frame)
        else:
            self._flows.frame(frame)

    def _lost(self) -> None:
        """The channel was lost or began anew."""
        self._flows.attachments_lost()
        self._execs.requests_lost()
        self._dials.requests_lost()

    def _request(self, frame: Frame) -> None:
        received_ns = time.monotonic_ns()
        try:
            wanted, blob = wire.parse_document(frame.payload)
            later = self._answered_later.get(wanted["op"])
            if later is not None:
                later(frame.stream, wanted)
                return
            answer, data = self._do(wanted, blob, received_ns)
        except (FlowError, RestError) as error:
            code = getattr(error, "code", type(error).__name__)
            answer, data = {"error": {"code": code, "message": str(error)}}, b""
        except Exception as error:  # whatever it is, the host is told, and other requests go on
            answer, data = {"error": describe(error)}, b""
        self._link.send(Kind.REPLY, frame.stream, wire.document(answer, data))

    def _do(
        self, wanted: dict[str, Any], blob: bytes, received_ns: int
    ) -> tuple[dict[str, Any], bytes]:
        match wanted["op"]:
            case "wake":
                return self._rest.wake(wanted, received_ns), b""
            case "file.read":
                return files.read(wanted)
            case "file.write":
                return files.write(wanted, blob), b""
            case op if op in self._simple:
                return self._simple[op](wanted), b""
            case other:
                raise ValueError(f"this agent does not know the request {other!r}")

    def _status(self) -> dict[str, Any]:
        return {
            "resting": self._rest.resting,
            "uptime_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME),
            "wall_ns": time.time_ns(),
            "kernel": os.uname().release,
            "hostname": os.uname().nodename,
        }


def main() -> None:
    """Run the agent; this is what the tools disk's ``__main__`` calls."""
    try:
        agent = Agent(open_port(), CGROUP)
        # Only now: what the spawner starts is the user's, and may be killed for want of memory.
        Path("/proc/self/oom_score_adj").write_text("-1000")
        agent.run()
    except OSError as error:
        sys.exit(f"torpor agent: {error}")
