"""Fills the disk of a server, in a mount namespace of its own; prints as JSON what came of it.

Run as ``unshare --mount python -m tests.machine.full_disk DIRECTORY CACHE``.
"""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torpor.client import ApiError, Client, Output
from torpor.images import maker, silent
from torpor.lab.server import Server, end_machines
from torpor.vm import VmError

DISK_MIB = 1400
"""The image, the golden snapshot and the tools take about 400 of them; they are copied."""
WRITTEN_MIB, LEFT_MIB, UPLOADED_MIB = 96, 48, 32
RESERVED_MIB = 16
"""What ext4 keeps for itself and counts as free (fs/ext4/super.c, ext4_calculate_resv_clusters)."""
WRITER = f"""
n=0; (while :; do n=$((n+1)); echo $n >> /root/count; sleep 0.05; done) &
dd if=/dev/urandom of=/root/large bs=1M count={WRITTEN_MIB} conv=fsync 2>/dev/null
sync; sha256sum /root/large; cat /root/large | wc -c
"""


def main(directory: Path, cache: Path) -> None:
    image, home = directory / "disk", directory / "home"
    with image.open("wb") as opened:
        opened.truncate(DISK_MIB << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "1", image], check=True)
    home.mkdir()
    subprocess.run(["mount", "-o", "loop", image, home], check=True)
    server = Server(home, cache, {"sample_seconds": 1})
    server.log = directory / "server.log"
    try:
        asyncio.run(server.start())
        with server.waiting_client() as client:
            said = scenario(server, client)
        asyncio.run(server.stop())
        with sqlite3.connect(home / "database" / "torpor.db") as database:
            said["integrity"] = database.execute("PRAGMA integrity_check").fetchone()[0]
        print(json.dumps(said))
    finally:
        asyncio.run(ended(server, cache))
        subprocess.run(["umount", "--lazy", home], check=True)


async def ended(server: Server, cache: Path) -> None:
    await server.kill()
    await end_machines(await maker(cache, silent), server.home)


def scenario(server: Server, client: Client) -> dict[str, Any]:
    session, other = (client.create_session(wait=True).id for _ in range(2))
    client.run(other, ["true"])
    fill(server.home, LEFT_MIB)
    writer = client.start_exec(session, WRITER)
    wait_for(client, session, "session.held")
    said: dict[str, Any] = {"refused": {}, "seconds": {}, "states": []}
    # First there is room for the database's words and for no snapshot, then for nothing.
    for left_mib in (RESERVED_MIB + 4, 0):
        fill(server.home, left_mib)
        refusals, seconds = attempts(client, session, other)
        said["refused"][str(left_mib)] = refusals
        said["seconds"][str(left_mib)] = seconds
        said["states"].append([client.get_session(each).status for each in (session, other)])
    began = time.monotonic()
    said["read"] = [client.health(), len(client.list_sessions().items), client.get_host().name]
    client.get_tree(session)
    said["reads"] = time.monotonic() - began
    said["held"] = client.get_session(session).status
    hold(client, other)
    said["asked"] = {name: answered(way) for name, way in uses(client, other).items()}
    asyncio.run(server.kill())
    try:
        asyncio.run(server.start())
    except VmError as error:
        said["start"] = str(error)
    (server.home / "ballast").unlink()
    asyncio.run(server.start())
    said["states"].append([client.get_session(each).status for each in (session, other)])
    until(lambda: not is_held(client, other))
    said["uploaded"] = put(client, other)
    wait_for(client, session, "session.released")
    said["written"], said["there"] = written(client, session, writer.id)
    for each in (session, other):
        client.pause_session(each, durable=True)
        client.resume_session(each)
    count = client.read_file(session, "/root/count").split()
    said["counted"] = [int(each) for each in count] == list(range(1, len(count) + 1))
    said["statuses"] = sorted(each.status for each in client.list_sessions().items)
    for each in client.list_sessions(status="ALL").items:
        if each.status != "DESTROYED":
            client.destroy_session(each.id)
    return said


def attempts(client: Client, session: str, other: str) -> tuple[dict[str, str], dict[str, float]]:
    """Do what needs disk; return how each is answered, and after how many seconds."""
    ways: dict[str, Callable[[], object]] = {
        "checkpoint": lambda: client.create_checkpoint(other, durable=True),
        "create": lambda: ready(client),
        "pause": lambda: client.pause_session(other, durable=True),
        "pause of the held": lambda: client.pause_session(session),
        "checkpoint of the held": lambda: client.create_checkpoint(session),
    }
    answers, seconds = {}, {}
    for name, way in ways.items():
        began = time.monotonic()
        answers[name] = answered(way)
        seconds[name] = time.monotonic() - began
    return answers, seconds


def answered(way: Callable[[], object]) -> str:
    """Do something, and return how it is answered."""
    try:
        answer = f"done: {way()}"
    except ApiError as error:
        answer = f"{error.status} {error.id}: {error}"
    print(answer, file=sys.stderr, flush=True)
    return answer


def hold(client: Client, session: str) -> None:
    """Have a machine write more than there is room for, and return when it is held."""
    if not is_held(client, session):
        client.start_exec(session, "dd if=/dev/zero of=/root/other bs=1M count=64 conv=fsync")
    until(lambda: is_held(client, session))


def is_held(client: Client, session: str) -> bool:
    return answered(lambda: client.get_file_status(session, "/root")).startswith("507")


def until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 90
    while not happened():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.2)


def uses(client: Client, session: str) -> dict[str, Callable[[], object]]:
    """Return ways to use a session that is held."""
    return {
        "write": lambda: put(client, session),
        "read": lambda: client.read_file(session, "/etc/passwd"),
        "make a directory": lambda: client.make_directory(session, "/root/directory"),
        "unpack": lambda: client.write_archive(session, "/root", bytes(1024)),
        "run": lambda: client.run(session, ["true"]),
    }


def ready(client: Client) -> object:
    made = client.create_session(wait=True)
    return made.failure if made.status == "FAILED" else made


def put(client: Client, session: str) -> int:
    data = os.urandom(1 << 20) * UPLOADED_MIB
    client.write_file(session, "/root/upload", data, atomic=True)
    return client.get_file_status(session, "/root/upload").size


def fill(home: Path, leave_mib: int) -> None:
    """Take the space of a disk, all but so much; root's reserve too."""
    os.sync()  # what is written and has no place yet is not counted
    with (home / "ballast").open("ab") as opened:
        while True:
            disk = os.statvfs(home)
            more = disk.f_bfree * disk.f_frsize - (leave_mib << 20)
            if more <= 0:
                return
            try:
                end = os.fstat(opened.fileno()).st_size
                os.posix_fallocate(opened.fileno(), end, more if leave_mib else 4096)
            except OSError:
                return


def wait_for(client: Client, session: str, event: str) -> None:
    end = time.monotonic() + 90
    while event not in [each.type for each in client.get_history(session, limit=500).events]:
        if time.monotonic() > end:
            raise TimeoutError(f"no {event}")
        time.sleep(0.2)


def written(client: Client, session: str, writer: str) -> tuple[str, str]:
    """Return what the writer says of its file at its end, and what it is after that."""
    said = b""
    with client.attach(session, writer) as stream:
        for item in stream:
            said += item.data if isinstance(item, Output) else b""
            if said.count(b"\n") == 2:
                break
    there = client.run(session, "sha256sum /root/large; cat /root/large | wc -c").stdout
    return said.decode(), there.decode()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
