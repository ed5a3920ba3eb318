import random
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pytest
from sqlalchemy.exc import IntegrityError

from tests.store.made import START, later, session
from torpor.store import Database, Page, SessionQuery, Transaction, rows, sessions
from torpor.store.errors import CursorError, NameTakenError
from torpor.store.records import Session, Status
from torpor.store.tables import session_labels
from torpor.store.tables import sessions as table

ALIVE = [status for status in Status if status not in (Status.DESTROYED, Status.FAILED)]


async def pages(database: Database, query: SessionQuery) -> list[list[str]]:
    """The names on all pages, page by page."""
    found: list[list[str]] = []
    while True:
        async with database.read() as conn:
            page = await sessions.page(conn, query)
        found.append([each.name for each in page.items])
        if page.next_cursor is None:
            return found
        query = replace(query, after=page.next_cursor)


async def names(database: Database, **query: object) -> list[str]:
    return (await pages(database, SessionQuery(**{"limit": 200} | query)))[0]  # type: ignore[arg-type]


async def insert(database: Database, *made: Session) -> None:
    async with database.write() as conn:
        for each in made:
            await sessions.insert(conn, each)


@pytest.mark.parametrize("status", ALIVE)
async def test_a_name_belongs_to_one_session_at_a_time(database: Database, status: Status) -> None:
    await insert(database, session("one", status=status))
    for name in ("one", "ONE"):
        with pytest.raises(NameTakenError, match="id-of-one") as refused:
            await insert(database, session(name, id="other"))
        assert refused.value.holder == "id-of-one"
        assert "destroy" in refused.value.todo
    async with database.read() as conn:
        assert await sessions.get(conn, "other") is None


@pytest.mark.parametrize("status", [Status.DESTROYED, Status.FAILED])
async def test_a_session_that_ended_leaves_its_name(database: Database, status: Status) -> None:
    for number in range(20):
        await insert(database, session("one", id=str(number)))
        async with database.write() as conn:
            found = await sessions.find(conn, "One")
            assert found is not None
            assert found.id == str(number)
            await sessions.update(conn, str(number), status=status)
            assert await sessions.find(conn, "one") is None
    async with database.read() as conn:
        assert (await sessions.counts(conn))[status] == 20


async def test_a_write_goes_on_after_a_name_was_refused(database: Database) -> None:
    async with database.write() as conn:
        await sessions.insert(conn, session("one"))
        with pytest.raises(NameTakenError):
            await sessions.insert(conn, session("one", id="other", labels={"a": "b"}))
        await sessions.insert(conn, session("two"))
        with pytest.raises(NameTakenError):
            await sessions.update(conn, "id-of-two", name="one")
        await sessions.update(conn, "id-of-two", name="three")
    assert await names(database) == ["three", "one"]


async def test_a_failed_session_gets_its_name_back_only_if_it_is_free(database: Database) -> None:
    await insert(database, session("one", id="a", status=Status.FAILED), session("one", id="b"))
    with pytest.raises(NameTakenError) as refused:
        async with database.write() as conn:
            await sessions.update(conn, "a", status=Status.PAUSED)
    assert refused.value.holder == "b"
    async with database.write() as conn:
        await sessions.update(conn, "b", status=Status.DESTROYED)
        assert (await sessions.update(conn, "a", status=Status.PAUSED)).status is Status.PAUSED


async def test_an_id_that_is_there_is_not_called_a_taken_name(database: Database) -> None:
    await insert(database, session("one"))
    with pytest.raises(IntegrityError, match=r"sessions\.id|pk_sessions"):
        await insert(database, session("two", id="id-of-one"))


async def test_an_update_changes_what_it_names_and_returns_the_whole(database: Database) -> None:
    await insert(database, session("one", labels={"a": "1"}, metadata={"x": 1}))
    before = datetime.now(UTC)
    async with database.write() as conn:
        new = await sessions.update(conn, "id-of-one", generation=5, pause_reason="idle")
        assert new == await sessions.get(conn, "id-of-one")
    assert before <= new.updated_at <= datetime.now(UTC)
    unchanged = replace(new, generation=0, pause_reason=None, updated_at=START)
    assert unchanged == session("one", labels={"a": "1"}, metadata={"x": 1})


async def test_updates_that_make_no_sense_are_refused(database: Database) -> None:
    await insert(database, session("one"))
    for error, of, changes in (
        (KeyError, "nobody", {"generation": 1}),
        (KeyError, "nobody", {"name": "x"}),
        (TypeError, "id-of-one", {"colour": "red"}),
        (ValueError, "id-of-one", {"id": "x"}),
        (ValueError, "id-of-one", {"created_at": START}),
    ):
        with pytest.raises(error):
            async with database.write() as conn:
                await sessions.update(conn, of, **changes)


async def test_pages_have_each_session_once_the_newest_first(database: Database) -> None:
    chance = random.Random(3)
    made = [session(f"n{n:02}", created_at=later(chance.randrange(5))) for n in range(23)]
    await insert(database, *made)
    expected = [each.name for each in sorted(made, key=lambda s: (s.created_at, s.id))][::-1]
    for limit in (1, 2, 7, 22, 23, 24):
        found = await pages(database, SessionQuery(limit=limit))
        assert [len(page) for page in found[:-1]] == [limit] * (len(found) - 1)
        assert found[-1], "an empty page at the end"
        assert [name for page in found for name in page] == expected


async def test_sessions_that_come_and_go_shift_no_page(database: Database) -> None:
    await insert(database, *(session(f"n{n}", created_at=later(n)) for n in range(6)))
    async with database.read() as conn:
        first = await sessions.page(conn, SessionQuery(limit=3))
    async with database.write() as conn:
        await sessions.insert(conn, session("new", created_at=later(9)))
        await conn.execute(table.delete().where(table.c.name == "n3"))  # where the page ended
    async with database.read() as conn:
        second = await sessions.page(conn, SessionQuery(limit=3, after=first.next_cursor))
    assert [each.name for each in second.items] == ["n2", "n1", "n0"]


@pytest.mark.parametrize(
    "cursor", ["", "x", "5", "-1-x", "5-", "5-a b", "9" * 18 + "-x", "\u0663-x"]
)
async def test_a_place_that_no_page_gave_is_refused(database: Database, cursor: str) -> None:
    async with database.read() as conn:
        with pytest.raises(CursorError, match="no place in this list"):
            await sessions.page(conn, SessionQuery(after=cursor))


async def test_an_empty_list_is_one_empty_page(database: Database) -> None:
    async with database.read() as conn:
        assert await sessions.page(conn, SessionQuery()) == Page([], None)
        with pytest.raises(ValueError, match="at least one"):
            await sessions.page(conn, SessionQuery(limit=0))


async def test_sessions_are_chosen_by_status_name_and_part_of_a_name(database: Database) -> None:
    await insert(
        database,
        session("build-1", created_at=later(1)),
        session("Build-2", created_at=later(2), status=Status.PAUSED),
        session("old", id="a", created_at=later(3), status=Status.DESTROYED),
        session("old", id="b", created_at=later(4), status=Status.FAILED),
        session("100%_x", created_at=later(5)),
    )
    assert await names(database) == ["100%_x", "old", "old", "Build-2", "build-1"]
    assert await names(database, statuses=frozenset({Status.PAUSED, Status.FAILED})) == [
        "old",
        "Build-2",
    ]
    assert await names(database, statuses=frozenset()) == []
    assert await names(database, name="BUILD-1") == ["build-1"]
    assert await names(database, name="build") == []
    assert await names(database, name="old") == []  # nobody holds it
    assert await names(database, search="uild") == ["Build-2", "build-1"]
    assert await names(database, search="old") == ["old", "old"]
    assert await names(database, search="%") == ["100%_x"]
    assert await names(database, search="d_1") == []
    assert await names(database, search="") == await names(database)


async def test_sessions_are_chosen_by_all_their_labels(database: Database) -> None:
    odd = {'"quoted".key': "a'b", "": "", "ü": "%"}
    await insert(
        database,
        session("one", created_at=later(1), labels={"team": "a", "env": "test"}),
        session("two", created_at=later(2), labels={"team": "a"}),
        session("three", created_at=later(3), labels=odd),
    )
    assert await names(database, labels={"team": "a"}) == ["two", "one"]
    assert await names(database, labels={"team": "a", "env": "test"}) == ["one"]
    assert await names(database, labels={"team": "A"}) == []
    assert await names(database, labels={"a": "team"}) == []
    assert await names(database, labels=odd) == ["three"]
    async with database.write() as conn:
        await sessions.update(conn, "id-of-one", labels={"team": "b"})
        await sessions.update(conn, "id-of-two", labels={})
        await sessions.update(conn, "id-of-three", generation=1)
    assert await names(database, labels={"team": "a"}) == []
    assert await names(database, labels={"env": "test"}) == []
    assert await names(database, labels={"team": "b"}) == ["one"]
    assert await names(database, labels={"ü": "%"}) == ["three"]


async def test_the_beginning_of_an_id_finds_who_lives(database: Database) -> None:
    await insert(
        database,
        session("a", id="0a1b"),
        session("b", id="0a1c", status=Status.FAILED),
        session("c", id="0a1d", status=Status.DESTROYED),
        session("d", id="0%xx"),
    )
    async with database.read() as conn:
        for prefix, expected in (
            ("0a1b", ["a"]),
            ("0a1", ["a", "b"]),
            ("0a1d", []),
            ("0%", ["d"]),
            ("x", []),
        ):
            found = await sessions.beginning_with(conn, prefix)
            assert [each.name for each in found] == expected
        assert len(await sessions.beginning_with(conn, "0", limit=9)) == 3


async def test_all_that_are_not_destroyed_are_alive_and_counted(database: Database) -> None:
    for number, status in enumerate(Status):
        await insert(database, session(f"n{number}", status=status, created_at=later(-number)))
    async with database.read() as conn:
        live = await sessions.live(conn)
        assert await sessions.counts(conn) == dict.fromkeys(Status, 1)
        assert await sessions.count(conn, (Status.READY, Status.PAUSED)) == 2
        assert await sessions.count(conn, ()) == 0
    assert {each.status for each in live} == set(Status) - {Status.DESTROYED}
    assert live == sorted(live, key=lambda each: each.created_at)
    assert (live[0].created_at, live[-1].created_at) == (later(-6), later(0))


async def test_sessions_are_found_by_what_they_stand_on(database: Database) -> None:
    await insert(
        database,
        session("parent", id="p", machine="m1", snapshot="s1", created_at=later(1)),
        session("child-1", id="c1", parent="p", snapshot="s2", created_at=later(3)),
        session("child-2", id="c2", parent="p", status=Status.DESTROYED, created_at=later(2)),
        session("gone", id="g", status=Status.DESTROYED, snapshot="s3"),
    )
    async with database.read() as conn:
        found = await sessions.of_machine(conn, "m1")
        assert found is not None
        assert found.id == "p"
        assert await sessions.of_machine(conn, "m2") is None
        standing = [await sessions.standing_on(conn, each) for each in ("s1", "s2", "s3", "s4")]
        assert [[each.id for each in found] for found in standing] == [["p"], ["c1"], [], []]
        assert await sessions.machines(conn) == {"m1"}
        assert [each.id for each in await sessions.children(conn, "p")] == ["c2", "c1"]
        assert await sessions.children(conn, "c1") == []
        ready = await sessions.with_status(conn, {Status.READY, Status.PAUSED})
        assert [each.id for each in ready] == ["p", "c1"]
        assert await sessions.with_status(conn, []) == []


async def test_a_page_of_ten_thousand_sessions_is_quick(database: Database) -> None:
    many = [
        session(
            f"n{number}",
            created_at=later(number),
            status=Status.DESTROYED if number % 3 else Status.PAUSED,
            labels={"group": str(number // 1000), "rare": "yes"} if number < 5000 else {},
        )
        for number in range(10_000)
    ]
    async with database.write() as conn:
        await conn.execute(table.insert(), [rows.values(each) for each in many])
        labels = [
            {"session": each.id, "key": key, "value": value}
            for each in many
            for key, value in each.labels.items()
        ]
        await conn.execute(session_labels.insert(), labels)

    async def median(look: Callable[[Transaction], Awaitable[object]]) -> float:
        times = []
        for _ in range(7):
            started = time.perf_counter()
            async with database.read() as conn:
                await look(conn)
            times.append(time.perf_counter() - started)
        return statistics.median(times)

    async def page(conn: Transaction, query: SessionQuery) -> None:
        assert len((await sessions.page(conn, query)).items) == 50

    # What one row takes says how busy this host is.
    one = await median(lambda conn: sessions.get(conn, "id-of-n7"))
    alive = frozenset(ALIVE)
    for query in (
        SessionQuery(),
        SessionQuery(statuses=alive),
        SessionQuery(statuses=alive, labels={"group": "3"}),
        SessionQuery(search="n1"),
    ):
        assert await median(partial(page, query=query)) < 0.05 + 20 * one, query
    async with database.read() as conn:
        assert len(await sessions.live(conn)) == 3334
        assert (await sessions.counts(conn))[Status.PAUSED] == 3334
