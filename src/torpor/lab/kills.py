"""Killing the program at random moments of its work, and looking at what it left."""

import asyncio
import contextlib
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from torpor.images import Maker, Recipe, debian_image, golden, silent
from torpor.lab.check import Check
from torpor.lab.laboratory import SIZE
from torpor.lab.victim import DISK, DISK_FILE, REBOOTS_FILE, counted
from torpor.vm import SIZES, Host, Identity, Machine, RebootedError, VmError

LIMIT = 120.0


@dataclass
class Heard:
    """What the victim has said that it did."""

    count: int = 0
    pid: int = 0
    snapshot: str = ""


async def kill_once(
    maker: Maker, home: Path, delay: float, heard: Heard, what: str = "freezes"
) -> None:
    """Let the victim do ``what`` in ``home``, and kill it ``delay`` seconds after its next word."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "torpor.lab.victim",
        str(home),
        str(maker.cache),
        what,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(LIMIT):
            line = await process.stdout.readline()
            if line:
                hear(line, heard)
                await asyncio.sleep(delay)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            *lines, _cut_off = (await process.stdout.read()).split(b"\n")
            for line in lines:
                hear(line, heard)
            complaint = (await process.stderr.read()).decode(errors="replace")
            if await process.wait() != -signal.SIGKILL:
                raise VmError(f"The victim died by itself: {complaint[-3000:]}")
    finally:
        if process.returncode is None:  # we were interrupted: it must not work on without us
            process.kill()
            await process.wait()


def hear(line: bytes, heard: Heard) -> None:
    """Note what a line of the victim says."""
    word, *rest = line.decode().split()
    if word == "snapshot":
        heard.snapshot = rest.pop(0)
    heard.count, heard.pid = int(rest[0]), int(rest[1])


async def inspect(maker: Maker, home: Path, heard: Heard) -> list[str]:
    """Return what is wrong in ``home`` after a kill; nothing should be."""
    faults: list[str] = []
    async with opened(maker, home) as host:
        ids = host.store.ids()
        if heard.snapshot and (not ids or ids[-1] < heard.snapshot):
            faults.append(f"snapshot {heard.snapshot} was said to be there; there are {ids}")
        hidden = [e.name for e in (home / "snapshots").iterdir() if e.name.startswith(".")]
        if hidden:
            faults.append(f"unfinished snapshots are left: {hidden}")
        faults += [await _alive(machine, heard, "adopted") for machine in host.machines.values()]
        if not host.machines and ids:
            machine = await host.thaw(ids[-1])
            faults.append(await _alive(machine, heard, "thawed"))
            await host.end(machine)
        faults += _strays(host, home)
    return [fault for fault in faults if fault]


async def inspect_rebooted(maker: Maker, home: Path, heard: Heard) -> list[str]:
    """Return what is wrong in ``home`` after a kill in the middle of reboots; nothing should be."""
    faults: list[str] = []
    async with opened(maker, home) as host:
        if heard.count and len(host.machines) != 1:
            found = [f"{each.outcome}: {each.why}" for each in host.recovered]
            faults.append(f"{len(host.machines)} machines run: {found}")
        for machine in host.machines.values():
            count = await _reboots_noted(machine)
            if count < heard.count:
                faults.append(f"{count} lines are on the disk, after {heard.count} were synced")
        faults += _strays(host, home)
    return faults


async def _reboots_noted(machine: Machine) -> int:
    # It may be rebooted once more: what the killed program had started in it runs on.
    while True:
        try:
            agent = await machine.attached()
            return len((await agent.read_file(REBOOTS_FILE)).splitlines())
        except RebootedError:
            continue


async def inspect_disk(maker: Maker, home: Path, heard: Heard) -> list[str]:
    """Return what is wrong in ``home`` after a kill while a disk was written that outlives
    machines; nothing should be."""
    faults: list[str] = []
    async with opened(maker, home) as host:
        if heard.count:
            machine = host.disks.holder(DISK)
            if machine is None:
                image = await debian_image(maker.cache, Recipe(), silent)
                start = await golden(maker, image, SIZES[SIZE], silent)
                machine = await host.thaw(start, Identity.of("look"), disk=DISK)
            if machine.not_mounted:
                faults.append(machine.not_mounted)
            agent = await machine.attached()
            count = len((await agent.read_file(DISK_FILE)).splitlines())
            if count < heard.count:
                faults.append(f"{count} lines are on the disk, after {heard.count} were synced")
        await host.chains.done()  # it removes what it has made superfluous
        faults += _strays(host, home)
    return faults


async def _alive(machine: Machine, heard: Heard, how: str) -> str:
    count, pid = await counted(machine)
    if pid != heard.pid or count < heard.count:
        return f"{how}: count {count} by process {pid}, after {heard.count} by {heard.pid}"
    await asyncio.sleep(0.15)
    later, _ = await counted(machine)
    return "" if later > count else f"{how}: the loop stands still at {count}"


def _strays(host: Host, home: Path) -> list[str]:
    """Return processes, files and locks of ``home`` that nothing knows."""
    faults = []
    known = {machine.pid for machine in host.machines.values()}
    processes = set(host.processes())
    if processes - known:
        faults.append(f"stray processes {sorted(processes - known)}")
    directories = {entry.name for entry in (home / "machines").iterdir()}
    if directories != set(host.machines):
        faults.append(
            f"machine directories {sorted(directories)}, machines {sorted(host.machines)}"
        )
    again = host.collect()
    if again.names:
        faults.append(f"unreachable files {again.names}")
    return faults


@asynccontextmanager
async def opened(maker: Maker, home: Path) -> AsyncIterator[Host]:
    host = await maker.open_host(home)
    try:
        yield host
    finally:
        await host.close()


_LOOKS = {
    "freezes": (0.5, inspect),
    "reboots": (4.0, inspect_rebooted),
    "disks": (2.0, inspect_disk),
}
"""How many seconds a kill may come after a word, and who looks at what it left."""


async def kills(
    maker: Maker, home: Path, count: int, seed: int, what: str = "freezes"
) -> AsyncIterator[Check]:
    """Kill the victim ``count`` times at ``what`` it does (``freezes``, thaws and forks among them,
    ``reboots`` or ``disks``); one check each. Ends what is left in ``home``."""
    chance = random.Random(seed)  # noqa: S311 - repeatable moments, no secret
    heard = Heard()
    try:
        for number in range(1, count + 1):
            longest, look = _LOOKS[what]
            delay = chance.uniform(0, longest)
            await kill_once(maker, home, delay, heard, what)
            faults = await look(maker, home, heard)
            yield Check(
                f"kill {number}",
                not faults,
                "the newest snapshot or the machine goes on, nothing is left behind",
                "; ".join(faults) or f"after {delay:.3f} s: count {heard.count} goes on",
            )
    finally:
        async with opened(maker, home) as host:
            for machine in list(host.machines.values()):
                await host.end(machine)
