"""What the guest agent does for us, as plain calls over a channel."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from torpor.vm.channel import Channel, Welcome
from torpor.vm.errors import GuestError
from torpor.vm.execs import COLLECTED, Command, Connection, Exec, Exit, Terminal

PIECE = 256 << 10
"""Bytes of a file that cross the channel in one frame."""
WAKE_LIMIT_MS = 10_000
WAKE_TRIP_LIMITS_NS = (*[50_000_000] * 10, *[90_000_000] * 10, 1 << 62)
"""How long a round trip may be from which the guest's clock is set, try by try. The clock is wrong
by at most half of it."""
ANSWER_LIMIT = 60.0
"""Seconds that an answer may take beyond the limit that the guest was given: for its sync, and for
a busy host."""


@dataclass(frozen=True)
class Identity:
    """Who a machine is: what two machines from one snapshot must not share."""

    hostname: str
    machine_id: str

    @classmethod
    def of(cls, machine: str) -> "Identity":
        """Return the identity of a new machine: its id as host name, a random machine-id(5)."""
        return cls(hostname=machine, machine_id=secrets.token_hex(16))


@dataclass(frozen=True)
class Result:
    """A finished command and all that it wrote."""

    exit: Exit
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True)
class FileStatus:
    """What ``lstat`` says of a file in the guest."""

    mode: int
    size: int
    uid: int
    gid: int
    mtime_ns: int


class GuestAgent:
    """The agent of one machine. All methods raise :exc:`GuestError` and the channel's errors."""

    def __init__(self, channel: Channel, welcome: Welcome) -> None:
        self.channel = channel
        self.welcome = welcome

    # Rest

    async def quiesce(self, limit_ms: int) -> float:
        """Sync the disk and freeze the user's processes; return the seconds that the sync took
        while they still ran."""
        limit = limit_ms / 1000 + ANSWER_LIMIT
        answer, _ = await self.channel.request(
            "quiesce", {"limit_ms": limit_ms}, urgent=True, limit=limit
        )
        return _number(answer, "synced_ns") / 1e9

    async def resume(self) -> None:
        """Let the user's processes run on, in a machine that was only quiesced."""
        limit = WAKE_LIMIT_MS / 1000 + ANSWER_LIMIT
        wanted = {"limit_ms": WAKE_LIMIT_MS}
        await self.channel.request("resume", wanted, urgent=True, limit=limit)

    async def wake(
        self, identity: Identity | None, clock: Callable[[], int] = time.time_ns
    ) -> None:
        """Give new entropy, the wall clock and perhaps an identity; then let the processes run."""
        wanted: dict[str, Any] = {
            "limit_ms": WAKE_LIMIT_MS,
            "entropy": secrets.token_hex(64),
        }
        if identity is not None:
            wanted |= {"hostname": identity.hostname, "machine_id": identity.machine_id}
        limit = WAKE_LIMIT_MS / 1000 + ANSWER_LIMIT
        echo_ns, heard_ns = self.welcome.mono_ns, self.welcome.heard_ns
        for trip_limit_ns in WAKE_TRIP_LIMITS_NS:
            held_ns = time.monotonic_ns() - heard_ns
            wanted |= {"echo_ns": echo_ns, "held_ns": held_ns, "wall_ns": clock()}
            wanted |= {"trip_limit_ns": trip_limit_ns}
            answer, _ = await self.channel.request("wake", wanted, urgent=True, limit=limit)
            heard_ns = time.monotonic_ns()
            if "again_ns" not in answer:
                return
            echo_ns = int(_number(answer, "again_ns"))
        raise GuestError("EPROTO", "the machine asks to be woken again and again")

    async def status(self) -> dict[str, Any]:
        """Return kernel, host name, uptime and wall clock of the guest, and whether it rests."""
        answer, _ = await self.channel.request("status", urgent=True)
        return answer

    # Commands

    async def start(self, command: Command) -> Exec:
        """Start a command and follow it."""
        return await Exec.start(self.channel, command)

    async def run(self, *argv: str, **options: Any) -> Result:
        """Run a command to its end; ``options`` are those of :class:`Command`."""
        running = await self.start(Command(argv, **options))
        try:
            out, err = await running.collect()
        except asyncio.CancelledError:
            running.detach()  # it runs on, and must not wait for somebody to read
            raise
        assert running.exit is not None
        return Result(running.exit, out, err)

    async def shell(self, line: str, **options: Any) -> Result:
        """Run a line of shell to its end."""
        return await self.run("/bin/sh", "-c", line, **options)

    async def attach(self, exec_id: str, *, seq: int = 0, hold: bool = True) -> Exec:
        """Follow a command that runs or has run here, from byte ``seq`` of its output on.

        ``hold`` makes it wait for us when we fall behind; else bytes may be missed, and the gap
        told.
        """
        found = Exec(exec_id, hold=hold, seq=seq)
        await found.attach(self.channel)
        return found

    async def signal(self, exec_id: str, signal: int) -> None:
        """Send a signal to the process group of a command."""
        await self.channel.request("exec.signal", {"id": exec_id, "signal": signal})

    async def resize(self, exec_id: str, terminal: Terminal) -> None:
        """Give a command's terminal another size; the command gets SIGWINCH."""
        size = {"id": exec_id, "rows": terminal.rows, "columns": terminal.columns}
        await self.channel.request("exec.resize", size)

    async def dial(self, port: int) -> Connection:
        """Connect to a port inside the machine, on its loopback."""
        return await Connection.open_to(self.channel, port)

    async def commands(self) -> list[dict[str, Any]]:
        """Return the commands that this machine knows, ended ones too."""
        answer, _ = await self.channel.request("exec.list")
        execs = answer.get("execs")
        if not isinstance(execs, list):
            raise _broken("execs")
        return execs

    # Files

    async def read_file(self, path: str, limit: int = COLLECTED) -> bytes:
        """Return the content of a file. Raises :exc:`GuestError` (EFBIG) beyond ``limit`` bytes, as
        a guest could go on without end."""
        pieces, size = [], 0
        async for piece in self.read_pieces(path):
            size += len(piece)
            if size > limit:
                raise GuestError("EFBIG", f"{path} has more than {limit} bytes")
            pieces.append(piece)
        return b"".join(pieces)

    async def read_pieces(self, path: str, offset: int = 0) -> AsyncIterator[bytes]:
        """Yield the content of a file in pieces, up to where it ends when it is reached."""
        while True:
            wanted = {"path": path, "offset": offset, "size": PIECE}
            _, data = await self.channel.request("file.read", wanted)
            if not data:
                return
            yield data
            offset += len(data)

    async def write_file(
        self, path: str, data: bytes, *, mode: int = 0o644, parents: bool = False
    ) -> None:
        """Make ``path`` a file with ``data``; an existing file is emptied first."""
        wanted = {"path": path, "mode": mode, "parents": parents}
        for offset in range(0, max(len(data), 1), PIECE):
            piece = data[offset : offset + PIECE]
            await self.channel.request(
                "file.write", wanted | {"offset": offset, "truncate": offset == 0}, piece
            )

    async def stat(self, path: str) -> FileStatus | None:
        """Return the status of ``path``, or None if there is nothing."""
        try:
            found, _ = await self.channel.request("file.stat", {"path": path})
        except GuestError as error:
            if error.code == "ENOENT":
                return None
            raise
        return FileStatus(
            *(_number(found, name) for name in ("mode", "size", "uid", "gid", "mtime_ns"))
        )


def _number(answer: dict[str, Any], name: str) -> int:
    number = answer.get(name)
    if type(number) is not int:
        raise _broken(name)
    return number


def _broken(name: str) -> GuestError:
    return GuestError("EPROTO", f"the agent's answer has no {name!r} that can be used")
