"""Experiment 3: a running machine is forked; in all of them the same process goes on."""

import signal
import time
from dataclasses import dataclass

from torpor.lab.check import Check, Experiment
from torpor.lab.laboratory import Laboratory
from torpor.lab.probes import Probe, Process, ask, find_process, read_lines, start_probe, until
from torpor.vm import Machine, VmError

DIRECTORY = "/srv/lab/steps"
CHILDREN = 2
STEPS = (1, 10, 100)
"""What parent and children are told to count by after the fork, each something else."""
PARENT_LIMIT = 1.0
SLOWER = 5
"""Seconds within which the parent must answer a command after the fork."""


@dataclass(frozen=True)
class Branch:
    """One machine after the fork. ``numbers`` are those of its log, before it was told anything."""

    name: str
    machine: Machine
    process: Process | None
    token: str
    lines: list[str]

    @property
    def numbers(self) -> list[int]:
        """The numbers in its log."""
        return [int(line.split()[0]) for line in self.lines]


def machines_of(children: list[Machine | VmError]) -> list[Machine]:
    """Return the children of a fork. Raises the first one's error if one did not come."""
    found = []
    for child in children:
        if isinstance(child, VmError):
            raise child
        found.append(child)
    return found


def common_start(lists: list[list[str]]) -> list[str]:
    """Return the lines with which all of ``lists`` begin."""
    found = []
    for lines in zip(*lists, strict=False):
        if len(set(lines)) > 1:
            break
        found.append(lines[0])
    return found


async def _hello(machine: Machine) -> tuple[bytes, float]:
    """Have a command say something; return that, and after how many seconds it was done."""
    began = time.monotonic()
    hello = await machine.agent.run("/bin/echo", "here")
    return hello.stdout, time.monotonic() - began


async def run(lab: Laboratory) -> list[Check]:
    """Fork a machine in which a process counts; look at all three; make them diverge."""
    parent = await lab.machine("parent")
    probe = await start_probe(parent, "steps.py", DIRECTORY)

    async def counts() -> bool:
        return len(await read_lines(parent, f"{DIRECTORY}/log")) > 5

    await until(counts, "the count to begin")
    _, usual = await _hello(parent)
    forked = await lab.host.fork(parent, CHILDREN)
    said, answered = await _hello(parent)
    limit = PARENT_LIMIT + SLOWER * usual
    machines = [parent, *machines_of(forked.children)]
    names = ["parent", *(f"child {n}" for n in range(1, CHILDREN + 1))]
    branches = [await _look(name, each, probe) for name, each in zip(names, machines, strict=True)]
    for branch in branches:
        lab.keep(f"fork/{branch.name.replace(' ', '-')}.log", "\n".join(branch.lines) + "\n")
    common = common_start([branch.lines for branch in branches])
    at_fork = int(common[-1].split()[0]) if common else 0
    counted = [branch.numbers == list(range(1, len(branch.lines) + 1)) for branch in branches]
    went_on = [len(branch.lines) > len(common) for branch in branches]
    nexts = [line.split()[0] for branch in branches for line in branch.lines[len(common) :][:1]]
    processes = {(branch.process, branch.token) for branch in branches}
    apart = [await _tell(branch, probe, step) for branch, step in zip(branches, STEPS, strict=True)]
    return [
        Check(
            "fork-same-process",
            len(processes) == 1 and branches[0].process == probe.process,
            f"same PID, same start, same token in memory in all {len(branches)} machines",
            f"PID {probe.process.pid}, token {branches[0].token} in all"
            if len(processes) == 1
            else f"{sorted(map(str, processes))}",
        ),
        Check(
            "fork-counts-on",
            at_fork > 0 and all(counted) and all(went_on),
            "each log has the same lines up to the fork, then the next number, none missing",
            f"at the fork {at_fork}, next {', '.join(nexts)}; "
            + ", ".join(f"{b.name} 1 to {b.numbers[-1]}" for b in branches),
        ),
        Check(
            "fork-diverges",
            all(step == wanted for (_, step), wanted in zip(apart, STEPS, strict=True))
            and len({n for n, _ in apart}) == len(apart),
            "told to count by 1, 10 and 100, each does what it was told",
            ", ".join(f"{b.name} by {s} at {n}" for b, (n, s) in zip(branches, apart, strict=True)),
        ),
        Check(
            "fork-parent-goes-on",
            said == b"here\n" and answered < limit,
            f"a command in the parent right after the fork, within {PARENT_LIMIT:g} s and {SLOWER} "
            "times of what one takes before",
            f"after {answered * 1000:.0f} ms, before {usual * 1000:.0f} ms; its processes stood "
            f"still for {forked.frozen.times.still * 1000:.0f} ms",
        ),
    ]


async def _look(name: str, machine: Machine, probe: Probe) -> Branch:
    """Wait until a machine has counted on for some numbers, then see what is in it."""
    before = len(await read_lines(machine, f"{DIRECTORY}/log"))

    async def counted_on() -> list[str] | None:
        lines = await read_lines(machine, f"{DIRECTORY}/log")
        return lines if len(lines) > before + 5 else None

    lines = await until(counted_on, f"the {name} to count on")
    said = await ask(machine, probe)
    return Branch(
        name, machine, await find_process(machine, probe.process.pid), said["token"], lines
    )


async def _tell(branch: Branch, probe: Probe, step: int) -> tuple[int, int]:
    """Let a machine count by ``step``; return a number and the step between it and the next."""
    agent = branch.machine.agent
    await agent.write_file(f"{DIRECTORY}/step", str(step).encode())
    await agent.signal(probe.exec_id, signal.SIGUSR2)
    changed = len(await read_lines(branch.machine, f"{DIRECTORY}/log")) + 2

    async def two_more() -> list[str] | None:
        lines = await read_lines(branch.machine, f"{DIRECTORY}/log")
        return lines if len(lines) > changed else None

    lines = await until(two_more, f"the {branch.name} to count by {step}")
    before, after = (int(line.split()[0]) for line in lines[-2:])
    return after, after - before


EXPERIMENT = Experiment(
    "fork",
    "A machine in which a process counts is forked twice while it runs: all three have the very "
    "same process, which counts on from the same number and then goes its own way.",
    run,
)
