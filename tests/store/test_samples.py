from collections.abc import AsyncIterator
from datetime import datetime

import pytest

from tests.store.made import later, sample, session
from torpor.store import Database, Transaction, samples, sessions


@pytest.fixture
async def conn(database: Database) -> AsyncIterator[Transaction]:
    """With samples of the sessions ``a`` and ``b`` at the seconds 0 to 4."""
    async with database.write() as conn:
        for name in ("a", "b"):
            await sessions.insert(conn, session(name, id=name))
        for second in range(5):
            await samples.append(conn, [sample(of, at=later(second)) for of in ("a", "b")])
        yield conn


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (None, None, [0, 1, 2, 3, 4]),
        (later(2), None, [2, 3, 4]),
        (None, later(2), [0, 1]),
        (later(1), later(3), [1, 2]),
        (later(3), later(3), []),
    ],
)
async def test_samples_of_a_while(
    conn: Transaction, since: datetime | None, until: datetime | None, expected: list[int]
) -> None:
    found = await samples.of_session(conn, "a", since, until)
    assert found == [sample("a", at=later(second)) for second in expected]


async def test_old_samples_of_all_sessions_go(conn: Transaction) -> None:
    assert await samples.prune(conn, later(3)) == 6
    for name in ("a", "b"):
        left = [each.at for each in await samples.of_session(conn, name)]
        assert left == [later(3), later(4)]


async def test_no_samples_are_no_matter(conn: Transaction) -> None:
    await samples.append(conn, [])
    assert await samples.of_session(conn, "nobody") == []
