"""The guest agent: takes requests from the guest channel and answers them.

One thread, one event loop (:mod:`torpor.guest.loop`). What a request may take long for is done
piece by piece, and what may never end in another process, so that the agent is always about to
answer.
"""

import os
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torpor.guest import files, initctl, network, processes, wire
from torpor.guest.dials import Dials
from torpor.guest.digest import DIGEST
from torpor.guest.disks import Disks
from torpor.guest.errands import Errands
from torpor.guest.errors import describe
from torpor.guest.execs import Execs
from torpor.guest.flow import FlowError
from torpor.guest.hooks import Hooks
from torpor.guest.link import Link, open_port
from torpor.guest.loop import Loop
from torpor.guest.mounts import Mounts
from torpor.guest.rest import Rest, RestError
from torpor.guest.statistics import statistics
from torpor.guest.streams import Flows
from torpor.guest.succession import HANDOVER, SuccessionError, load
from torpor.guest.waking import Waking
from torpor.guest.wire import Frame, Kind

CGROUP = Path("/run/torpor/cgroup/user")
ERRANDS = files.OPS | {"processes"}
"""Requests that look at what may not answer."""


class Agent:
    """Wires loop, link, commands and rest together, and dispatches requests."""

    def __init__(self, port: int, cgroup: Path, left: dict[str, Any] | None = None) -> None:
        """Begin with nothing, or go on with what another agent has ``left``."""
        self._port = port
        self._cgroup = cgroup
        self._successor: ModuleType | None = None
        self._loop = Loop()
        self._rest = Rest(cgroup)
        self._flows = Flows(self._loop)
        if left is not None:
            self._flows.take_over(left["flows"])
        self._execs = Execs(self._loop, str(cgroup), self._flows, left and left["execs"])
        self._dials = Dials(self._loop, self._flows)
        self._hooks = Hooks(self._loop, cgroup.parent / "hooks")
        if left is not None:
            self._hooks.take_over(left["hooks"])
        self._mounts = Mounts()
        self._errands = Errands(self._loop, self._mounts, left.get("errands") if left else None)
        self._waking = Waking(self._rest, self._hooks, Disks(self._loop))
        self._initctl: int | None = None
        if left is not None and left["initctl"]:
            self.serve_initctl()
        greeting = {
            "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "agent_id": left["agent_id"] if left else secrets.token_hex(8),
            "code": DIGEST,
            "handover": HANDOVER,
        }
        self._agent_id = greeting["agent_id"]
        self._link = Link(
            self._loop,
            port,
            greeting,
            self._frame,
            self._lost,
            self._flows.pull,
            born=left is None,
        )
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
            "hooks": lambda _: self._hooks.kept(),
            "processes": lambda wanted: processes.processes(wanted, self._sessions()),
            "process.signal": processes.signal,
            "statistics": lambda _: statistics(cgroup),
        }
        # These are answered later, the channel being served meanwhile.
        self._answered_later = {
            "dial": self._dials.start,
            "exec.start": self._execs.start,
            "hooks.run": self._waking.run_stage,
            "wake": self._waking.wake,
        }

    def serve_initctl(self) -> None:
        """Pass on what the image's own ``reboot`` and ``poweroff`` ask of init."""
        self._initctl = initctl.serve(self._loop)

    def run(self) -> "Agent":
        """Serve until a newer agent takes over, and return that."""
        while self._successor is None or not self._link.drained:
            self._loop.turn()
        newer: Agent = self._successor.Agent(self._port, self._cgroup, self.hand_over())
        return newer

    def hand_over(self) -> dict[str, Any]:
        """Return what another agent needs to go on; this one must not be used any more."""
        self._lost()
        left = {
            "agent_id": self._agent_id,
            "flows": self._flows.hand_over(),
            "execs": self._execs.hand_over(),
            "hooks": self._hooks.kept()["hooks"],
            "initctl": self._initctl is not None,
            "errands": self._errands.hand_over(),
        }
        if self._initctl is not None:
            os.close(self._initctl)
        self._rest.close()
        self._mounts.close()
        self._loop.close()
        return left

    def _frame(self, frame: Frame) -> None:
        if frame.kind == Kind.REQUEST:
            self._request(frame)
        else:
            self._flows.frame(frame)

    def _lost(self) -> None:
        """The channel was lost or began anew."""
        self._flows.attachments_lost()
        self._dials.requests_lost()
        self._errands.requests_lost()

    def _request(self, frame: Frame) -> None:
        received_ns = time.monotonic_ns()
        try:
            wanted, blob = wire.parse_document(frame.payload)
            later = self._answered_later.get(wanted["op"])
            if later is not None:
                later(wanted, received_ns, self._answering(frame.stream))
                return
            if wanted["op"] in ERRANDS and self._errands.needed():
                payload = frame.payload
                if wanted["op"] == "processes":
                    payload = wire.document(wanted | {"execs": self._sessions()})
                self._errands.start(wanted, payload, self._passing_on(frame.stream))
                return
            answer, data = self._do(wanted, blob)
        except (FlowError, RestError, SuccessionError) as error:
            code = getattr(error, "code", type(error).__name__)
            answer, data = {"error": {"code": code, "message": str(error)}}, b""
        except Exception as error:  # whatever it is, the host is told, and other requests go on
            answer, data = {"error": describe(error)}, b""
        self._link.send(Kind.REPLY, frame.stream, wire.document(answer, data))

    def _answering(self, request: int) -> Callable[[dict[str, Any]], None]:
        """Return what answers a request later, unless a new epoch has begun by then."""
        pass_on = self._passing_on(request)
        return lambda document: pass_on(wire.document(document))

    def _passing_on(self, request: int) -> Callable[[bytes], None]:
        """Return what answers a request later with a payload, as :meth:`_answering`."""
        epoch = self._link.epoch

        def answer(payload: bytes) -> None:
            if self._link.epoch == epoch:
                self._link.send(Kind.REPLY, request, payload)
                self._link.flush()

        return answer

    def _sessions(self) -> dict[int, str]:
        """Return the ids of the commands that run, by their sessions."""
        known = self._execs.list()["execs"]
        return {each["pid"]: each["id"] for each in known if each["running"] and each["pid"]}

    def _do(self, wanted: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        match wanted["op"]:
            case "agent.replace":
                if self._hooks.running:
                    raise SuccessionError("hooks run in this machine at the moment")
                self._successor = load(wanted, blob)
                self._link.leave()
                return {}, b""
            case op if op in files.OPS:
                return files.do(op, wanted, blob)
            case op if op in self._simple:
                return self._simple[op](wanted), b""
            case other:
                raise FlowError("ENOSYS", f"this agent does not know the request {other!r}")

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
        Path("/proc/self/oom_score_adj").write_text("-1000")
        network.begin()
        agent = Agent(open_port(), CGROUP)
        agent.serve_initctl()
        while True:
            agent = agent.run()
    except OSError as error:
        sys.exit(f"torpor agent: {error}")
