"""SQLite and git, frozen in the middle of their work, are whole afterwards."""

import asyncio
import json
import signal
from dataclasses import dataclass

from torpor.lab.check import Check, Experiment
from torpor.lab.disk_check import check_disk
from torpor.lab.laboratory import Laboratory
from torpor.lab.pauses import pause
from torpor.lab.probes import Probe, ask, read_lines, start_probe, until
from torpor.vm import Identity, Machine, Wanted

LEDGER, COMMITS = "/srv/lab/ledger", "/srv/lab/commits"
CYCLES = 5
WORK = 0.7
"""Seconds of work between two pauses."""


@dataclass(frozen=True)
class Report:
    """What the two programs' own checks said of their data.

    ``integrity`` and ``fsck`` are their words, "ok" when all is well. ``entries`` is the number of
    transactions in the ledger, the greatest number among them, and the sum of its accounts, which
    must be 0. ``commits`` is the length of the history.
    """

    integrity: str
    entries: tuple[int, int, int]
    fsck: str
    commits: int

    @property
    def ledger_ok(self) -> bool:
        """Whether the database is whole and adds up."""
        count, last, total = self.entries
        return self.integrity == "ok" and count == last and count > 0 and total == 0

    @property
    def repository_ok(self) -> bool:
        """Whether the repository is whole."""
        return self.fsck == "ok" and self.commits > 0


async def run(lab: Laboratory) -> list[Check]:
    """Pause both under load; keep the disk alone under load; then stop the load and check."""
    machine = await lab.machine("databases")
    ledger = await start_probe(machine, "ledger.py", LEDGER)
    commits = await start_probe(machine, "commits.sh", COMMITS)
    await until(lambda: commit_count(machine), "the first commit")
    for _ in range(CYCLES):
        machine = (await pause(lab.host, machine)).machine
        await asyncio.sleep(WORK)
    # A point at which both are known to have come, before the disk is kept.
    known = (await ask(machine, ledger))["committed"], await commit_count(machine)
    files = await lab.host.freeze(machine, Wanted("run", "none"))
    await asyncio.sleep(WORK)
    ends = (await stop(machine, ledger, commits)), await commit_count(machine)
    after_thaws = await check(machine)
    await lab.host.end(machine)

    snapshot = files.manifest.id
    disk = await check_disk(lab.host, snapshot, lab.host.home / "databases.raw")
    booted = await lab.host.boot_files(snapshot, lab.maker.kernel, Identity.of("databases-files"))
    after_files = await check(booted)
    for name, report in (("after-thaws", after_thaws), ("after-files-only", after_files)):
        lab.keep(f"databases/{name}.json", json.dumps(vars(report), indent=1))
    lab.keep("databases/e2fsck.txt", disk.said)
    return [
        *_checks("thaw", f"after {CYCLES} pauses under load", after_thaws, ends),
        *_checks("files-only", "from the disk alone, kept under load", after_files, known),
        Check(
            "databases-files-only-disk",
            disk.clean,
            "e2fsck -fy on a copy of that disk ends with 0 or 1 and has nothing to repair, then "
            "-fn with 0",
            str(disk),
        ),
    ]


def _checks(name: str, when: str, report: Report, least: tuple[int, int]) -> list[Check]:
    count, _, total = report.entries
    return [
        Check(
            f"databases-{name}-sqlite",
            report.ledger_ok and count >= least[0],
            f"{when}: integrity_check ok, the accounts sum to 0, {least[0]} or more transactions",
            f"integrity_check {report.integrity}, sum {total}, {count} transactions",
        ),
        Check(
            f"databases-{name}-git",
            report.repository_ok and report.commits >= least[1],
            f"{when}: git fsck ok, {least[1]} or more commits",
            f"git fsck {report.fsck}, {report.commits} commits",
        ),
    ]


async def commit_count(machine: Machine) -> int:
    """Return how many commits the load says it has made."""
    lines = await read_lines(machine, f"{COMMITS}/commits")
    return int(lines[0]) if lines else 0


async def stop(machine: Machine, ledger: Probe, commits: Probe) -> int:
    """End both loads wherever they are; return how many transactions were committed until then."""
    committed = int((await ask(machine, ledger))["committed"])
    for probe in (ledger, commits):
        await machine.agent.signal(probe.exec_id, signal.SIGKILL)
    return committed


async def check(machine: Machine) -> Report:
    """Let the two programs check their own data."""
    sqlite = await machine.agent.run(
        "/usr/bin/sqlite3",
        f"{LEDGER}/ledger.db",
        "PRAGMA integrity_check;",
        "SELECT count(*), max(n), (SELECT sum(balance) FROM account) FROM entry;",
    )
    said = (sqlite.stdout + sqlite.stderr).decode("utf-8", "replace").split("\n")
    fsck = await machine.agent.shell(
        f"cd {COMMITS}/repository && git fsck --full --strict --no-dangling --no-progress 2>&1"
    )
    count = await machine.agent.run(
        "git", "-C", f"{COMMITS}/repository", "rev-list", "--count", "HEAD"
    )
    words = fsck.stdout.decode("utf-8", "replace").strip()
    entries = [int(part) for part in said[1].split("|")] if sqlite.exit.ok else [0, 0, 0]
    return Report(
        said[0],
        (entries[0], entries[1], entries[2]),
        "ok" if fsck.exit.ok else f"{fsck.exit}: {words[-300:]}",
        int(count.stdout or 0),
    )


EXPERIMENT = Experiment(
    "databases",
    "SQLite (WAL) and git work as fast as they can and are frozen in the middle; then both check "
    "themselves, after thaws and from the disk alone.",
    run,
)
