"""Experiment 4: what a process holds in memory, and what it has on disk, both go on."""

from functools import partial

from torpor.lab.check import Check, Experiment
from torpor.lab.laboratory import Laboratory
from torpor.lab.pauses import pause
from torpor.lab.probes import Process, ask, find_process, read_lines, start_probe, until
from torpor.vm import Machine

DIRECTORY = "/srv/lab/boot-identity"
CYCLES = 3


async def run(lab: Laboratory) -> list[Check]:
    """Ask the probe before and after each pause."""
    machine = await lab.machine("boot-identity")
    probe = await start_probe(machine, "boot_identity.py", DIRECTORY)
    answers = [await ask(machine, probe)]
    beats = [await _beats(machine)]
    processes: set[Process | None] = {probe.process}
    for _ in range(CYCLES):
        machine = (await pause(lab.host, machine)).machine
        beats.append(await until(partial(_above, machine, beats[-1]), "a heartbeat"))
        answers.append(await ask(machine, probe))
        processes |= {await find_process(machine, probe.process.pid)}
    heartbeat = await read_lines(machine, f"{DIRECTORY}/heartbeat")
    lab.keep("boot-identity/heartbeat.log", "\n".join(heartbeat) + "\n")
    lab.keep("boot-identity/answers.txt", "\n".join(map(str, answers)) + "\n")
    numbers = [int(line.split()[0]) for line in heartbeat]
    counters = [answer["counter"] for answer in answers]
    boot_ids = {answer["boot_id"] for answer in answers}
    pids = {answer["pid"] for answer in answers}
    return [
        Check(
            "boot-identity-same-process",
            processes == {probe.process} and pids == {probe.process.pid},
            f"same PID and start across {CYCLES} snapshots",
            f"PID {', '.join(map(str, sorted(pids)))}",
        ),
        Check(
            "boot-identity-memory",
            len(boot_ids) == 1 and counters == sorted(set(counters)),
            "the boot id in memory is the same, the counter in memory has grown at each question",
            f"boot id {', '.join(sorted(each[:8] for each in boot_ids))}; "
            f"counter {', '.join(map(str, counters))}",
        ),
        Check(
            "boot-identity-heartbeat",
            numbers == list(range(1, len(numbers) + 1)) and beats == sorted(set(beats)),
            "the heartbeat on disk goes on after each thaw, none twice or missing",
            f"after each: {', '.join(map(str, beats))}; in all 1 to {numbers[-1]} in "
            f"{len(numbers)} lines",
        ),
    ]


async def _beats(machine: Machine) -> int:
    return len(await read_lines(machine, f"{DIRECTORY}/heartbeat"))


async def _above(machine: Machine, before: int) -> int | None:
    beats = await _beats(machine)
    return beats if beats > before else None


EXPERIMENT = Experiment(
    "boot-identity",
    "A process makes up an id that it keeps in memory only, counts, and beats on disk; after a "
    "thaw it is asked who it is.",
    run,
)
