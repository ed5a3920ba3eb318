"""The tables of what the wall decided, of where data went, and of bytes by host."""

from typing import Any

import pytest

from tests.store.made import entry, flow, later, session, traffic
from torpor.store import Database, egress_log, flows, sessions
from torpor.store import traffic as traffic_table
from torpor.store.egress_log import EgressQuery

ONE, TWO = "id-of-one", "id-of-two"


@pytest.fixture
async def two(database: Database) -> Database:
    async with database.write() as conn:
        for name in ("one", "two"):
            await sessions.insert(conn, session(name))
    return database


async def found(database: Database, cursor: str | None = None, **query: Any) -> list[str]:
    async with database.read() as conn:
        lines = await egress_log.after(conn, EgressQuery(ONE, **query), cursor, 100)
        back = await egress_log.before(conn, EgressQuery(ONE, **query), None, 100)
        if cursor is None:
            assert back == lines[::-1]
        return [line.id for line in lines]


async def test_lines_come_back_whole_and_in_the_order_of_their_ids(two: Database) -> None:
    made = [
        entry("l2", ONE, secrets=("key", "ü"), address="192.0.2.1", spoken="tls", inspected=True),
        entry("l1", ONE, ended=True, seconds=1.5, sent_bytes=1 << 40, received_bytes=3, count=9),
        entry("l3", TWO),
    ]
    async with two.write() as conn:
        await egress_log.append(conn, made)
        await egress_log.append(conn, [])
    async with two.read() as conn:
        query = EgressQuery(ONE)
        assert await egress_log.after(conn, query, None, 9) == [made[1], made[0]]
        assert await egress_log.after(conn, query, "l1", 9) == [made[0]]
        assert await egress_log.after(conn, query, None, 1) == [made[1]]
        assert await egress_log.before(conn, query, None, 1) == [made[0]]
        assert await egress_log.before(conn, query, "l2", 9) == [made[1]]
        assert await egress_log.last_id(conn) == "l3"


async def test_lines_are_chosen_by_what_was_decided_about_whom_and_when(two: Database) -> None:
    async with two.write() as conn:
        await egress_log.append(conn, [
            entry("l1", ONE, allowed=False, host="b.test", at=later(0), until=later(5)),
            entry("l2", ONE, at=later(10), until=later(10)),
            entry("l3", TWO, allowed=False),
        ])  # fmt: skip
    assert await found(two) == ["l1", "l2"]
    assert await found(two, allowed=False) == ["l1"]
    assert await found(two, allowed=True) == ["l2"]
    assert await found(two, host="b.test") == ["l1"]
    assert await found(two, since=later(5)) == ["l1", "l2"]
    assert await found(two, since=later(6)) == ["l2"]
    assert await found(two, until=later(10)) == ["l1"]


async def test_a_session_keeps_its_newest_lines_and_no_other_loses_any(two: Database) -> None:
    async with two.write() as conn:
        await egress_log.append(conn, [entry(f"l{number}", ONE) for number in range(6)])
        await egress_log.append(conn, [entry("k0", TWO)])
        assert await egress_log.keep_newest(conn, ONE, 6) == 0
        assert await egress_log.keep_newest(conn, ONE, 2) == 4
        assert await egress_log.keep_newest(conn, TWO, 2) == 0
    assert await found(two) == ["l4", "l5"]


async def test_what_is_old_is_forgotten(two: Database) -> None:
    async with two.write() as conn:
        await egress_log.append(conn, [entry("l1", ONE), entry("l2", ONE, at=later(9))])
        await traffic_table.append(conn, [traffic(ONE), traffic(ONE, at=later(9))])
        await flows.insert(conn, [flow(ONE), flow(ONE, name="b.test", last_at=later(9))])
    async with two.write() as conn:
        assert await egress_log.prune(conn, later(5)) == 1
        assert await traffic_table.prune(conn, later(5)) == 1
        assert await flows.prune(conn, later(5)) == 1
    assert await found(two) == ["l2"]
    async with two.read() as conn:
        assert [each.name for each in await flows.of_session(conn, ONE)] == ["b.test"]
        assert [each.at for each in await traffic_table.of_session(conn, ONE)] == [later(9)]


async def test_places_are_kept_up_each_by_its_own_name(two: Database) -> None:
    before = [flow(ONE, name="b.test"), flow(ONE), flow(TWO)]
    after = [
        flow(ONE, sent_bytes=5, connections=2, secrets=("key",), last_at=later(1)),
        flow(ONE, name="b.test", received_bytes=1 << 40, denied=3, inspected=True),
    ]
    async with two.write() as conn:
        await flows.insert(conn, before)
        await flows.insert(conn, [])
        await flows.update(conn, after)
        await flows.update(conn, [])
    async with two.read() as conn:
        assert await flows.of_session(conn, ONE) == after  # what has received most first
        assert await flows.of_session(conn, TWO) == [before[2]]


async def test_traffic_is_that_of_a_time(two: Database) -> None:
    made = [
        traffic(ONE, at=later(number), host=host)
        for number in (0, 10, 20)
        for host in ("a.test", "b.test")
    ]
    async with two.write() as conn:
        await traffic_table.append(conn, made[::-1])
    async with two.read() as conn:
        assert await traffic_table.of_session(conn, ONE) == made
        assert await traffic_table.of_session(conn, ONE, later(10), later(20)) == made[2:4]


async def test_what_the_wall_has_written_down_is_no_change_of_the_session(two: Database) -> None:
    async with two.write() as conn:
        await sessions.keep_names(conn, {ONE: "{}", TWO: "[]"})
        await sessions.keep_names(conn, {})
    async with two.read() as conn:
        kept = await sessions.get(conn, ONE)
        assert kept is not None
        assert (kept.names, kept.updated_at) == ("{}", session("one").updated_at)
        assert await sessions.among(conn, [ONE, "x"]) == {ONE}
