from collections.abc import AsyncIterator

import pytest

from tests.store.made import event, later
from torpor.store import Database, Transaction, events


@pytest.fixture
async def conn(database: Database) -> AsyncIterator[Transaction]:
    """With the events ``e0`` to ``e9``, those of even number of session ``s``."""
    async with database.write() as conn:
        for number in range(10):
            of = None if number % 2 else "s"
            await events.append(conn, event(f"e{number}", session=of, at=later(number)))
        yield conn


async def ids(conn: Transaction) -> str:
    return " ".join(each.id for each in await events.after(conn, None, None, 100))


@pytest.mark.parametrize(
    ("cursor", "session", "limit", "expected"),
    [
        (None, None, 3, "e0 e1 e2"),
        ("e2", None, 3, "e3 e4 e5"),
        ("e2", "s", 3, "e4 e6 e8"),
        ("e1", "s", 1, "e2"),
        ("e2x", None, 1, "e3"),
        ("e9", None, 3, ""),
        (None, "nobody", 3, ""),
    ],
)
async def test_events_after_one(
    conn: Transaction, cursor: str | None, session: str | None, limit: int, expected: str
) -> None:
    found = await events.after(conn, cursor, session, limit)
    assert " ".join(each.id for each in found) == expected


@pytest.mark.parametrize(
    ("cursor", "session", "limit", "expected"),
    [
        (None, None, 3, "e7 e8 e9"),
        ("e7", None, 3, "e4 e5 e6"),
        ("e7", "s", 2, "e4 e6"),
        ("e0", None, 3, ""),
        ("e1", None, 3, "e0"),
    ],
)
async def test_events_before_one(
    conn: Transaction, cursor: str | None, session: str | None, limit: int, expected: str
) -> None:
    found = await events.before(conn, cursor, session, limit)
    assert " ".join(each.id for each in found) == expected


async def test_the_newest_is_known(conn: Transaction) -> None:
    assert await events.last_id(conn) == "e9"
    ours = [each.id for each in await events.after(conn, None, "s", 100)]
    assert await events.last_of(conn, "s") == ours[-1] != "e9"
    assert await events.last_of(conn, "nobody") is None


@pytest.mark.parametrize(
    ("before", "keep", "left"),
    [
        (4, 0, "e4 e5 e6 e7 e8 e9"),
        (4, 8, "e2 e3 e4 e5 e6 e7 e8 e9"),
        (4, 2, "e4 e5 e6 e7 e8 e9"),
        (100, 1, "e9"),
        (100, 0, ""),
        (100, 10, "e0 e1 e2 e3 e4 e5 e6 e7 e8 e9"),
        (100, 99, "e0 e1 e2 e3 e4 e5 e6 e7 e8 e9"),
        (0, 0, "e0 e1 e2 e3 e4 e5 e6 e7 e8 e9"),
    ],
)
async def test_old_events_go_but_for_the_newest(
    conn: Transaction, before: int, keep: int, left: str
) -> None:
    removed = await events.prune(conn, later(before), keep)
    assert await ids(conn) == left
    assert removed == 10 - len(left.split())
