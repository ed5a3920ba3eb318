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

from torpor.guest import files, initctl, processes, wire
from torpor.guest.execs import ExecError, Execs
from torpor.guest.hooks import Hooks
from torpor.guest.link import Link, open_port
from torpor.guest.loop import Loop
from torpor.guest.rest import Rest, RestError
from torpor.guest.spawner import describe
from torpor.guest.statistics import statistics
from torpor.guest.waking import Waking
from torpor.guest.wire import Frame, Kind

CGROUP = Path("/run/torpor/cgroup/user")


class Agent:
    """Wires loop, link, commands and rest together, and dispatches requests."""

    def __init__(self, port: int, cgroup: Path) -> None:
        self._loop = Loop()
        self._rest = Rest(cgroup)
        self._execs = Execs(self._loop, str(cgroup))
        self._hooks = Hooks(self._loop, cgroup.parent / "hooks")
        self._waking = Waking(self._rest, self._hooks)
        greeting = {
            "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "agent_id": secrets.token_hex(8),
        }
        self._link = Link(
            self._loop, port, greeting, self._frame, self._execs.attachments_lost, self._execs.pull
        )
        self._execs.link = self._link
        self._simple: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "ping": lambda _: {},
            "status": lambda _: self._status(),
            "quiesce": self._rest.quiesce,
            "resume": self._rest.resume,
            "exec.attach": self._execs.attach,
            "exec.detach": self._execs.detach,
            "exec.signal": self._execs.signal,
            "exec.list": lambda _: self._execs.list(),
            "file.stat": files.status,
            "hooks": lambda _: self._hooks.kept(),
            "processes": lambda wanted: processes.processes(wanted, self._sessions()),
            "process.signal": processes.signal,
            "statistics": lambda _: statistics(cgroup),
        }
        # These are answered later, the channel being served meanwhile.
        self._lengthy = {"hooks.run": self._waking.run_stage, "wake": self._waking.wake}

    def serve_initctl(self) -> None:
        """Pass on what the image's own ``reboot`` and ``poweroff`` ask of init."""
        initctl.serve(self._loop)

    def run(self) -> None:
        """Serve until the end of the machine."""
        while True:
            self._loop.turn()

    def _frame(self, frame: Frame) -> None:
        if frame.kind == Kind.REQUEST:
            self._request(frame)
        else:
            self._execs.frame(frame)

    def _request(self, frame: Frame) -> None:
        received_ns = time.monotonic_ns()
        try:
            wanted, blob = wire.parse_document(frame.payload)
            if wanted["op"] == "exec.start":
                self._execs.start(frame.stream, wanted)
                return
            if wanted["op"] in self._lengthy:
                self._lengthy[wanted["op"]](wanted, received_ns, self._answering(frame.stream))
                return
            answer, data = self._do(wanted, blob)
        except (ExecError, RestError) as error:
            code = getattr(error, "code", type(error).__name__)
            answer, data = {"error": {"code": code, "message": str(error)}}, b""
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            answer, data = {"error": describe(error)}, b""
        self._link.send(Kind.REPLY, frame.stream, wire.document(answer, data))

    def _answering(self, request: int) -> Callable[[dict[str, Any]], None]:
        """Return what answers a request later, unless a new epoch has begun by then."""
        epoch = self._link.epoch

        def answer(document: dict[str, Any]) -> None:
            if self._link.epoch == epoch:
                self._link.send(Kind.REPLY, request, wire.document(document))
                self._link.flush()

        return answer

    def _sessions(self) -> dict[int, str]:
        """Return the ids of the commands that run, by their sessions."""
        known = self._execs.list()["execs"]
        return {each["pid"]: each["id"] for each in known if each["running"] and each["pid"]}

    def _do(self, wanted: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        match wanted["op"]:
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
        agent.serve_initctl()
        # Only now: what the spawner starts is the user's, and may be killed for want of memory.
        Path("/proc/self/oom_score_adj").write_text("-1000")
        agent.run()
    except OSError as error:
        sys.exit(f"torpor agent: {error}")
