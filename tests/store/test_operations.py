from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from sqlalchemy.exc import IntegrityError

from tests.store.made import later, operation
from torpor.store import Database, Transaction, operations
from torpor.store.errors import KeyUsedError


@pytest.fixture
async def conn(database: Database) -> AsyncIterator[Transaction]:
    async with database.write() as conn:
        yield conn


async def test_a_key_serves_an_actor_once(conn: Transaction) -> None:
    await operations.insert(conn, operation("o1", key="k"))
    with pytest.raises(KeyUsedError, match="o1") as refused:
        await operations.insert(conn, operation("o2", key="k"))
    assert refused.value.operation == "o1"
    await operations.insert(conn, operation("o3", key="k", actor="another"))
    await operations.insert(conn, operation("o4"))
    await operations.insert(conn, operation("o5"))
    found = [
        await operations.by_key(conn, actor, "k") for actor in ("someone", "another", "nobody")
    ]
    assert [each and each.id for each in found] == ["o1", "o3", None]
    with pytest.raises(IntegrityError, match=r"operations\.id"):
        await operations.insert(conn, operation("o1"))


async def test_an_operation_ends_once(conn: Transaction) -> None:
    await operations.insert(conn, operation("o1", plan={"snapshot": "s"}))
    before = datetime.now(UTC)
    await operations.finish(conn, "o1", "failed", {"half": 1}, "It broke.")
    ended = await operations.get(conn, "o1")
    assert ended is not None
    assert (ended.state, ended.result, ended.error) == ("failed", {"half": 1}, "It broke.")
    assert ended.plan == {"snapshot": "s"}
    assert ended.ended_at is not None
    assert before <= ended.ended_at <= datetime.now(UTC)
    for name in ("o1", "o2"):
        with pytest.raises(KeyError):
            await operations.finish(conn, name, "done")
    assert await operations.get(conn, "o1") == ended


async def test_what_has_not_ended_is_listed_in_its_order(conn: Transaction) -> None:
    for name in ("o3", "o1", "o2"):
        await operations.insert(conn, operation(name))
    await operations.finish(conn, "o2", "interrupted")
    assert [each.id for each in await operations.unfinished(conn)] == ["o1", "o3"]
    assert await operations.last_id(conn) == "o3"


async def test_old_operations_go_when_they_have_ended(conn: Transaction) -> None:
    for name, ended in (("o1", 1), ("o2", 5), ("o3", None)):
        at = None if ended is None else later(ended)
        await operations.insert(conn, operation(name, key=name, ended_at=at))
    assert await operations.prune(conn, later(5)) == 1
    assert [
        name for name in ("o1", "o2", "o3") if await operations.get(conn, name) is not None
    ] == ["o2", "o3"]
    await operations.insert(conn, operation("o4", key="o1"))


async def test_the_key_of_what_came_to_nothing_serves_again(conn: Transaction) -> None:
    await operations.insert(conn, operation("o1", key="k"))
    await operations.finish(conn, "o1", "failed")
    await operations.free_key(conn, "o1")
    assert await operations.by_key(conn, "someone", "k") is None
    await operations.insert(conn, operation("o2", key="k"))
    with pytest.raises(KeyError):
        await operations.free_key(conn, "o3")
