"""A server that is killed at any moment loses nothing that it has acknowledged."""

import random
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from tests.sessions.conftest import ANN, Service
from tests.sessions.killing import run_and_kill
from torpor.sessions.hosts import SESSION
from torpor.store import configs, operations, sessions, snapshots, tables
from torpor.store.records import Session, Status

KILLS = 12


def said_by(root: Path, url: str, seed: int, after: float) -> dict[str, dict[str, Any]]:
    """Run a victim, kill it, and return the last word on each session: what it has said to be done,
    and what it had begun since."""
    said: dict[str, dict[str, Any]] = {}
    for word in run_and_kill("victim", root, url, seed, after):
        known = said.setdefault(word["session"], {"begun": None, "done": None})
        if word["what"] == "begin":
            known["begun"] = word["op"]
        else:
            known["begun"], known["done"] = None, word
    return said


async def check(service: Service, said: dict[str, dict[str, Any]]) -> int:
    """Check that what was acknowledged is true, that all is whole, and that nothing leaks; return
    how many configurations have been made."""
    async with service.database.read() as conn:
        there = await sessions.live(conn)
    # Those that were being created are begun anew, and that may still be under way.
    there = [await service.sessions.ready(session.id, 10) for session in there]
    async with service.database.read() as conn:
        assert await operations.unfinished(conn) == []
        rows = await snapshots.of_all(conn)
    assert {session.status for session in there} <= {Status.READY, Status.PAUSED}
    running = service.host.running()
    assert sorted(running) == sorted(s.machine for s in there if s.machine is not None)
    for machine in running.values():
        assert machine.labels[SESSION] in {session.id for session in there}
    assert service.host.inventory().kept.keys() == {row.id for row in rows}
    for session in there:
        if session.status is Status.PAUSED:
            assert session.snapshot in service.host.snapshots()
        await check_said(service, session, said.get(session.id))
    configured = await check_configs(service, there)
    for name, known in said.items():
        if known["done"] is not None and known["done"]["op"] == "destroy":
            assert name not in {session.id for session in there}
    return configured


async def check_configs(service: Service, there: list[Session]) -> int:
    """Check that each session has a configuration, and that each of these has its event and its
    operation, as they are noted together; return how many have been made under a name."""
    async with service.database.read() as conn:
        for session in there:
            config = await configs.get(conn, session.config or "")
            assert config is not None
            assert config.deleted_at is None
        counted = [
            (await conn.execute(select(func.count()).where(chosen))).scalar_one()
            for chosen in (
                tables.configs.c.implicit.is_(False),
                tables.events.c.type == "config.created",
                tables.operations.c.kind == "config",
                tables.configs.c.deleted_at.is_not(None),
                tables.events.c.type == "config.deleted",
            )
        ]
    assert counted[0] == counted[1] == counted[2]
    assert counted[3] == counted[4]
    return int(counted[0])


async def check_said(service: Service, session: Session, known: dict[str, Any] | None) -> None:
    """Check one session against what was said of it."""
    if known is None or known["done"] is None:
        return
    done, begun = known["done"], known["begun"]
    if begun is None or begun in ("count", "fork", "checkpoint"):
        assert session.status == done["status"], known
    assert session.generation >= done["generation"], known
    if begun in (None, "pause", "resume", "checkpoint", "fork") and done["counted"] is not None:
        back = await service.sessions.resume(session.id, ANN)
        assert service.host.counted(back.machine or "") == done["counted"], known


@pytest.mark.parametrize("seed", range(2))
async def test_nothing_that_was_acknowledged_is_lost(
    tmp_path: Path, database_url: str, seed: int
) -> None:
    chance = random.Random(seed)
    for number in range(KILLS):
        said = said_by(tmp_path, database_url, seed * 100 + number, chance.uniform(0.05, 0.8))
        service = await Service(tmp_path, database_url).open()
        try:
            configured = await check(service, said)
        finally:
            await service.close()
    assert configured > 0
