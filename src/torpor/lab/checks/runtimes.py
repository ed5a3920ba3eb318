"""Programs of common runtimes, blocked as programs are most of the time, go on after a thaw.

Python, Node, Go (gojq, statically linked, from Debian), the shell, and a static C program (busybox
of the tools disk).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from torpor.images import Recipe, debian_image, golden, silent
from torpor.lab.check import Check, Experiment
from torpor.lab.laboratory import Laboratory
from torpor.lab.pauses import pause
from torpor.lab.probes import Process, find_process, program_text, until
from torpor.vm import Command, Exec, GuestError, Identity, Machine, Output, VmError, Wanted

PAUSE = 5.0
ASLEEP = 15.0
"""Seconds that the sleepers sleep, by the guest's monotonic clock, which stands still in a
pause."""
LATE = 4.0
"""Seconds that a sleeper may wake too late on a busy host; less than a pause."""
PATIENCE = 30.0
RECIPE = Recipe(name="runtimes", packages=(*Recipe().packages, "nodejs", "gojq"))
BUSYBOX = "/run/torpor/tools/bin/busybox"
# Linux, arch/x86/entry/syscalls/syscall_64.tbl
SYSCALLS = {
    "0": "read",
    "7": "poll",
    "61": "wait4",
    "130": "rt_sigsuspend",
    "202": "futex",
    "230": "clock_nanosleep",
    "232": "epoll_wait",
    "281": "epoll_wait",
    "441": "epoll_wait",
}
SHELL_ANSWERS = 'while read -r line; do echo "$line"; done'
SHELL_SLEEPS = "read -r a _ </proc/uptime; {}; read -r b _ </proc/uptime; echo $a $b"


@dataclass(frozen=True)
class Program:
    """A program that repeats each line of its input, or sleeps and then tells two times, in s."""

    runtime: str
    blocked_in: str
    argv: Sequence[str]
    sleeps: bool = False

    @property
    def name(self) -> str:
        """What people are told it is."""
        return f"{self.runtime} in {self.blocked_in}"


@dataclass
class Running:
    """A program that was started, what it has said, and where it was seen blocked."""

    program: Program
    exec: Exec
    process: Process | None
    said: bytes = b""
    blocked: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)


def programs() -> list[Program]:
    """Return all programs; those that sleep come last, to be asleep at the freeze."""
    python = ("/usr/bin/python3", "-c", program_text("blocked.py"))
    node = ("/usr/bin/node", "-e", program_text("blocked.js"))
    go = ("/usr/bin/gojq", "-R", "-r", ".")
    # Go waits for its input by epoll if that is non-blocking when it starts (os.NewFile).
    nonblocking = "import os, sys; os.set_blocking(0, False); os.execv(sys.argv[1], sys.argv[1:])"
    seconds = f"{ASLEEP:g}"
    return [
        Program("Python", "read", (*python, "read")),
        Program("Python", "epoll_wait", (*python, "epoll_wait")),
        Program("Python", "futex", (*python, "futex")),
        Program("Node", "epoll_wait", (*node, "repeat")),
        Program("Go", "read", go),
        Program("Go", "epoll_wait", ("/usr/bin/python3", "-c", nonblocking, *go)),
        Program("shell", "read", ("/bin/sh", "-c", SHELL_ANSWERS)),
        Program("static C", "poll", (BUSYBOX, "sh", "-c", SHELL_ANSWERS)),
        Program("Python", "clock_nanosleep", (*python, "sleep", seconds), sleeps=True),
        Program("Node", "epoll_wait", (*node, "sleep", seconds), sleeps=True),
        # The wait of Debian's sh is for a signal; its sleep is a process of its own.
        Program("shell", "rt_sigsuspend", _shell("/bin/sh", f"sleep {seconds} & wait $!"), True),
        Program(
            "static C",
            "clock_nanosleep",
            (BUSYBOX, *_shell("sh", f"{BUSYBOX} sleep {seconds}")),
            sleeps=True,
        ),
    ]


def _shell(shell: str, sleep: str) -> tuple[str, ...]:
    return (shell, "-c", SHELL_SLEEPS.format(sleep))


async def run(lab: Laboratory) -> list[Check]:
    """Start all; pause; poke; keep a checkpoint; poke again; wait for the sleepers."""
    image = await debian_image(lab.maker.cache, RECIPE, silent)
    start = await golden(lab.maker, image, lab.shape, silent)
    machine = await lab.host.thaw(start, Identity.of("runtimes"))
    started = [await _start(machine, each) for each in programs() if not each.sleeps]
    await _poke_all(started, "before")
    started += [await _start(machine, each) for each in programs() if each.sleeps]
    await _see_blocked(machine, started)
    machine = (await pause(lab.host, machine, PAUSE)).machine
    for each in started:
        await each.exec.attach(machine.agent.channel)
    await _poke_all(started, "after the pause")
    frozen = await lab.host.freeze(machine, Wanted("run"))
    await lab.host.remove(frozen.manifest.id)
    await _poke_all(started, "after the checkpoint")
    for each in started:
        if each.exec.exit is None and await _process(machine, each.exec) != each.process:
            each.wrong.append("is another process")
    await asyncio.gather(*(_wait_asleep(each) for each in started if each.program.sleeps))
    lab.keep("runtimes/said.txt", "".join(f"{e.program.name}: {e.said!r}\n" for e in started))
    return [
        _check(runtime, started) for runtime in dict.fromkeys(e.program.runtime for e in started)
    ]


async def _start(machine: Machine, program: Program) -> Running:
    running = await machine.agent.start(Command(program.argv, stdin=True))
    return Running(program, running, await _process(machine, running))


async def _process(machine: Machine, running: Exec) -> Process | None:
    assert running.pid is not None
    return await find_process(machine, running.pid)


async def _see_blocked(machine: Machine, started: list[Running]) -> None:
    """Wait until each program is blocked where it is to be, in a thread or a child of its own."""
    pids = " ".join(str(each.exec.pid) for each in started)
    # Of each thread of a program and of its children: the program's PID, the system call's number.
    line = (
        f"for p in {pids}; do for q in $p $(cat /proc/$p/task/$p/children); do"
        " for t in /proc/$q/task/*/syscall; do"
        ' read -r call _ <$t && echo "$p $call"; done; done; done'
    )

    async def look() -> bool:
        listed = (await machine.agent.shell(line)).stdout.decode().splitlines()
        for each in started:
            found = [text.split()[1] for text in listed if text.split()[0] == str(each.exec.pid)]
            each.blocked |= {SYSCALLS[number] for number in found if number in SYSCALLS}
        return all(each.program.blocked_in in each.blocked for each in started)

    try:
        await until(look, "all programs to be blocked")
    except TimeoutError:
        for each in started:
            if each.program.blocked_in not in each.blocked:
                each.wrong.append(f"was seen blocked in {sorted(each.blocked)} only")


async def _poke_all(started: list[Running], word: str) -> None:
    await asyncio.gather(*(_poke(each, word) for each in started if not each.program.sleeps))


async def _poke(running: Running, word: str) -> None:
    """Give the program a line; it must come back."""
    line = f"{word} to {running.program.name}\n".encode()
    try:
        await running.exec.write(line)
        await _read_until(running, line)
    except (GuestError, VmError, TimeoutError) as error:
        running.wrong.append(f"{word}: {str(error) or 'no answer'}")


async def _wait_asleep(running: Running) -> None:
    try:
        await _read_until(running, b"\n", ASLEEP + 2 * PATIENCE)
        began, ended = map(float, running.said.split())
    except (VmError, TimeoutError, ValueError) as error:
        running.wrong.append(f"did not wake: {type(error).__name__}, it said {running.said!r}")
        return
    if not ASLEEP - 0.02 <= ended - began <= ASLEEP + LATE:
        running.wrong.append(f"slept for {ended - began:.2f} s instead of {ASLEEP:g}")


async def _read_until(running: Running, end: bytes, limit: float = PATIENCE) -> None:
    async with asyncio.timeout(limit):
        while not running.said.endswith(end):
            async for item in running.exec.output():
                if isinstance(item, Output):
                    running.said += item.data
                if running.said.endswith(end):
                    break
            else:
                raise TimeoutError(f"it ended with {running.exec.exit}")


def _check(runtime: str, started: list[Running]) -> Check:
    own = [each for each in started if each.program.runtime == runtime]
    asleep = any(each.program.sleeps for each in own)
    wrong = [f"{each.program.name} {what}" for each in own for what in each.wrong]
    where = ", ".join(each.program.blocked_in for each in own)
    good = f"{len(own)} programs, seen blocked in {where}, went on"
    return Check(
        f"runtimes-{runtime.lower().replace(' ', '-')}",
        not wrong,
        f"blocked in {where}: the same processes answer after a pause and a checkpoint"
        + (f", a sleep of {ASLEEP:g} s ends when the guest has run for as long" if asleep else ""),
        "; ".join(wrong) or good,
    )


EXPERIMENT = Experiment(
    "runtimes",
    "Programs in Python, Node, Go, shell and static C wait for something while their machine is "
    "paused; each must answer afterwards, and sleepers wake when their time has come.",
    run,
)
