"""Commands in a machine, as the host sees them."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from signal import SIGKILL
from typing import Any

from torpor.vm.channel import Channel
from torpor.vm.errors import ChannelLostError, GuestError
from torpor.vm.flows import STDERR, STDOUT, Flow, Gap, Output

COLLECTED = 256 << 20
"""Bytes of output that are collected in memory unless another amount is asked for."""


@dataclass(frozen=True)
class Terminal:
    """A terminal's size in characters."""

    rows: int = 24
    columns: int = 80


@dataclass(frozen=True)
class Command:
    """What to run: ``argv`` without a shell, in ``cwd`` (the user's home if None), as ``user``.

    ``keep`` is how many bytes of output the guest keeps for replay. With ``terminal`` the command
    runs on a terminal of its own, all of its output is STDOUT, and it has an input. ``limit`` is
    how many seconds (of the machine's own running time) it may run; then it is sent SIGTERM, and
    SIGKILL 5 s later.
    """

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    user: str = "0"
    stdin: bool = False
    keep: int | None = None
    terminal: Terminal | None = None
    limit: float | None = None


@dataclass(frozen=True)
class Exit:
    """How a command ended: ``code`` or the number of the ``signal`` that killed it.

    ``timed_out`` says that it was told to end because it had reached its time limit.
    """

    code: int | None
    signal: int | None
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        """Whether the command exited with 0."""
        return self.code == 0


class Exec(Flow):
    """One command that we follow."""

    def __init__(
        self, exec_id: str, *, hold: bool = True, seq: int = 0, patient: bool = True
    ) -> None:
        super().__init__(exec_id, f"command {exec_id}", hold=hold, seq=seq, patient=patient)
        self.pid: int | None = None

    @classmethod
    async def start(cls, channel: Channel, command: Command, exec_id: str | None = None) -> "Exec":
        """Start a command, under an id of the caller's own if it gives one: then it can find out
        later whether it was started. Raises :exc:`GuestError`, for example ENOENT if there is no
        such program, and :exc:`HeldError` if the machine is held, nothing being started then."""
        channel.holding.check()
        new = cls(exec_id or secrets.token_hex(8))
        size = command.terminal
        wanted = {
            "id": new.id,
            "argv": list(command.argv),
            "env": dict(command.env),
            "cwd": command.cwd,
            "user": command.user,
            "stdin": command.stdin,
            "keep": command.keep,
            "terminal": size and {"rows": size.rows, "columns": size.columns},
            "limit_ms": command.limit and max(1, round(command.limit * 1000)),
        }
        await new.open("exec.start", channel, wanted)
        return new

    @classmethod
    async def start_work(
        cls,
        channel: Channel,
        work: dict[str, Any],
        *,
        user: str = "0",
        stdin: bool = False,
        patient: bool = False,
    ) -> "Exec":
        """Have the agent itself do something in a process of its own (``guest/work.py``)."""
        new = cls(secrets.token_hex(8), patient=False)
        wanted = {"id": new.id, "work": work, "user": user, "stdin": stdin, "keep": 1}
        try:
            await new.open("exec.start", channel, wanted)
        except BaseException:  # perhaps it is started all the same, later
            channel.tell("exec.signal", {"id": new.id, "signal": SIGKILL})
            raise
        new.patient = patient
        return new

    async def open(self, op: str, channel: Channel, wanted: dict[str, Any]) -> dict[str, Any]:
        """Ask for ``op``, and follow what comes of it; return the answer."""
        answer = await super().open(op, channel, wanted)
        pid = answer.get("pid")
        if type(pid) is not int or pid < 1:
            self.detach()
            raise ChannelLostError(f"The guest did not say the process id of {self.what}.")
        self.pid = pid
        return answer

    def kill(self, signal: int) -> None:
        """Send a signal and stop following, and wait for neither. Does nothing once it has
        ended."""
        if self.ending is None and self._channel is not None:
            self._channel.tell("exec.signal", {"id": self.id, "signal": signal})
            self.detach()

    @property
    def exit(self) -> Exit | None:
        """How the command ended, once all of its output has been read."""
        return None if self.ending is None else _exit_of(self.ending)

    def check_ending(self, said: dict[str, Any]) -> None:
        """Raise KeyError, TypeError or ValueError if what the guest said is no end of a command."""
        _exit_of(said)

    async def collect(self, limit: int = COLLECTED) -> tuple[bytes, bytes]:
        """Read to the end and return all of standard output and standard error.

        Raises :exc:`GuestError` (EFBIG) once there are more than ``limit`` bytes; the command is
        not followed any more then, and runs on.
        """
        parts: dict[int, list[bytes]] = {STDOUT: [], STDERR: []}
        size = 0
        async for item in self.output():
            if isinstance(item, Output):
                size += len(item.data)
                if size > limit:
                    self.detach()
                    raise GuestError("EFBIG", f"{self.what} wrote more than {limit} bytes")
                parts[item.source].append(item.data)
        return b"".join(parts[STDOUT]), b"".join(parts[STDERR])

    async def wait(self) -> Exit:
        """Read to the end, drop the output and return how the command ended."""
        async for _ in self.output():
            pass
        assert self.exit is not None
        return self.exit


def _exit_of(said: dict[str, Any]) -> Exit:
    code, signal = (_small(said[name]) for name in ("exit", "signal"))
    return Exit(code, signal, said.get("timed_out") is True)


def _small(said: object) -> int | None:
    if said is not None and (type(said) is not int or not 0 <= said <= 255):
        raise ValueError("no status that a process has")
    return said


class Connection(Flow):
    """A connection to a port inside a machine."""

    def __init__(self, port: int) -> None:
        super().__init__(secrets.token_hex(8), f"connection to port {port}")
        self.port = port

    @classmethod
    async def open_to(cls, channel: Channel, port: int) -> "Connection":
        """Connect to ``port`` on the machine's loopback. Raises :exc:`GuestError`, for example
        ECONNREFUSED if nobody listens there, and :exc:`HeldError` if the machine is held."""
        channel.holding.check()
        new = cls(port)
        await new.open("dial", channel, {"id": new.id, "port": port})
        return new

    async def read(self) -> bytes:
        """Return some bytes as soon as there are some; nothing at the end.

        Raises :exc:`ChannelLostError` when the channel is lost, for good if some bytes are.
        """
        item = await self.next_output()
        if isinstance(item, Gap):
            self.detach()
            raise ChannelLostError(f"Bytes of the {self.what} were lost: it was left too long.")
        return b"" if item is None else item.data

    def close(self) -> None:
        """End the connection."""
        self.detach()
