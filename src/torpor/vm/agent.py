"""What the guest agent does for us, as plain calls over a channel."""

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torpor.guest.succession import KNOWN
from torpor.vm.answers import number
from torpor.vm.channel import Channel, Welcome, plain
from torpor.vm.errors import GuestError
from torpor.vm.execs import COLLECTED, Command, Connection, Exec, Exit, Terminal
from torpor.vm.files import Files, FileStatus
from torpor.vm.guest_commands import KnownCommand, parse_commands
from torpor.vm.guest_processes import Process, list_processes
from torpor.vm.guest_statistics import GuestStatistics, parse_statistics
from torpor.vm.hooks import HookCall, HookResult, parse_results, run_stage, tell

WAKE_LIMIT_MS = 10_000
WAKE_TRIP_LIMITS_NS = (*[50_000_000] * 10, *[90_000_000] * 10, 1 << 62)
"""How long a round trip may be from which the guest's clock is set, try by try. The clock is wrong
by at most half of it."""
MOUNT_LIMIT = 60.0
"""Seconds that the guest may take to mount disks (``torpor.guest.disks``), beyond others."""
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
class AgentCode:
    """The code of a guest agent: a zip archive of its compiled modules, and the digest by which it
    is known (``torpor.guest.digest``)."""

    digest: str
    archive: Path


@dataclass(frozen=True)
class Result:
    """A finished command and all that it wrote."""

    exit: Exit
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True)
class Woken:
    """A machine that was woken: what became of its hooks, and why a disk that it was to mount was
    not, or None. ``no_card`` says why its network card was not set up, or is None."""

    hooks: tuple[HookResult, ...]
    not_mounted: str | None
    no_card: str | None


class GuestAgent:
    """The agent of one machine. All methods raise :exc:`GuestError` and the channel's errors."""

    def __init__(self, channel: Channel, welcome: Welcome) -> None:
        self.channel = channel
        self.welcome = welcome
        self.files = Files(channel)

    # Rest

    async def quiesce(self, limit_ms: int) -> float:
        """Sync the disk and freeze the user's processes; return the seconds that the sync took
        while they still ran."""
        limit = limit_ms / 1000 + ANSWER_LIMIT
        answer, _ = await self.channel.request(
            "quiesce", {"limit_ms": limit_ms}, urgent=True, limit=limit
        )
        return number(answer, "synced_ns") / 1e9

    async def resume(self) -> None:
        """Let the user's processes run on, in a machine that was only quiesced."""
        limit = WAKE_LIMIT_MS / 1000 + ANSWER_LIMIT
        wanted = {"limit_ms": WAKE_LIMIT_MS}
        await self.channel.request("resume", wanted, urgent=True, limit=limit)

    async def wake(
        self,
        identity: Identity | None,
        clock: Callable[[], int] = time.time_ns,
        hooks: HookCall | None = None,
        mounts: Sequence[Mapping[str, object]] = (),
        card: Literal["again", "another"] | None = None,
    ) -> Woken:
        """Give new entropy, the wall clock and perhaps an identity, and have disks mounted; then
        let the processes run.

        With ``hooks``, the machine's hooks for after a thaw are run, those that are to be first and
        the others; what became of them is returned. ``mounts`` are as ``torpor.guest.disks`` wants
        them; one that fails keeps nobody from running. ``card`` says that the network card is to be
        set up, and that connections over it are "another" machine's.
        """
        wanted: dict[str, Any] = {
            "limit_ms": WAKE_LIMIT_MS,
            "entropy": secrets.token_hex(64),
        }
        if identity is not None:
            wanted |= {"hostname": identity.hostname, "machine_id": identity.machine_id}
        limit = WAKE_LIMIT_MS / 1000 + ANSWER_LIMIT
        if hooks is not None:
            wanted["hooks"] = hooks.wanted()
            limit += hooks.limits.total
        if card is not None:
            wanted["card"] = card
        if mounts:
            wanted["disks"] = list(mounts)
            limit += MOUNT_LIMIT
        echo_ns, heard_ns = self.welcome.mono_ns, self.welcome.heard_ns
        for trip_limit_ns in WAKE_TRIP_LIMITS_NS:
            held_ns = time.monotonic_ns() - heard_ns
            wanted |= {"echo_ns": echo_ns, "held_ns": held_ns, "wall_ns": clock()}
            wanted |= {"trip_limit_ns": trip_limit_ns}
            answer, _ = await self.channel.request("wake", wanted, urgent=True, limit=limit)
            heard_ns = time.monotonic_ns()
            if "again_ns" not in answer:
                results = parse_results(answer.get("hooks", []))
                tell(results)
                if hooks is not None and answer.get("after_thaw") is True:
                    results += await run_stage(self.channel, "after-thaw", hooks)
                return Woken(results, _not_mounted(answer, len(mounts)), _no_card(answer))
            echo_ns = int(number(answer, "again_ns"))
        raise GuestError("EPROTO", "the machine asks to be woken again and again")

    async def replace(self, newer: AgentCode) -> None:
        """Have ``newer`` take over from the agent that runs; attach to it after that.

        Raises :exc:`GuestError`, the agent running on, if it does not know how or cannot.
        """
        code = await asyncio.to_thread(newer.archive.read_bytes)
        wanted = {"sha256": hashlib.sha256(code).hexdigest(), "handovers": list(KNOWN)}
        await self.channel.request("agent.replace", wanted, code, urgent=True, limit=ANSWER_LIMIT)

    async def run_hooks(self, stage: str, call: HookCall) -> tuple[HookResult, ...]:
        """Run the machine's hooks of a stage, if it has any."""
        return await run_stage(self.channel, stage, call)

    async def hooks(self) -> tuple[HookResult, ...]:
        """Return what became of the hooks that ran last in this machine, the oldest first."""
        answer, _ = await self.channel.request("hooks")
        return parse_results(answer.get("hooks"))

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

    async def signal(self, exec_id: str, signal: int, *, patient: bool = False) -> None:
        """Send a signal to the process group of a command; if the machine is held and who asks is
        ``patient``, when it goes on."""
        wanted = {"id": exec_id, "signal": signal}
        await self.channel.request("exec.signal", wanted, patient=patient)

    async def resize(self, exec_id: str, terminal: Terminal, *, patient: bool = False) -> None:
        """Give a command's terminal another size; the command gets SIGWINCH. ``patient`` as in
        :meth:`signal`."""
        size = {"id": exec_id, "rows": terminal.rows, "columns": terminal.columns}
        await self.channel.request("exec.resize", size, patient=patient)

    async def dial(self, port: int) -> Connection:
        """Connect to a port inside the machine, on its loopback."""
        return await Connection.open_to(self.channel, port)

    async def commands(self) -> list[KnownCommand]:
        """Return the commands that this machine knows, ended ones too."""
        answer, _ = await self.channel.request("exec.list")
        return parse_commands(answer.get("execs"))

    # Processes

    async def processes(self) -> list[Process]:
        """Return all processes of the machine but the kernel's own threads."""
        return [each async for each in list_processes(self.channel)]

    async def kill(self, pid: int, signal: int) -> None:
        """Send a signal to one process: a user's, not one that the machine needs (``EPERM``)."""
        try:
            await self.channel.request("process.signal", {"pid": pid, "signal": signal})
        except GuestError as error:
            if error.code != "EPERM":
                raise
            said = f"process {pid} is not one of the user's, and is sent no signals"
            raise GuestError("EPERM", said) from None

    async def statistics(self) -> GuestStatistics:
        """Return what the guest says it uses."""
        answer, _ = await self.channel.request("statistics")
        return parse_statistics(answer)

    # Files, in short; see :class:`Files` for all of it

    async def read_file(self, path: str, limit: int = COLLECTED) -> bytes:
        """Return the content of a file. Raises :exc:`GuestError` (EFBIG) beyond ``limit`` bytes."""
        return await self.files.read(path, limit=limit)

    async def write_file(
        self, path: str, data: bytes, *, mode: int = 0o644, parents: bool = False
    ) -> None:
        """Make ``path`` a file with ``data``; an existing file is emptied first."""
        await self.files.write(path, data, mode=mode, parents=parents)

    async def stat(self, path: str) -> FileStatus | None:
        """Return the status of ``path``, or None if there is nothing."""
        return await self.files.status(path)


def _not_mounted(answer: dict[str, Any], count: int) -> str | None:
    """Return what a guest says of disks that it could not mount, None if it has mounted all."""
    said = answer.get("disks", [])
    if not isinstance(said, list) or len(said) != count:
        return "the agent in the machine is too old to mount disks" if count else None
    faults = [plain(each, 500) for each in said if each is not None]
    return "; ".join(faults) or None


def _no_card(answer: dict[str, Any]) -> str | None:
    """Return what a guest says of a network card that it could not set up, None if there is
    nothing to say."""
    said = answer.get("no_card")
    return None if said is None else plain(said, 500)
