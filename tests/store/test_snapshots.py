from collections.abc import AsyncIterator

import pytest
from sqlalchemy.exc import IntegrityError

from tests.store.made import later, session, snapshot
from torpor.store import Database, Transaction, sessions, snapshots
from torpor.store.records import Status


@pytest.fixture
async def conn(database: Database) -> AsyncIterator[Transaction]:
    async with database.write() as conn:
        for name in ("a", "b"):
            await sessions.insert(conn, session(name, id=name))
        yield conn


async def test_a_checkpoint_is_found_only_at_its_session(conn: Transaction) -> None:
    await snapshots.insert(conn, snapshot("s1", "a", checkpoint="c1"))
    found = await snapshots.by_checkpoint(conn, "a", "c1")
    assert found is not None
    assert found.id == "s1"
    assert await snapshots.by_checkpoint(conn, "b", "c1") is None
    assert await snapshots.by_checkpoint(conn, "a", "s1") is None


async def test_two_snapshots_are_not_one_checkpoint(conn: Transaction) -> None:
    await snapshots.insert(conn, snapshot("s1", "a", checkpoint="c1"))
    await snapshots.insert(conn, snapshot("s2", "a", checkpoint=None))
    await snapshots.insert(conn, snapshot("s3", "a", checkpoint=None))
    with pytest.raises(IntegrityError, match="checkpoint"):
        await snapshots.insert(conn, snapshot("s4", "b", checkpoint="c1"))


async def test_what_came_from_a_removed_snapshot_gets_its_parent(conn: Transaction) -> None:
    for name, of, parent in (
        ("root", "a", None),
        ("middle", "a", "root"),
        ("leaf", "a", "middle"),
        ("fork", "b", "middle"),
        ("beside", "a", "root"),
    ):
        await snapshots.insert(conn, snapshot(name, of, parent=parent))
    assert await snapshots.remove(conn, "middle")
    assert not await snapshots.remove(conn, "middle")
    assert {each.id: each.parent for each in await snapshots.of_all(conn)} == {
        "root": None,
        "leaf": "root",
        "fork": "root",
        "beside": "root",
    }
    await snapshots.remove(conn, "root")
    assert {each.parent for each in await snapshots.of_all(conn)} == {None}


async def test_an_update_returns_the_whole(conn: Transaction) -> None:
    await snapshots.insert(conn, snapshot("s1", "a", status="PENDING"))
    new = await snapshots.update(conn, "s1", status="READY", durable=True, stored_bytes=5)
    assert new == snapshot("s1", "a", durable=True, stored_bytes=5)
    assert new == await snapshots.get(conn, "s1")
    assert await snapshots.update(conn, "s1") == new
    with pytest.raises(KeyError):
        await snapshots.update(conn, "s2", durable=True)


async def test_lists_are_in_the_order_in_which_snapshots_were_made(conn: Transaction) -> None:
    for number, name in enumerate(("c", "a", "b")):
        await snapshots.insert(conn, snapshot(name, "a", created_at=later(number)))
    await snapshots.insert(conn, snapshot("other", "b", created_at=later(1.5)))
    assert [each.id for each in await snapshots.of_session(conn, "a")] == ["c", "a", "b"]
    assert [each.id for each in await snapshots.of_all(conn)] == ["c", "a", "other", "b"]


async def test_pages_have_what_users_know_as_checkpoints(conn: Transaction) -> None:
    for number, (name, of, kind, checkpoint) in enumerate(
        (
            ("p1", "a", "pause", None),
            ("c1", "a", "checkpoint", "C1"),
            ("f1", "a", "fork", "F1"),
            ("f2", "a", "fork", None),
            ("c2", "a", "checkpoint", "C2"),
            ("c3", "b", "checkpoint", "C3"),
            ("d1", "a", "files", "D1"),
        )
    ):
        made = snapshot(name, of, kind=kind, checkpoint=checkpoint, created_at=later(number))
        await snapshots.insert(conn, made)
    first = await snapshots.page(conn, "a", 2)
    assert [each.id for each in first.items] == ["d1", "c2"]
    second = await snapshots.page(conn, "a", 2, first.next_cursor)
    assert [each.id for each in second.items] == ["f1", "c1"]
    assert second.next_cursor is None


async def test_what_snapshots_take_is_counted_for_each_session(conn: Transaction) -> None:
    assert await snapshots.stored_bytes(conn) == {}
    for name, of, stored in (("s1", "a", 1 << 40), ("s2", "a", 5), ("s3", "b", 0)):
        await snapshots.insert(conn, snapshot(name, of, stored_bytes=stored))
    assert await snapshots.stored_bytes(conn) == {"a": (1 << 40) + 5, "b": 0}


async def test_what_is_stood_on_gone_back_to_or_recovered_from_is_needed(
    conn: Transaction,
) -> None:
    for name, rest in {
        "gone": {"status": Status.DESTROYED, "snapshot": "old"},
        "going": {"status": Status.DESTROYING, "snapshot": "g1"},
        "failed": {"status": Status.FAILED},
    }.items():
        await sessions.insert(conn, session(name, id=name, **rest))
    await sessions.update(conn, "b", snapshot="of-a")  # b is a fork, and stands on another's
    needed = {
        "of-a": ("a", None), "point": ("a", "c1"), "g1": ("going", None), "f1": ("failed", None),
    }  # fmt: skip
    unneeded = {"left": ("a", None), "old": ("gone", "c2"), "g2": ("going", "c3")}
    for name, (of, checkpoint) in (needed | unneeded).items():
        await snapshots.insert(conn, snapshot(name, of, checkpoint=checkpoint))
    assert {each.id for each in await snapshots.needed(conn)} == needed.keys()
    assert set(await snapshots.unneeded(conn)) == unneeded.keys()
    assert await snapshots.unneeded(conn, ("left", "point", "nix")) == ["left"]
    assert await snapshots.unneeded(conn, ()) == []


async def test_the_ready_are_named_with_whether_they_are_durable(conn: Transaction) -> None:
    await snapshots.insert(conn, snapshot("s2", "a", created_at=later(2), durable=True))
    await snapshots.insert(conn, snapshot("s1", "a", created_at=later(1)))
    await snapshots.insert(conn, snapshot("lost", "a", status="LOST"))
    assert await snapshots.ready(conn) == {"s1": False, "s2": True}
    assert list(await snapshots.ready(conn)) == ["s1", "s2"]
    assert await snapshots.ids(conn) == {"s1", "s2", "lost"}
