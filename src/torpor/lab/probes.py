"""Probes: small programs that run in the guest and tell what happens to them.

Their text is in ``programs/`` (data of this package, never imported here).
"""

import asyncio
import json
import secrets
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any, TypeVar

from torpor.vm import Command, GuestError, Machine

PROGRAMS = "/srv/lab/programs"
PATIENCE = 60.0
"""Seconds after which a probe that says nothing is given up. Emulation on a busy host is slow."""
_INTERPRETERS = {"sh": "/bin/sh", "py": "/usr/bin/python3"}

T = TypeVar("T")


@dataclass(frozen=True)
class Process:
    """Which process it is: its number, and when it began, in clock ticks since the kernel booted.

    The number alone may be another process's after a while; both together are not.
    """

    pid: int
    began: int


@dataclass(frozen=True)
class Probe:
    """A probe that was started. ``directory`` is its own place in the guest."""

    exec_id: str
    process: Process
    directory: str


def program_text(name: str) -> str:
    """Return the text of a program."""
    return (resources.files("torpor.lab") / "programs" / name).read_text()


async def put_program(machine: Machine, name: str) -> list[str]:
    """Write a program into the guest and return how to call it."""
    text = program_text(name).encode()
    await machine.agent.write_file(f"{PROGRAMS}/{name}", text, parents=True)
    return [_INTERPRETERS[name.rpartition(".")[2]], f"{PROGRAMS}/{name}"]


async def run_program(machine: Machine, name: str, *arguments: str) -> bytes:
    """Run a program to its end and return what it wrote. Raises RuntimeError if it failed."""
    result = await machine.agent.run(*await put_program(machine, name), *arguments)
    if not result.exit.ok:
        error = result.stderr.decode("utf-8", "replace").strip()
        raise RuntimeError(f"{name} ended with {result.exit}: {error}")
    return result.stdout


async def start_probe(machine: Machine, name: str, directory: str, *arguments: str) -> Probe:
    """Start a program that runs on by itself, with its complaints in ``<directory>/errors``."""
    if name.endswith(".py"):
        await put_program(machine, "answering.py")
    program = await put_program(machine, name)
    await machine.agent.write_file(f"{directory}/errors", b"", parents=True)
    # exec: the shell becomes the program, so the command's process is the program's.
    quiet = ["/bin/sh", "-c", 'exec "$@" >>"$0" 2>&1', f"{directory}/errors"]
    started = await machine.agent.start(Command([*quiet, *program, *(arguments or (directory,))]))
    assert started.pid is not None
    process = await find_process(machine, started.pid)
    if process is None:
        raise RuntimeError(f"{name} has ended: {await complaints(machine, directory)}")
    return Probe(started.id, process, directory)


async def complaints(machine: Machine, directory: str) -> str:
    """Return what the probe in ``directory`` has said on its standard error."""
    said = await machine.agent.read_file(f"{directory}/errors")
    return said.decode("utf-8", "replace").strip()[-1000:] or "it said nothing"


async def find_process(machine: Machine, pid: int) -> Process | None:
    """Return the process that has the number ``pid`` now, or None."""
    try:
        status = await machine.agent.read_file(f"/proc/{pid}/stat")
    except GuestError:
        return None
    # The name in brackets may hold anything; after it come fields 3 and up, 22 is the start
    # (proc(5)).
    return Process(pid, int(status.rpartition(b")")[2].split()[19]))


async def read_lines(machine: Machine, path: str) -> list[str]:
    """Return the whole lines of a file in the guest; none if it is not there yet."""
    try:
        content = await machine.agent.read_file(path)
    except GuestError as error:
        if error.code == "ENOENT":
            return []
        raise
    return content[: content.rfind(b"\n") + 1].decode().splitlines()


async def ask(machine: Machine, probe: Probe) -> dict[str, Any]:
    """Ask a probe for what it holds in memory, and return its answer to just this question."""
    question = secrets.token_hex(8)

    async def started() -> bool:
        return await machine.agent.stat(f"{probe.directory}/started") is not None

    async def answer() -> dict[str, Any] | None:
        lines = await read_lines(machine, f"{probe.directory}/answer")
        said: dict[str, Any] = json.loads(lines[0]) if lines else {}
        return said if said.get("question") == question else None

    await until(started, "the probe to start")
    await machine.agent.write_file(f"{probe.directory}/question", question.encode())
    await machine.agent.signal(probe.exec_id, signal.SIGUSR1)
    return await until(answer, "the probe to answer")


async def until(look: Callable[[], Awaitable[T | None]], what: str) -> T:
    """Look again and again until ``look`` returns something that is true, and return that.

    Raises TimeoutError after :data:`PATIENCE`.
    """
    try:
        async with asyncio.timeout(PATIENCE):
            while not (found := await look()):  # noqa: ASYNC110 - the guest has no events
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise TimeoutError(f"waited {PATIENCE:g} s for {what}") from None
    return found
