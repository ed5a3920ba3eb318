"""The server is killed at random moments of its work, and nothing that it acknowledged is lost."""

from pathlib import Path

import pytest

from tests.machine.conftest import Start
from tests.postgres import Cluster
from torpor.lab.server_kills import server_kills

pytestmark = [pytest.mark.machine, pytest.mark.long]

KILLS = 6
"""In ``./dev soak``: 100."""
KILLS_ELSEWHERE = 2


async def test_killed_at_random_moments_the_server_loses_nothing(start: Start, home: Path) -> None:
    checks = [check async for check in server_kills(start.maker, home, KILLS, seed=4)]
    assert [check.seen for check in checks if not check.ok] == []
    assert len(checks) == KILLS + 1


async def test_with_its_database_in_postgresql_it_loses_nothing(
    start: Start, home: Path, cluster: Cluster
) -> None:
    with cluster.migrated() as url:
        kills = server_kills(start.maker, home, KILLS_ELSEWHERE, 5, url)
        checks = [check async for check in kills]
    assert [check.seen for check in checks if not check.ok] == []
    assert len(checks) == KILLS_ELSEWHERE + 1
