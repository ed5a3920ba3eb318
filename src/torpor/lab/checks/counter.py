"""Experiment 1: a number that only exists in a shell variable goes on where it stood."""

import re
import time
from dataclasses import dataclass
from itertools import pairwise

from torpor.lab.check import Check, Experiment
from torpor.lab.laboratory import Laboratory
from torpor.lab.pauses import pause
from torpor.lab.probes import Probe, Process, find_process, read_lines, start_probe, until
from torpor.vm import Machine

CYCLES = 20
LONG_PAUSE = 6.0
"""Seconds of the one long pause; the others are as short as freeze and thaw are."""
SLOW, FAST = "/srv/lab/slow.log", "/srv/lab/fast.log"
_DAY = 86_400


@dataclass(frozen=True)
class Line:
    """One line of a counter's log: ``<n> <UTC time>``."""

    n: int
    time: str

    def __str__(self) -> str:
        return f"{self.n} {self.time}"

    @property
    def second(self) -> int:
        """The time as the second of its day."""
        hours, minutes, seconds = self.time.split(":")
        return int(hours) * 3600 + int(minutes) * 60 + int(seconds)


def parse(lines: list[str]) -> list[Line]:
    """Return the lines of a log. Raises ValueError for one that is none."""
    found = []
    for line in lines:
        if not (match := re.fullmatch(r"(\d+) (\d\d:\d\d:\d\d)", line)):
            raise ValueError(f"{line!r} is not a line of a counter's log")
        found.append(Line(int(match[1]), match[2]))
    return found


def around(lines: list[Line], began_ns: int) -> tuple[Line, Line]:
    """Return the neighbouring lines between which a pause lies that began at a wall clock time.

    The pause must be longer than a second, the resolution of the log.
    """
    began = _second(began_ns)
    for before, after in pairwise(lines):
        # Seen from the second in which the pause began, on whichever day.
        if (
            (before.second - began + _DAY // 2) % _DAY
            <= _DAY // 2
            < (after.second - began + _DAY // 2) % _DAY
        ):
            return before, after
    raise ValueError("the log has no line on one of the two sides of the pause")


def gaps(lines: list[Line]) -> list[str]:
    """Return where the numbers of a log are not 1, 2, 3 and so on."""
    expected = [line.n for line in lines] == list(range(1, len(lines) + 1))
    pairs = pairwise(lines)
    found = [f"{a} / {b}" for a, b in pairs if b.n != a.n + 1]
    return found or ([] if expected else [f"it begins with {lines[0]}"])


async def start_counter(machine: Machine, log: str, seconds: float) -> Probe:
    """Start a counter in a machine."""
    return await start_probe(machine, "counter.sh", f"{log}.d", log, f"{seconds:g}")


async def last_line(machine: Machine, log: str, above: int = 0) -> Line:
    """Return the last line of a log, as soon as its number is greater than ``above``."""

    async def look() -> Line | None:
        lines = parse((await read_lines(machine, log))[-1:])
        return lines[0] if lines and lines[0].n > above else None

    return await until(look, f"{log} to have a number above {above}")


async def run(lab: Laboratory) -> list[Check]:
    """Let two counters run through all cycles."""
    machine = await lab.machine("counter")
    slow = await start_counter(machine, SLOW, 1.0)
    fast = await start_counter(machine, FAST, 0.1)
    boot_id = await _boot_id(machine)
    seen: set[tuple[Process | None, Process | None, str]] = {(slow.process, fast.process, boot_id)}
    last = await last_line(machine, FAST, 2)
    long = None
    advanced = 0
    for cycle in range(1, CYCLES + 1):
        is_long = cycle == CYCLES // 2
        paused = await pause(lab.host, machine, LONG_PAUSE if is_long else 0.0)
        machine = paused.machine
        if is_long:
            long = paused
        # One more number in the same variable before the next freeze: it does go on.
        last = await last_line(machine, FAST, last.n)
        advanced += 1
        found = [await find_process(machine, probe.process.pid) for probe in (slow, fast)]
        seen.add((found[0], found[1], await _boot_id(machine)))
    assert long is not None
    await last_line(machine, SLOW, (await last_line(machine, SLOW)).n)
    read_at = time.time_ns()
    logs = {name: await machine.agent.read_file(name) for name in (SLOW, FAST)}
    lab.keep("counter/every-second.log", logs[SLOW])
    lab.keep("counter/ten-a-second.log", logs[FAST])
    lines = {name: parse(await read_lines(machine, name)) for name in (SLOW, FAST)}
    before, after = around(lines[SLOW], long.began)
    paused_for = (long.ended - long.began) / 1e9
    # Written neither before the thaw began nor after the log was read.
    came = (after.second - _second(long.ended)) % _DAY
    in_time = came <= (read_at - long.ended) / 1e9 + 1
    wrong = [*gaps(lines[SLOW]), *gaps(lines[FAST])]
    counted = f"1 to {lines[FAST][-1].n} and 1 to {lines[SLOW][-1].n}"
    return [
        Check(
            "counter-goes-on",
            not wrong and advanced == CYCLES,
            f"two counters count 1, 2, 3, ... through {CYCLES} pauses, no number twice or missing",
            f"{counted}, none twice or missing" if not wrong else f"not neighbours: {wrong[:3]}",
        ),
        Check(
            "counter-neighbours",
            after.n == before.n + 1 and in_time,
            f"next number after a pause of {paused_for:.0f} s, wall clock moved on by the pause",
            f"{before} / {after}",
        ),
        Check(
            "counter-same-process",
            len(seen) == 1,
            f"same PID, same start of the process, after each of {CYCLES} thaws",
            f"PID {slow.process.pid} and {fast.process.pid} all along"
            if len({each[:2] for each in seen}) == 1
            else f"{sorted(map(str, seen))[:3]}",
        ),
        Check(
            "counter-same-boot",
            len({each[2] for each in seen}) == 1,
            "same boot id of the kernel all along",
            ", ".join(sorted({each[2] for each in seen})),
        ),
    ]


def _second(wall_ns: int) -> int:
    return wall_ns // 1_000_000_000 % _DAY


async def _boot_id(machine: Machine) -> str:
    # Asked of the kernel, not of what the host remembers.
    return (await machine.agent.read_file("/proc/sys/kernel/random/boot_id")).decode().strip()


EXPERIMENT = Experiment(
    "counter",
    "A shell loop counts in a variable, is paused again and again, and must go on with the next "
    "number: only the very same process can know it.",
    run,
)
