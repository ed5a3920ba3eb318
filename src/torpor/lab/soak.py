"""The proofs that take long: many kills, streams through many freezes, an archive of gibibytes, all
that one can ask a server for."""

import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from torpor.images import Report, Step
from torpor.lab.archives import archived
from torpor.lab.check import Check
from torpor.lab.kills import kills
from torpor.lab.laboratory import Laboratory, laboratory
from torpor.lab.large_image import large_image
from torpor.lab.schema import check_installed
from torpor.lab.schema_soak import schema_soak
from torpor.lab.server_kills import server_kills
from torpor.settings import Places
from torpor.vm import Command, Exec, Host, Machine, Output, Wanted

LINES = """
n=0
while [ $n -lt %d ]; do n=$((n+1)); echo "line $n of a long stream of lines"; done
"""
"""As fast as the guest can: tens of thousands of lines a minute under emulation."""


@dataclass(frozen=True)
class Long:
    """How much of each part is done; a part of which nothing is done has no check.

    ``kills`` of the program while it freezes and thaws, ``reboots``: kills while a machine reboots,
    ``server_kills`` of a server while sessions are worked with, ``minutes`` of streams, an archive
    of ``archive_mib``, an image with a file of ``image_mib``, ``schema_minutes`` of requests that
    are made up from the OpenAPI document.
    """

    kills: int = 200
    reboots: int = 40
    server_kills: int = 100
    minutes: float = 60.0
    archive_mib: int = 5120
    image_mib: int = 5120
    schema_minutes: float = 60.0


async def soak(places: Places, wanted: Long, report: Report) -> list[Check]:
    """Do what is wanted, one after the other, and return the checks.

    Raises :exc:`torpor.vm.HostError` at once if what a part needs is not installed.
    """
    if wanted.schema_minutes:
        check_installed()
    checks: list[Check] = []
    async with laboratory(places, report) as lab:
        for what, count in (("freezes", wanted.kills), ("reboots", wanted.reboots)):
            if count:
                checks.append(await _killed(lab, places, what, count, report))
        if wanted.server_kills:
            checks.append(await _server_killed(lab, places, wanted.server_kills, report))
        if wanted.minutes:
            checks.append(await _streamed(lab, wanted.minutes, report))
        if wanted.archive_mib:
            checks.append(await _archived(lab, wanted.archive_mib, report))
        if wanted.image_mib:
            checks.append(await large_image(lab, wanted.image_mib, report))
        if wanted.schema_minutes:
            checks += await schema_soak(
                lab.maker, places.home, wanted.schema_minutes, time.time_ns(), report
            )
    return checks


async def _killed(lab: Laboratory, places: Places, what: str, count: int, report: Report) -> Check:
    name = "kills" if what == "freezes" else f"kills at {what}"
    home = Path(tempfile.mkdtemp(prefix="soak-", dir=places.home))
    faults = []
    done = 0
    try:
        async for check in kills(lab.maker, home, count, time.time_ns(), what):
            done += 1
            report(Step(name, done, count, "kills"))
            if not check.ok:
                faults.append(f"{check.name}: {check.seen}")
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return Check(
        name,
        not faults,
        f"after each of {count} kills the newest state goes on and nothing is left behind",
        "; ".join(faults[:5]) or f"{done} of {count} kills went well",
    )


async def _server_killed(lab: Laboratory, places: Places, count: int, report: Report) -> Check:
    done = 0
    last = Check("server kills", False, "", "no server was killed")
    async for check in server_kills(lab.maker, places.home, count, time.time_ns()):
        done += 1
        report(Step("server kills", min(done, count), count, "kills"))
        last = check
    return Check(
        "server kills",
        last.ok and done == count + 1,
        f"after each of {count} kills of the server all sessions are as was acknowledged, and"
        " nothing is left in the end",
        last.seen if last.ok else f"{last.name}: {last.seen}",
    )


async def _streamed(lab: Laboratory, minutes: float, report: Report) -> Check:
    """Freeze and thaw a machine while a stream is open, again and again; compare every byte."""
    machine = await lab.machine("soak")
    began = time.monotonic()
    freezes = received = 0
    fault = ""
    while not fault and time.monotonic() - began < minutes * 60:
        count = 20_000
        running = await machine.agent.start(Command(["/bin/sh", "-c", LINES % count]))
        wanted = b"".join(b"line %d of a long stream of lines\n" % n for n in range(1, count + 1))
        got = bytearray()
        while running.exit is None:
            await _read_for(running, got, 0.7)
            if running.exit is None:
                machine = await _cycle(lab.host, machine, stop=freezes % 2 == 0)
                await running.attach(machine.agent.channel)
                freezes += 1
        received += len(got)
        if got != wanted:
            fault = f"{len(got)} of {len(wanted)} bytes, the first wrong one {_first(got, wanted)}"
        report(Step("streams", int(time.monotonic() - began), int(minutes * 60), "seconds"))
    await lab.host.end(machine)
    return Check(
        "streams",
        not fault,
        "every byte of a stream arrives once and in order, however often it is frozen",
        fault or f"{received} bytes through {freezes} freezes",
    )


async def _archived(lab: Laboratory, mib: int, report: Report) -> Check:
    machine = await lab.machine("soak")
    machine, check = await archived(
        machine, mib, lambda each: _cycle(lab.host, each, stop=True), report
    )
    await lab.host.end(machine)
    return check


async def _read_for(running: Exec, got: bytearray, seconds: float) -> None:
    until = time.monotonic() + seconds
    async for item in running.output():
        if not isinstance(item, Output):
            raise RuntimeError(f"a gap in a stream that is held: {item}")
        got += item.data
        if time.monotonic() > until:
            return


async def _cycle(host: Host, machine: Machine, *, stop: bool) -> Machine:
    frozen = await host.freeze(machine, Wanted("stop" if stop else "run"))
    snapshot = frozen.manifest.id
    if stop:
        machine = await host.thaw(snapshot)
    for old in host.store.ids():
        if old != snapshot:
            await host.remove(old)
    return machine


def _first(got: bytearray, wanted: bytes) -> int:
    pairs = zip(got, wanted, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(got), len(wanted)))
