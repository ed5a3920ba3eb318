"""A process that writes to a file without ever asking for durability loses no line."""

import re
import signal

from torpor.lab.check import Check, Experiment
from torpor.lab.laboratory import Laboratory
from torpor.lab.pauses import pause
from torpor.lab.probes import ask, read_lines, start_probe, until

DIRECTORY = "/srv/lab/writer"
CYCLES = 5


async def run(lab: Laboratory) -> list[Check]:
    """Pause a writer again and again, then end it and count."""
    machine = await lab.machine("writer")
    probe = await start_probe(machine, "writer.py", DIRECTORY)
    told = [(await ask(machine, probe))["written"]]
    for _ in range(CYCLES):
        machine = (await pause(lab.host, machine, 0.3)).machine
        told.append((await ask(machine, probe))["written"])
    await machine.agent.signal(probe.exec_id, signal.SIGTERM)
    total = f"{DIRECTORY}/total"

    async def ended() -> bool:
        status = await machine.agent.stat(total)
        return status is not None and status.size > 0

    await until(ended, "the writer to end")
    counted = int(await machine.agent.read_file(total))
    # What a reader sees now, and what the disk has: once more without the page cache.
    cached = await read_lines(machine, f"{DIRECTORY}/lines")
    await machine.agent.shell("sync; echo 3 >/proc/sys/vm/drop_caches")
    lines = await read_lines(machine, f"{DIRECTORY}/lines")
    lab.keep("writer/lines.txt", "\n".join(lines) + "\n")
    wrong = [
        f"line {n} is {line!r}"
        for n, line in enumerate(lines, 1)
        if not re.fullmatch(rf"{n} line {n}", line)
    ]
    return [
        Check(
            "writer-loses-nothing",
            not wrong and len(lines) == counted and lines == cached,
            f"100 lines a second without fsync, {CYCLES} pauses: as many as the writer counted",
            f"{len(lines)} lines, the writer counted {counted}"
            + "".join(f"; {each}" for each in wrong[:3]),
        ),
        Check(
            "writer-goes-on",
            told == sorted(set(told)),
            "its count, asked of the process itself, has grown after each thaw",
            ", ".join(map(str, told)),
        ),
    ]


EXPERIMENT = Experiment(
    "writer",
    "A process writes numbered lines, never calls fsync, and is paused in the middle; its own "
    "count and the file must agree.",
    run,
)
