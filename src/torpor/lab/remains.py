"""What a server's host has, held against what its sessions are: nothing may be left over, and
nothing missing."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

from torpor.client import AsyncClient, Session
from torpor.lab.server import Server
from torpor.store import Database
from torpor.store import snapshots as table
from torpor.vm.accelerator import QEMU
from torpor.vm.cgroups import find_groups
from torpor.vm.home import home_id
from torpor.vm.processes import ProcessId, find_by_prefix

SETTLING = 20.0
"""Seconds in which what is removed in the background has to be gone."""


async def remains(server: Server, client: AsyncClient, limit: float = SETTLING) -> list[str]:
    """Return what a server's host has that no session has, or the other way round.

    Snapshots that are superseded are removed in the background, so this is said only if it is still
    so after ``limit`` seconds. Nothing else may be asked of the server meanwhile.
    """
    until = time.monotonic() + limit
    while True:
        found = await _differences(server, client)
        if not found or time.monotonic() > until:
            return found
        await asyncio.sleep(0.5)


async def _differences(server: Server, client: AsyncClient) -> list[str]:
    wanted = {each.sandbox async for each in all_sessions(client) if each.sandbox is not None}
    known, lost = await snapshots_noted(server.database)
    there = _entries(server.home / "snapshots")
    return [
        *_difference("processes of machines", set(machine_processes(server.home)), wanted),
        *_difference("directories of machines", _entries(server.home / "machines"), wanted),
        *_difference("snapshots", there, known | (lost & there)),
        *_unknown_groups(server.home, wanted),
    ]


async def all_sessions(client: AsyncClient) -> AsyncIterator[Session]:
    """Yield all sessions of a server that are not destroyed."""
    after = None
    while True:
        page = await client.list_sessions(status="ALL", limit=200, after=after)
        for session in page.items:
            if session.status != "DESTROYED":
                yield session
        if page.next is None:
            return
        after = page.next


async def snapshots_noted(url: str) -> tuple[set[str], set[str]]:
    """Return the ids of the snapshots that a database knows, and of those that it knows as lost, of
    which something may be there."""
    database = await Database.open(url)
    try:
        async with database.read() as conn:
            rows = await table.of_all(conn)
        lost = {row.id for row in rows if row.status == "LOST"}
        return {row.id for row in rows} - lost, lost
    finally:
        await database.close()


def machine_processes(home: Path) -> dict[str, ProcessId]:
    """Return the QEMU process of each machine of a home, by the machine's id."""
    prefix = f"torpor-{home_id(home)}-"
    found = {}
    for process in find_by_prefix(prefix, (QEMU,)):
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        name = next(word.decode() for word in words[1:] if word.startswith(prefix.encode()))
        found[name.removeprefix(prefix)] = process
    return found


def _unknown_groups(home: Path, wanted: set[str]) -> list[str]:
    prefix = f"torpor-{home_id(home)}-"
    left = {name.removeprefix(prefix) for name in find_groups(prefix)} - wanted
    return [f"control groups of no machine: {sorted(left)}"] if left else []


def _entries(directory: Path) -> set[str]:
    return {entry.name for entry in directory.iterdir()}


def _difference(what: str, there: set[str], wanted: set[str]) -> list[str]:
    if there == wanted:
        return []
    return [f"{what}: {sorted(there - wanted)} are left over, {sorted(wanted - there)} are missing"]
