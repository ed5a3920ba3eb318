"""Fills the disk of a server, in a mount namespace of its own; prints as JSON what came of it.

Run as ``unshare --mount python -m tests.machine.full_disk DIRECTORY CACHE``.
"""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torpor.client import ApiError, Client
from torpor.images import maker, silent
from torpor.lab.server import Server, end_machines

DISK_MIB = 1400
"""The image, the golden snapshot and the tools take about 400 of them; they are copied."""
WRITTEN_MIB, LEFT_MIB, UPLOADED_MIB = 96, 48, 32
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
    fill(server.home, 0)
    print("held", file=sys.stderr, flush=True)
    said: dict[str, Any] = {"refused": {}, "seconds": {}}
    attempts: dict[str, Callable[[], object]] = {
        "checkpoint": lambda: client.create_checkpoint(other, durable=True),
        "create": lambda: client.create_session(wait=True),
        "pause": lambda: client.pause_session(other, durable=True),
        "pause of the held": lambda: client.pause_session(session),
    }
    for name, attempt in attempts.items():
        began = time.monotonic()
        try:
            found = attempt()
            said["refused"][name] = f"done: {getattr(found, 'status', '')}"
        except ApiError as error:
            said["refused"][name] = f"{error.status} {error.id}: {error}"
        said["seconds"][name] = time.monotonic() - began
        print(name, said["refused"][name], file=sys.stderr, flush=True)
    began = time.monotonic()
    said["read"] = [client.health(), len(client.list_sessions().items), client.get_host().name]
    client.get_tree(session)
    said["seconds"]["reads"] = time.monotonic() - began
    said["held"] = client.get_session(session).status
    # What is written into a machine waits as what the machine writes itself.
    upload = threading.Thread(target=put, args=(server, other), daemon=True)
    upload.start()
    upload.join(2)
    said["upload waits"] = upload.is_alive()
    (server.home / "ballast").unlink()
    upload.join(90)
    said["uploaded"] = client.get_file_status(other, "/root/upload").size
    wait_for(client, session, "session.released")
    said["written"] = written(client, session, writer.id)
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


def put(server: Server, session: str) -> None:
    with server.waiting_client() as client:
        client.write_file(session, "/root/upload", os.urandom(1 << 20) * UPLOADED_MIB, atomic=True)


def fill(home: Path, leave_mib: int) -> None:
    """Take the space of a disk, all but so much; root's reserve too."""
    with (home / "ballast").open("ab", buffering=0) as opened:
        for size in (1 << 20, 4096):
            try:
                while True:
                    free = os.statvfs(home)
                    if free.f_bfree * free.f_frsize <= leave_mib << 20:
                        break
                    opened.write(bytes(size))
            except OSError:
                continue


def wait_for(client: Client, session: str, event: str) -> None:
    end = time.monotonic() + 90
    while event not in [each.type for each in client.get_history(session, limit=500).events]:
        if time.monotonic() > end:
            raise TimeoutError(f"no {event}")
        time.sleep(0.2)


def written(client: Client, session: str, writer: str) -> str:
    """Return what the writer says at its end, against the file itself."""
    end = time.monotonic() + 90
    while time.monotonic() < end:
        if client.get_exec(session, writer).output_end > 0:
            break
        time.sleep(0.2)
    sum_of_it = client.run(session, "sha256sum /root/large; stat -c %s /root/large").stdout
    first, *rest = sum_of_it.decode().split()
    return f"{rest[-1]} bytes, {'same' if len(first) == 64 else first}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
