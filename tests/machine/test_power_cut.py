"""The power is cut at random moments: what was durable goes on, what was not is named as lost."""

import os
import random
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.machine.conftest import Start
from tests.machine.serving import a_server, counting, destroy_all, goes_on, left_over, numbers
from torpor.client import ApiError, Client, ConflictError, Session
from torpor.lab.remains import machine_processes
from torpor.lab.server import Server
from torpor.vm.manifest import SUMS, Sums, read

pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(os.geteuid() != 0, reason="another boot of the host is made by mounting"),
]

CUTS, SESSIONS = 3, 4
REBOOTED = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'


@dataclass
class Ledger:
    """What was acknowledged of a session. ``counts`` has, for each generation whose snapshot is
    acknowledged, a number that the counter had reached by then; ``durable`` those that must survive
    a power cut."""

    session: str
    counts: dict[int, int] = field(default_factory=dict)
    durable: set[int] = field(default_factory=set)


def work(client: Client, ledger: Ledger, stop: threading.Event, seed: int) -> None:
    """Pause, resume and checkpoint a session, and write down what is acknowledged."""
    chance = random.Random(seed)
    while not stop.is_set():
        durable = chance.random() < 0.5
        count = len(numbers(client, ledger.session))
        if chance.random() < 0.5:
            made = client.create_checkpoint(ledger.session, durable=durable)
            generation = made.generation
        else:
            client.pause_session(ledger.session, durable=durable)
            generation = client.get_session(ledger.session).generation
        ledger.counts[generation] = count
        if durable:
            ledger.durable.add(generation)
        time.sleep(chance.uniform(0, 0.5))
        client.resume_session(ledger.session)


@contextmanager
def at_work(server: Server, ledgers: list[Ledger]) -> Iterator[None]:
    stop = threading.Event()
    failures: list[Exception] = []

    def run(ledger: Ledger, number: int) -> None:
        try:
            with server.waiting_client() as client:
                work(client, ledger, stop, number)
        except Exception as error:
            failures.append(error)

    threads = [
        threading.Thread(target=run, args=(ledger, number)) for number, ledger in enumerate(ledgers)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []


def cut(server: Server, copy: Path, chance: random.Random) -> None:
    """Make of a home what the disk has at one moment: what was not forced to it is gone."""
    machines = [process.pid for process in machine_processes(server.home).values()]
    stopped = [server.pid, *machines]
    try:
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        for part in ("bases", "layers"):  # these files never change
            shutil.copytree(server.home / part, copy / part, copy_function=os.link)
        for part in ("snapshots", "machines", "database"):
            shutil.copytree(server.home / part, copy / part, ignore=_no_files)
        for name in ("host.id", "admin-token"):
            shutil.copy2(server.home / name, copy / name)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    forget_unsynced(copy, chance)


def forget_unsynced(copy: Path, chance: random.Random) -> None:
    """Damage what no durable snapshot needs."""
    (copy / "database" / "torpor.db-shm").unlink(missing_ok=True)
    needed = set()
    for snapshot in (copy / "snapshots").iterdir():
        if (snapshot / SUMS).exists():
            needed |= read(Sums, snapshot / SUMS).files.keys()
        elif chance.random() < 0.3:
            shutil.rmtree(snapshot)
        else:
            for file in snapshot.iterdir():
                damage(file, chance)
    # What a golden snapshot has is in the cache too, and was there before.
    unsynced = [
        file
        for part in ("bases", "layers")
        for file in (copy / part).iterdir()
        if f"{part}/{file.name}" not in needed and file.stat().st_mtime > STARTED
    ]
    tops = [file for file in (copy / "machines").glob("*/*.qcow2") if file.is_file()]
    for file in unsynced + tops:
        damage(file, chance)


STARTED = time.time()


def damage(file: Path, chance: random.Random) -> None:
    """Leave of a file what a file system may leave: nothing, an empty one, half, or zeros."""
    size = file.stat().st_size
    content = file.read_bytes()[: size // 2]
    file.unlink()  # it may have other names
    match chance.randrange(4):
        case 1:
            file.touch()
        case 2:
            file.write_bytes(content)
        case 3:
            file.write_bytes(content + bytes(size - len(content)))


def _no_files(directory: str, names: list[str]) -> list[str]:
    """Sockets and pipes, which have nothing on the disk."""
    paths = {name: Path(directory) / name for name in names}
    return [name for name, path in paths.items() if not path.is_file() and not path.is_dir()]


def test_what_was_durable_goes_on_after_a_power_cut_and_the_rest_is_named(
    start: Start, home: Path
) -> None:
    chance = random.Random(6)
    with a_server(start) as server, server.waiting_client() as client:
        ledgers = [Ledger(client.create_session(wait=True).id) for _ in range(SESSIONS)]
        for ledger in ledgers:
            counting(client, ledger.session)
        acknowledged = []
        with at_work(server, ledgers):
            for number in range(CUTS):
                time.sleep(chance.uniform(1, 4))
                acknowledged.append(
                    [Ledger(each.session, dict(each.counts), set(each.durable)) for each in ledgers]
                )
                cut(server, home / f"copy-{number}", chance)
        destroy_all(client)
    for number in range(CUTS):
        boot = home / f"boot-{number}"
        boot.write_text(f"{secrets.token_hex(4)}-0000-4000-8000-{secrets.token_hex(6)}\n")
        rebooted = ("unshare", "--mount", "sh", "-c", REBOOTED, str(boot))
        with (
            a_server(start, home / f"copy-{number}", rebooted) as again,
            again.waiting_client() as client,
        ):
            for ledger in acknowledged[number]:
                check(client, client.get_session(ledger.session), ledger)
            assert left_over(again) == []
            destroy_all(client)
            assert left_over(again) == []
            assert list((again.home / "snapshots").iterdir()) == []


def check(client: Client, session: Session, ledger: Ledger) -> None:
    """Check what a session is after the power cut, and let it go on."""
    nodes = client.get_tree(session.id).nodes
    there = {node.generation: node for node in nodes if node.status == "READY"}
    lost = {node.snapshot for node in nodes if node.status == "LOST"}
    told = {
        str(event.data["snapshot_id"])
        for event in client.get_history(session.id, limit=500).events
        if event.type == "snapshot.lost"
    }
    assert lost <= told
    newest = max(ledger.durable, default=0)
    if session.status == "PAUSED":
        assert session.generation >= newest
        assert there[session.generation].durable
        client.resume_session(session.id)
        assert goes_on(client, session.id) >= ledger.counts.get(session.generation, 0)
        return
    assert session.status == "FAILED"
    with pytest.raises(ConflictError):  # never an older generation without being asked
        client.resume_session(session.id)
    offered = {each.generation: each for each in session.recoverable}
    with_memory = [g for g, each in offered.items() if each.kind != "files"]
    assert all(offered[generation].durable for generation in with_memory)
    # A checkpoint stays; the snapshot of a pause goes when a newer one is durable.
    kept = {node.generation for node in nodes if node.checkpoint is not None and node.durable}
    assert kept <= offered.keys()
    if with_memory:
        chosen = max(with_memory)
        client.resume_session(session.id, snapshot=offered[chosen].snapshot)
        assert goes_on(client, session.id) >= ledger.counts.get(chosen, 0)
        assert client.get_session(session.id).generation > session.generation
    else:
        assert newest == 0


def test_what_was_never_durable_is_refused_and_not_made_up(start: Start, home: Path) -> None:
    """The only snapshot of a session is lost: it has failed, and can only be destroyed."""
    chance = random.Random(1)
    with a_server(start) as server, server.waiting_client() as client:
        session = client.create_session(wait=True).id
        client.pause_session(session)
        for sums in (server.home / "snapshots").glob(f"*/{SUMS}"):
            sums.unlink()  # as if the cut had come just before
        cut(server, home / "copy", chance)
        destroy_all(client)
    boot = home / "boot"
    boot.write_text("00000000-0000-4000-8000-000000000000\n")
    within = ("unshare", "--mount", "sh", "-c", REBOOTED, str(boot))
    with a_server(start, home / "copy", within) as again, again.waiting_client() as client:
        found = client.get_session(session)
        assert found.status == "FAILED"
        assert found.failure is not None
        assert "lost" in found.failure
        with pytest.raises(ApiError):
            client.run(session, ["true"])
        client.destroy_session(session)
