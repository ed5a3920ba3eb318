"""What Torpor does, told as a short story with a real machine."""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from torpor.images import Report, Step
from torpor.lab.checks.counter import Line, around, last_line, parse, start_counter
from torpor.lab.laboratory import Laboratory, laboratory
from torpor.lab.probes import Process, find_process, program_text, read_lines, until
from torpor.settings import Places
from torpor.vm import MIB, Machine, VmError, Wanted

LOG = "/srv/counter.log"
FIRST_LINES = 4
PAUSE = 10
"""Seconds that the machine does not exist."""
ALONE = 4
"""Seconds that one of the forks is frozen while the others count on."""


async def tell(places: Places, console: Console) -> None:
    """Freeze, thaw and fork a machine, and print what happens. Raises ImageError, VmError."""
    async with AsyncExitStack() as stack:
        opening = laboratory(places, _steps(console))
        with console.status("Opening a laboratory"):
            lab = await stack.enter_async_context(opening)
        began = time.monotonic()
        console.rule("Torpor: one machine, frozen, thawed and forked", align="left")
        machine, counter = await _start(lab, console)
        machine = await _pause(lab, console, machine, counter)
        await _fork(lab, console, machine)
    console.print(
        f"\nThat took {time.monotonic() - began:.0f} s, and all machines are gone again. Next: "
        "[bold]torpor lab proof[/] checks this and more, again and again; README.md says where to "
        "read on."
    )


async def _start(lab: Laboratory, console: Console) -> tuple[Machine, Process]:
    _chapter(console, "1. A machine")
    with console.status("Thawing"):
        since = time.monotonic()
        machine = await lab.machine("demo")
        took = time.monotonic() - since
    how = {"tcg": "software emulation", "kvm": "KVM"}[lab.maker.accelerator.name]
    console.print(
        f"A machine with its own Linux ({lab.shape}, {how}) was ready {took:.2f} s after it was "
        "asked for: it did not boot, it was thawed from a snapshot of a booted one. In it now "
        "runs a shell loop:\n"
    )
    for code in program_text("counter.sh").splitlines():
        if not code.startswith("#"):
            console.print(f"    [cyan]{escape(code)}[/]")
    console.print(
        "\nThe number is in a variable of that shell, and nowhere else. Nothing ever reads the log "
        "back:\n"
    )
    counter = (await start_counter(machine, LOG, 1.0)).process
    shown = 0
    while shown < FIRST_LINES:
        await last_line(machine, LOG, shown)
        lines = parse(await read_lines(machine, LOG))
        for line in lines[shown:]:
            console.print(f"    {line}")
        shown = len(lines)
    return machine, counter


async def _pause(lab: Laboratory, console: Console, machine: Machine, counter: Process) -> Machine:
    _chapter(console, "2. Freeze")
    pid = machine.pid
    boot_id = machine.record.guest_boot_id
    since = time.monotonic()
    frozen = await lab.host.freeze(machine, Wanted("stop"))
    took = time.monotonic() - since
    began = time.time_ns()
    gone = "is gone" if not Path(f"/proc/{pid}").exists() else "IS STILL THERE"
    console.print(
        f"Frozen in {took:.2f} s. All that it was beyond the snapshot that it came from is "
        f"{frozen.manifest.stored_bytes / MIB:.0f} MiB on disk. Its process on this host "
        f"(PID {pid}) {gone}; nothing of it runs. {PAUSE} s pass."
    )
    with console.status("The machine does not exist"):
        await asyncio.sleep(PAUSE)
    _chapter(console, "3. Thaw")
    since = time.monotonic()
    machine = await lab.host.thaw(frozen.manifest.id)
    took = time.monotonic() - since
    before, after = await until(lambda: _around(machine, began), "the counter to go on")
    same = await find_process(machine, counter.pid) == counter
    same_boot = boot_id == machine.record.guest_boot_id
    console.print(
        f"Thawed and ready in {took:.2f} s. The log, around the pause:\n\n"
        f"    [bold green]{before}[/]\n"
        f"    [bold green]{after}[/]\n\n"
        f"The next number, {_seconds(before, after)} s later. "
        f"{'The same process' if same else 'ANOTHER PROCESS'} (PID {counter.pid} in the machine), "
        f"{'the same boot' if same_boot else 'ANOTHER BOOT'}: it went on from the instruction "
        "where it stood."
    )
    return machine


def _seconds(before: Line, after: Line) -> int:
    return (after.second - before.second) % 86_400


async def _around(machine: Machine, began: int) -> tuple[Line, Line] | None:
    try:
        return around(parse(await read_lines(machine, LOG)), began)
    except ValueError:  # the line after the pause is not there yet
        return None


async def _fork(lab: Laboratory, console: Console, parent: Machine) -> None:
    _chapter(console, "4. Fork")
    since = time.monotonic()
    forked = await lab.host.fork(parent, 2)
    took = time.monotonic() - since
    machines = {"the first": parent}
    for number, child in enumerate(forked.children, 1):
        if isinstance(child, VmError):
            raise child
        machines[f"fork {number}"] = child
    last = min([(await last_line(each, LOG)).n for each in machines.values()])
    console.print(
        f"Two copies of the running machine were ready {took:.2f} s later; it went on itself after "
        f"{forked.frozen.times.still:.2f} s. Fork 1 is now frozen alone for {ALONE} s and thawed; "
        "the others do not notice.\n"
    )
    with console.status("Three machines count"):
        for each in machines.values():
            await last_line(each, LOG, last + 1)
        frozen = await lab.host.freeze(machines["fork 1"], Wanted("stop"))
        await asyncio.sleep(ALONE)
        machines["fork 1"] = await lab.host.thaw(frozen.manifest.id)
        await last_line(machines["fork 1"], LOG, (await last_line(machines["fork 1"], LOG)).n)
        logs = {name: parse(await read_lines(each, LOG)) for name, each in machines.items()}
    console.print(_side_by_side(logs))
    console.print(
        "\nOne past, then three lives: the same process in all three counted on from the same "
        "number."
    )


def _side_by_side(logs: dict[str, list[Line]]) -> Table:
    """Return the logs of all machines, from one line before the last that they share."""
    times = [{line.n: line.time for line in lines} for lines in logs.values()]
    shared = [n for n in times[0] if len({each.get(n) for each in times}) == 1]
    table = Table(box=None, padding=(0, 0, 0, 4))
    table.add_column("n", justify="right")
    for name in logs:
        table.add_column(name)
    for n in range(max([1, *shared]) - 1 or 1, max(map(max, times)) + 1):
        style = "dim" if n in shared else ""
        table.add_row(str(n), *(each.get(n, "") for each in times), style=style)
    return table


def _chapter(console: Console, title: str) -> None:
    console.print(f"\n[bold]{title}[/]\n")


def _steps(console: Console) -> Report:
    """Return a report that prints each step of the set-up once; none is left as a rule."""
    seen: set[str] = set()

    def report(step: Step) -> None:
        if step.name not in seen:
            seen.add(step.name)
            console.print(f"[dim]{escape(step.name)}[/]")

    return report
