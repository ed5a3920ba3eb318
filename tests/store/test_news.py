"""What was committed is told on all servers."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.postgres import Cluster
from tests.store.test_postgres import end_all, opened
from torpor.store import Database
from torpor.store.news import LARGEST, MISSED, NONE, News


class Heard:
    """What a server has heard of one kind."""

    def __init__(self, database: Database, kind: str = "s") -> None:
        self.names: list[str] = []
        self._news = asyncio.Event()
        database.on_news(kind, self._hear)

    def _hear(self, name: str) -> None:
        self.names.append(name)
        self._news.set()

    async def all(self, *wanted: str) -> None:
        """Wait until all of them have come."""
        async with asyncio.timeout(10):
            while not {*wanted} <= {*self.names}:
                self._news.clear()
                await self._news.wait()


async def tell(database: Database, *names: str, kind: str = "s") -> None:
    async with database.write() as conn:
        for name in names:
            database.tell(conn, kind, name)


async def test_it_is_told_when_it_is_committed_and_each_once(database: Database) -> None:
    heard, other = Heard(database), Heard(database, "t")
    async with database.write() as conn:
        for name in ("a", "b", "a"):
            database.tell(conn, "s", name)
        database.tell(conn, "t")
        assert [name for name in heard.names if name != MISSED] == []
    assert [name for name in heard.names if name != MISSED] == ["a", "b"]
    assert [name for name in other.names if name != MISSED] == [NONE]


async def test_who_does_not_write_tells_nothing(database: Database) -> None:
    async with database.read() as conn:
        with pytest.raises(RuntimeError, match="transaction that writes"):
            database.tell(conn, "s", "a")


async def test_one_that_fails_keeps_it_from_nobody(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(name: str) -> None:
        raise ZeroDivisionError

    database.on_news("s", fails)
    heard = Heard(database)
    with caplog.at_level(logging.ERROR):
        await tell(database, "a")
    assert "a" in heard.names
    assert "ZeroDivisionError" in caplog.text


@pytest.fixture
async def pair(cluster: Cluster) -> AsyncIterator[tuple[Database, Database]]:
    """Two servers on one database."""
    with cluster.migrated() as url:
        async with opened(url) as first, opened(url) as second:
            yield first, second


async def test_other_servers_hear_it_and_nobody_hears_what_was_taken_back(
    pair: tuple[Database, Database],
) -> None:
    first, second = pair
    here, there = Heard(first), Heard(second)
    await there.all(MISSED)
    await here.all(MISSED)

    async def taken_back() -> None:
        async with first.write() as conn:
            first.tell(conn, "s", "nothing")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await taken_back()
    many = [f"session-{number:036}" for number in range(500)]
    await tell(first, *many)
    await there.all(*many)
    assert "nothing" not in there.names
    assert here.names.count(many[0]) == 1, "what came back from the database was told before"
    await tell(second, "back")
    await here.all("back")


async def test_who_was_cut_off_is_told_that_it_may_have_missed_some(
    pair: tuple[Database, Database], cluster: Cluster
) -> None:
    first, second = pair
    there = Heard(second)
    await there.all(MISSED)
    for turn in range(2):
        there.names.clear()
        end_all(cluster, second)
        await there.all(MISSED)
        await tell(first, f"after{turn}")
        await there.all(f"after{turn}")


@given(st.lists(st.tuples(st.sampled_from("st"), st.from_regex(r"[!-~]{1,200}", fullmatch=True))))
def test_messages_say_all_and_are_short(told: list[tuple[str, str]]) -> None:
    heard: list[tuple[str, str]] = []
    there = News()
    for kind in "st":
        there.on(kind, lambda name, kind=kind: heard.append((kind, name)))  # type: ignore[misc]
    for message in News().messages(told):
        assert len(message.encode()) <= LARGEST
        there.heard(message)
    assert heard == told
