"""A host belongs to one server at a time, and what an older one writes is not taken."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.store import made
from torpor.store import Database, events, hosts, operations, sessions
from torpor.store.errors import FencedError, HostHeldError
from torpor.store.hosts import Claim, Lease

FIRST = Claim("host", "here", "http://here", "1", "place", "first")
ELSEWHERE = replace(FIRST, place="other", server="second", url="http://there")


@pytest.fixture
async def other(url: str, database: Database) -> AsyncIterator[Database]:
    """The same database, as another server has it."""
    opened = await Database.open(url)
    yield opened
    await opened.close()


async def take(database: Database, claim: Claim, seconds: float = 60) -> Lease:
    async with database.write() as conn:
        lease = await hosts.take(conn, claim, seconds)
    database.hold(lease)
    return lease


async def note(database: Database, name: str) -> None:
    async with database.write() as conn:
        await events.append(conn, made.event(name))


async def noted(database: Database) -> list[str]:
    async with database.read() as conn:
        return [each.id for each in await events.after(conn, None, None, 100)]


async def test_a_host_that_is_held_is_nobody_elses(database: Database, other: Database) -> None:
    lease = await take(database, FIRST)
    assert lease == Lease("host", 1, "place/first")
    with pytest.raises(
        HostHeldError, match=r"here is held by another server, reached at http://here"
    ):
        await take(other, ELSEWHERE)
    async with database.read() as conn:
        (row,) = await hosts.held(conn)
    assert (row.id, row.epoch, row.holder, row.url) == ("host", 1, "place/first", "http://here")
    await note(database, "a")


async def test_another_host_is_free(database: Database, other: Database) -> None:
    await take(database, FIRST)
    await take(other, replace(ELSEWHERE, host="another"))
    await note(database, "a")
    await note(other, "b")
    assert await noted(database) == ["a", "b"]


async def test_who_comes_after_the_time_takes_it_and_the_first_writes_no_more(
    database: Database, other: Database
) -> None:
    await take(database, FIRST, 2)
    await note(database, "a")
    with pytest.raises(HostHeldError):
        await take(other, ELSEWHERE)
    await asyncio.sleep(2.1)
    await note(database, "b")  # it is late, and nobody has taken it
    assert (await take(other, ELSEWHERE)).epoch == 2
    assert not database.fenced.is_set()
    with pytest.raises(FencedError, match="Another server has taken"):
        await note(database, "c")
    assert database.fenced.is_set()
    await note(other, "d")
    assert await noted(database) == ["a", "b", "d"]


async def test_a_write_that_was_begun_before_it_was_taken_is_whole_or_nothing(
    database: Database, other: Database
) -> None:
    await take(database, FIRST, 0)
    async with database.write() as conn:
        await events.append(conn, made.event("a"))
        taking = asyncio.create_task(take(other, ELSEWHERE))
        await asyncio.sleep(0.1)
        assert not taking.done()
        await events.append(conn, made.event("b"))
    await taking
    assert await noted(other) == ["a", "b"]


async def test_what_is_made_anew_lasts(database: Database, other: Database) -> None:
    lease = await take(database, FIRST, 2)
    for _ in range(3):
        await asyncio.sleep(0.8)
        async with database.write() as conn:
            await hosts.renew(conn, lease, 2)
        with pytest.raises(HostHeldError):
            await take(other, ELSEWHERE)


async def test_what_is_given_back_is_free_at_once(database: Database, other: Database) -> None:
    lease = await take(database, FIRST)
    async with database.write() as conn:
        await hosts.give_back(conn, lease)
    async with other.read() as conn:
        assert await hosts.held(conn) == []
    assert (await take(other, ELSEWHERE)).epoch == 2


async def test_who_has_the_lock_of_the_same_directory_need_not_wait(
    database: Database, other: Database
) -> None:
    """The one before it was killed: it cannot have the lock of the home and not run."""
    await take(database, FIRST)
    assert (await take(other, replace(FIRST, server="second"))).epoch == 2
    with pytest.raises(FencedError):
        await note(database, "a")


async def test_an_older_one_gives_nothing_back_and_makes_nothing_anew(
    database: Database, other: Database
) -> None:
    old = await take(other, FIRST)
    new = await take(database, replace(FIRST, server="second"), 60)
    async with database.write() as conn:
        await hosts.give_back(conn, old)
        await hosts.renew(conn, old, 0)
        assert not await hosts.holds(conn, old)
        assert await hosts.holds(conn, new)
        assert len(await hosts.held(conn)) == 1


async def test_what_belongs_to_no_host_is_taken_over_and_can_be_forgotten(
    database: Database,
) -> None:
    async with database.write() as conn:
        await sessions.insert(conn, made.session("old"))
        await sessions.insert(conn, made.session("theirs", host="other"))
        await operations.insert(conn, made.operation("o1"))
        await hosts.adopt(conn, "host")
        found = {each.name: each.host for each in await sessions.live(conn)}
        assert found == {"old": "host", "theirs": "other"}
        assert [each.id for each in await operations.unfinished(conn, "host")] == ["o1"]
        assert await operations.unfinished(conn, "other") == []
        await hosts.take(conn, FIRST, 60)
        await hosts.forget_all(conn)
        assert {each.host for each in await sessions.live(conn)} == {None}
        assert await hosts.all(conn) == []
