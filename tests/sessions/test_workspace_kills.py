"""A server that is killed at any moment loses nothing that was saved in a workspace, leaves none
that nobody has and nobody can have, and no disk that is nobody's."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.sessions.conftest import Service
from tests.sessions.killing import run_and_kill
from tests.sessions.workspace_victim import content
from torpor.store import operations, sessions, workspaces
from torpor.store.records import Session, Status
from torpor.store.workspaces import WorkspaceQuery

KILLS = 12
KEEPS = (None, "attach", "keep", "write", "pause", "resume", "checkpoint", "destroy")
"""What, once begun, changes nothing that a workspace held before: it may add to it."""


def said_by(root: Path, url: str, seed: int, after: float) -> dict[str, dict[str, Any]]:
    """Run a victim, kill it, and return the last word on each workspace: what it has said to be
    done, and what it had begun since."""
    said: dict[str, dict[str, Any]] = {}
    for word in run_and_kill("workspace_victim", root, url, seed, after):
        known = said.setdefault(word["workspace"], {"begun": None, "done": None})
        if word["what"] == "begin":
            known["begun"] = word["op"]
        else:
            known["begun"], known["done"] = None, word
    return said


async def check(service: Service, said: dict[str, dict[str, Any]]) -> set[str | None]:
    """Check that what was acknowledged is true, that all is whole, and that nothing leaks; return
    what was cut off."""
    async with service.database.read() as conn:
        there = await sessions.live(conn)
    there = [await service.sessions.ready(session.id, 10) for session in there]
    assert {session.status for session in there} <= {Status.READY, Status.PAUSED}
    async with service.database.read() as conn:
        assert await operations.unfinished(conn) == []
        found = {each.id: each for each in (await workspaces.page(conn, WorkspaceQuery(200))).items}
    assert service.host.disks().keys() == found.keys()
    holders: dict[str, Session] = {}
    for workspace in found.values():
        if workspace.session is None:
            assert workspace.state == "AVAILABLE"
            continue
        assert workspace.state == "ATTACHED"
        (holder,) = [each for each in there if each.id == workspace.session]
        assert holder.workspace == workspace.id
        holders[workspace.id] = holder
    assert {each.id for each in there} == {each.id for each in holders.values()}
    machines = [each.machine for each in holders.values() if each.machine is not None]
    assert sorted(service.host.machines()) == sorted(machines)
    for workspace_id, known in said.items():
        done = known["done"]
        if done is None:
            continue
        if done["op"] == "delete":
            assert workspace_id not in found
        elif known["begun"] in KEEPS:
            lines = content(service, holders.get(workspace_id), workspace_id)
            assert lines[: len(done["lines"])] == done["lines"], known
    return {known["begun"] for known in said.values()}


@pytest.mark.parametrize("seed", range(2))
async def test_nothing_that_was_saved_in_a_workspace_is_lost(
    tmp_path: Path, database_url: str, seed: int
) -> None:
    chance = random.Random(seed)
    cut_off: set[str | None] = set()
    for number in range(KILLS):
        said = said_by(tmp_path, database_url, seed * 100 + number, chance.uniform(0.05, 0.8))
        service = await Service(tmp_path, database_url).open()
        try:
            cut_off |= await check(service, said)
        finally:
            await service.close()
    assert {"attach", "destroy"} <= cut_off
