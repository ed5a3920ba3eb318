from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.store.made import START, later, session
from torpor.store import Database, Transaction, sessions, transfers
from torpor.store.records import Part, Transfer


def transfer(name: str, of: str = "a", **rest: Any) -> Transfer:
    filled: dict[str, Any] = {
        "id": name,
        "session": of,
        "created_at": START,
        "updated_at": START,
        "expires_at": later(3600),
        "created_by": "someone",
        "direction": "upload",
        "path": "/workspace/a%FF",
        "archive": False,
        "status": "pending",
    }
    return Transfer(**filled | rest)


@pytest.fixture
async def conn(database: Database) -> AsyncIterator[Transaction]:
    async with database.write() as conn:
        for name in ("a", "b"):
            await sessions.insert(conn, session(name, id=name))
        yield conn


async def test_a_transfer_comes_back_as_it_was(conn: Transaction) -> None:
    whole = transfer("t", part_size=8, size=1 << 40, sha256="ab", done_bytes=3, error="no")
    await transfers.insert(conn, whole)
    assert await transfers.get(conn, "t") == whole
    assert await transfers.get(conn, "u") is None


async def test_only_one_that_stands_where_it_was_thought_to_is_changed(conn: Transaction) -> None:
    await transfers.insert(conn, transfer("t"))
    changed = await transfers.update(conn, "t", ["pending"], status="in_progress", size=4)
    assert (changed.status, changed.size) == ("in_progress", 4)
    assert changed.updated_at > START
    with pytest.raises(KeyError):
        await transfers.update(conn, "t", ["pending"], status="failed")
    assert await transfers.get(conn, "t") == changed


async def test_those_that_have_not_ended_are_found(conn: Transaction) -> None:
    for number, status in enumerate(("pending", "in_progress", "completed", "failed")):
        await transfers.insert(conn, transfer(status, status=status, created_at=later(-number)))
    await transfers.insert(conn, transfer("other", of="b"))
    found = await transfers.unfinished(conn)
    assert [each.id for each in found] == ["in_progress", "other", "pending"]
    assert [each.id for each in await transfers.unfinished(conn, "b")] == ["other"]
    assert await transfers.count_unfinished(conn, "a") == 2
    assert [each.id for each in await transfers.completed(conn, "a")] == ["completed"]


async def test_a_part_takes_the_place_of_the_one_before(conn: Transaction) -> None:
    await transfers.insert(conn, transfer("t"))
    first, second = Part("t", 2, 5, "aa"), Part("t", 2, 5, "bb")
    assert await transfers.put_part(conn, first) is None
    assert await transfers.put_part(conn, second) == first
    await transfers.put_part(conn, Part("t", 1, 8, "cc"))
    assert await transfers.parts(conn, "t") == [Part("t", 1, 8, "cc"), second]
    await transfers.forget_parts(conn, "t")
    assert await transfers.parts(conn, "t") == []


async def test_what_is_still_to_come_is_promised_twice_but_for_what_has_come(
    conn: Transaction,
) -> None:
    assert await transfers.promised(conn) == 0
    await transfers.insert(conn, transfer("known", size=100))
    await transfers.insert(conn, transfer("unknown"))
    await transfers.insert(conn, transfer("ended", size=100, status="failed"))
    await transfers.insert(conn, transfer("out", size=100, direction="download"))
    await transfers.put_part(conn, Part("known", 1, 30, "aa"))
    await transfers.put_part(conn, Part("unknown", 1, 7, "aa"))
    # 100 in the session and 70 here; of the other one 7 in the session.
    assert await transfers.promised(conn) == 170 + 7


async def test_only_what_has_ended_and_expired_is_forgotten(conn: Transaction) -> None:
    for status in ("pending", "in_progress", "completed", "failed"):
        await transfers.insert(conn, transfer(status, status=status, expires_at=later(0)))
        await transfers.put_part(conn, Part(status, 1, 1, "aa"))
    await transfers.insert(conn, transfer("young", status="failed", expires_at=later(10)))
    assert await transfers.prune(conn, later(5)) == 2
    left = [each for each in ("pending", "in_progress", "completed", "failed", "young")
            if await transfers.get(conn, each)]  # fmt: skip
    assert left == ["pending", "in_progress", "young"]
    assert await transfers.parts(conn, "failed") == []
    assert len(await transfers.parts(conn, "pending")) == 1
