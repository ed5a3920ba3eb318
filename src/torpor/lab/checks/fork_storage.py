"""Forks share what was on the disk, and nothing that comes after; their base never changes."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from torpor.lab.check import Check, Experiment
from torpor.lab.checks import databases
from torpor.lab.checks.fork import machines_of
from torpor.lab.disk_check import DiskChecked, check_disk
from torpor.lab.laboratory import Laboratory
from torpor.lab.probes import Probe, ask, run_program, start_probe, until
from torpor.vm import Machine
from torpor.vm.base import digest_base

SYNCING, BULK = "/srv/lab/syncing", "/srv/lab/bulk"
CHILDREN = 4
MIB_EACH = 200
WORK = 1.0
"""Seconds of load before the fork and after it."""

T = TypeVar("T")


@dataclass(frozen=True)
class Loads:
    """What runs while the machine is forked."""

    ledger: Probe
    commits: Probe
    syncing: Probe


@dataclass(frozen=True)
class Report:
    """What a fork's data looked like: ``records`` whole ones of ``synced``, ``torn`` bytes after
    them."""

    databases: databases.Report
    synced: int
    records: int
    torn: int

    @property
    def ok(self) -> bool:
        """Whether nothing that was synced is lost, and all is whole."""
        return (
            self.databases.ledger_ok
            and self.databases.repository_ok
            and 0 < self.synced <= self.records
            and not self.torn
        )

    def __str__(self) -> str:
        return (
            f"integrity_check {self.databases.integrity}, git fsck {self.databases.fsck}, "
            f"{self.records} records of {self.synced}"
        )


async def run(lab: Laboratory) -> list[Check]:
    """Fork under load; check the loads' data; fill the disks; delete the parent; fork a fork."""
    host = lab.host
    stored = await asyncio.to_thread(_digests, _golden_files(lab))
    parent = await lab.machine("parent")
    loads = await _start_loads(parent)
    await asyncio.sleep(WORK)
    forked = await host.fork(parent, CHILDREN)
    children = machines_of(forked.children)
    machines = {"parent": parent} | {f"child-{n}": m for n, m in enumerate(children, 1)}
    await asyncio.sleep(WORK)
    reports = await _each(machines, lambda _, machine: _check_loads(machine, loads))
    lab.keep("fork-storage/loads.json", json.dumps({k: str(v) for k, v in reports.items()}))
    disk = await check_disk(host, forked.frozen.manifest.id, host.home / "fork-storage.raw")

    wrote = await _each(machines, lambda name, machine: _bulk(machine, "write", name))
    read = await _each(machines, lambda name, machine: _bulk(machine, "read", name))

    await host.end(machines.pop("parent"))
    await host.remove(forked.frozen.manifest.id)
    # The first child becomes a parent itself, and is deleted as well.
    again = await host.fork(machines["child-1"], 2)
    await host.end(machines.pop("child-1"))
    orphans = {f"grandchild-{n}": m for n, m in enumerate(machines_of(again.children), 1)}
    inherited = await _each(orphans, lambda _, machine: _bulk(machine, "read", "child-1"))
    rewrote = await _each(orphans, lambda name, machine: _bulk(machine, "write", name))
    everybody = machines | orphans
    mapped = await asyncio.to_thread(_digests_of_memory, list(everybody.values()))
    bases = await asyncio.to_thread(_digests, {base: host.store.base(base) for base in mapped})
    reread = await _each(everybody, lambda name, machine: _bulk(machine, "read", name))
    return [
        *_load_checks(reports, disk),
        _bulk_check(
            "fork-storage-own-data",
            f"parent and {CHILDREN} forks each write {MIB_EACH} MiB of their own and read them "
            "back from the disk",
            wrote,
            read,
        ),
        _bulk_check(
            "fork-storage-forks-of-forks",
            "parent deleted; a fork is forked and deleted too: its children read what it wrote and "
            "write their own, the other forks still have theirs",
            inherited,
            rewrote,
            reread,
        ),
        _base_check(stored, await asyncio.to_thread(_digests, _golden_files(lab)), mapped, bases),
    ]


async def _start_loads(machine: Machine) -> Loads:
    loads = Loads(
        await start_probe(machine, "ledger.py", databases.LEDGER),
        await start_probe(machine, "commits.sh", databases.COMMITS),
        await start_probe(machine, "syncing.py", SYNCING, "write", SYNCING),
    )

    async def working() -> bool:
        commits = await databases.commit_count(machine)
        return commits > 0 and int((await ask(machine, loads.syncing))["synced"]) > 0

    await until(working, "the loads to work")
    return loads


async def _check_loads(machine: Machine, loads: Loads) -> Report:
    synced = int((await ask(machine, loads.syncing))["synced"])
    await machine.agent.signal(loads.syncing.exec_id, 9)
    await databases.stop(machine, loads.ledger, loads.commits)
    await machine.agent.shell("sync; echo 3 >/proc/sys/vm/drop_caches")
    found = json.loads(await run_program(machine, "syncing.py", "check", SYNCING))
    return Report(await databases.check(machine), synced, found["whole"], found["torn"])


async def _bulk(machine: Machine, action: str, word: str) -> int:
    """Write or check a machine's large file; return how many MiB were right."""
    return int(await run_program(machine, "bulk.py", action, BULK, word, str(MIB_EACH)))


async def _each(
    machines: Mapping[str, Machine], do: Callable[[str, Machine], Awaitable[T]]
) -> dict[str, T]:
    """Do something with all machines at once."""
    done = await asyncio.gather(*(do(name, machine) for name, machine in machines.items()))
    return dict(zip(machines, done, strict=True))


def _load_checks(reports: Mapping[str, Report], disk: DiskChecked) -> list[Check]:
    bad = [f"{name}: {report}" for name, report in reports.items() if not report.ok]
    least = min(reports.values(), key=lambda report: report.synced)
    return [
        Check(
            "fork-storage-under-load",
            not bad,
            f"SQLite (WAL), git and a loop of fsync, forked at work: in all {len(reports)} "
            "machines integrity_check and git fsck ok, every synced record there",
            "; ".join(bad) or f"all well; the fewest: {least}",
        ),
        Check(
            "fork-storage-disk",
            disk.clean,
            "e2fsck -fy on a copy of the disk at the fork ends with 0 or 1, then -fn with 0",
            str(disk),
        ),
    ]


def _bulk_check(name: str, expected: str, *rounds: Mapping[str, int]) -> Check:
    wrong = [
        f"{machine}: {right} of {MIB_EACH} MiB"
        for each in rounds
        for machine, right in each.items()
        if right != MIB_EACH
    ]
    good = f"{sum(map(len, rounds))} times {MIB_EACH} MiB, every byte right"
    return Check(name, not wrong, expected, "; ".join(wrong) or good)


def _golden_files(lab: Laboratory) -> dict[str, Path]:
    """Return the files of the golden snapshot that machines share: base and layers."""
    store = lab.maker.store()
    found = store.manifest(lab.golden)
    assert found.memory is not None
    layers = {f"layer {each.id}": store.layer(each) for each in (*found.disk, found.tools)}
    return {"base": store.base(found.memory.base), **layers}


def _digests(files: Mapping[str, Path]) -> dict[str, str]:
    return {name: _digest(file) for name, file in files.items()}


def _digest(file: Path) -> str:
    with open(file, "rb", buffering=0) as opened:
        return digest_base(opened.fileno())


def _digests_of_memory(machines: Iterable[Machine]) -> dict[str, str]:
    """Return the digest of what each machine's memory is mapped from, by the base's name.

    Before QEMU 8.2 that is a sealed copy in memory, later the base's own file.
    """
    found: dict[str, str] = {}
    for machine in machines:
        assert machine.record.base is not None
        if machine.record.base not in found:
            found[machine.record.base] = _digest(_mapped_file(machine))
    return found


def _mapped_file(machine: Machine) -> Path:
    for entry in Path(f"/proc/{machine.pid}/fd").iterdir():
        status = entry.stat()
        if (status.st_dev, status.st_ino) == machine.record.memory_file:
            return entry
    raise RuntimeError(f"QEMU of machine {machine.id} does not have its memory's file open")


def _base_check(
    before: Mapping[str, str],
    after: Mapping[str, str],
    mapped: Mapping[str, str],
    bases: Mapping[str, str],
) -> Check:
    changed = [name for name in before if before[name] != after[name]]
    changed += [f"the mapped {name}" for name, digest in mapped.items() if bases[name] != digest]
    return Check(
        "fork-storage-base",
        not changed,
        "the golden snapshot's base and layers, and what the machines' memory is mapped from, have "
        "the hashes that they had",
        "; ".join(f"{each} has changed" for each in changed)
        or f"base {before['base'][:16]}, unchanged, as {len(before) - 1} layers and "
        f"{len(mapped)} mapped bases",
    )


EXPERIMENT = Experiment(
    "fork-storage",
    "A machine is forked four times in the middle of its work on the disk: each fork has all of "
    "it, what it writes from then on is its own, and what they all share never changes.",
    run,
)
