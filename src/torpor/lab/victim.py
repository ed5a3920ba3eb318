"""The program that ``torpor lab soak`` kills: it freezes, thaws and forks one machine, without end,
or has one rebooted from inside again and again, or has one machine after the other write a disk
that outlives them.

Run as ``python -m torpor.lab.victim HOME CACHE freezes|reboots|disks``. It says each thing that it
has done, one line each, so that whoever kills it knows what must not be lost.
"""

import asyncio
import sys
from pathlib import Path

from torpor.images import Recipe, debian_image, golden, maker, silent
from torpor.lab.laboratory import SIZE
from torpor.vm import SIZES, Command, Host, Identity, Machine, Wanted

COUNTER = """
n=0
while :; do n=$((n+1)); echo $n > /root/counter; echo $n $$ >> /root/counter.log; sleep 0.05; done
"""
"""Counts in memory; the file repeats the count and is never read back by the loop."""


REBOOTS_FILE = "/root/reboots"
DISK, DISK_SIZE, DISK_FILE = "kept", 1 << 30, "/workspace/lines"


async def counted(machine: Machine) -> tuple[int, int]:
    """Return the newest count that the machine's loop has logged, and the loop's process id."""
    said = await machine.agent.shell("tail -n 2 /root/counter.log | head -n 1")
    count, pid = said.stdout.split()
    return int(count), int(pid)


async def work(home: Path, cache: Path, what: str) -> None:
    """Work until killed."""
    made = await maker(cache, silent)
    image = await debian_image(cache, Recipe(), silent)
    start = await golden(made, image, SIZES[SIZE], silent)
    host = await made.open_host(home)
    await {"freezes": _freezes, "reboots": _reboots, "disks": _disks}[what](host, start)


async def _reboots(host: Host, start: str) -> None:
    again = asyncio.Event()
    machine = await _some_machine(host, start)
    machine.on_reboot(lambda _machine: again.set())
    while True:
        agent = await machine.attached()
        said = await agent.shell(f"echo x >> {REBOOTS_FILE}; sync; wc -l < {REBOOTS_FILE}")
        say("synced", int(said.stdout), 0)
        again.clear()
        await agent.start(Command(["/run/torpor/tools/bin/busybox", "reboot", "-f"]))
        await again.wait()


async def _disks(host: Host, start: str) -> None:
    await host.disks.make(DISK, DISK_SIZE)
    turn = 0
    while True:
        turn += 1
        machine = host.disks.holder(DISK)
        if machine is None:
            machine = await host.thaw(start, Identity.of("victim"), disk=DISK)
        agent = await machine.attached()
        said = await agent.shell(f"echo x >> {DISK_FILE}; sync; wc -l < {DISK_FILE}")
        say("written", int(said.stdout), 0)
        if turn % 3 == 0:
            await host.disks.release(machine, DISK)
        elif turn % 3 == 1:
            await host.freeze(machine, Wanted("run"))
        else:
            frozen = await host.freeze(machine, Wanted("stop"))
            await host.thaw(frozen.manifest.id, disk=DISK)
        for old in host.store.ids()[:-1]:
            await host.remove(old)


async def _freezes(host: Host, start: str) -> None:
    turn = 0
    while True:
        machine = await _some_machine(host, start)
        for each in list(host.machines.values()):
            if each is not machine:
                await host.end(each)
        turn += 1
        count, pid = await counted(machine)
        say("counted", count, pid)
        if turn % 3 == 0:
            forked = await host.fork(machine, 1)
            say("snapshot", forked.frozen.manifest.id, count, pid)
        frozen = await host.freeze(machine, Wanted("stop"))
        say("snapshot", frozen.manifest.id, count, pid)
        for old in host.store.ids()[:-2]:
            await host.remove(old)


async def _some_machine(host: Host, start: str) -> Machine:
    if host.machines:
        return next(iter(host.machines.values()))
    if host.store.ids():
        return await host.thaw(host.store.ids()[-1])
    machine = await host.thaw(start, Identity.of("victim"))
    await machine.agent.shell(f"({COUNTER}) </dev/null >/dev/null 2>&1 & sleep 0.3")
    return machine


def say(*words: object) -> None:
    """Print one line at once."""
    print(*words, flush=True)


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
