"""A server keeps its host as long as it can say so in the database, and ends when it cannot."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace

import pytest

from tests.waiting import eventually
from torpor.api import tenure
from torpor.api.server import _hold_host
from torpor.api.stopping import Stop
from torpor.api.supervisor import Supervisor
from torpor.api.tenure import Tenure, held
from torpor.store import Database, Transaction, hosts
from torpor.store.errors import DiskFullError, FencedError, HostHeldError, UnreachableError
from torpor.store.hosts import Claim

CLAIM = Claim("host", "here", "http://here", "1", "place", "first")
OTHER = replace(CLAIM, place="elsewhere", server="second")


@pytest.fixture
async def database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    monkeypatch.setattr(tenure, "MARGIN_SECONDS", 0.1)
    monkeypatch.setattr(tenure, "AGAIN_SECONDS", 0.1)
    opened = await Database.open(database_url)
    yield opened
    await opened.close()


@pytest.fixture
async def other(database_url: str, database: Database) -> AsyncIterator[Database]:
    """The same database, as another server has it."""
    opened = await Database.open(database_url)
    yield opened
    await opened.close()


@contextlib.contextmanager
def refusing(database: Database, error: Callable[[], Exception]) -> Iterator[None]:
    """Have the database take no changes while the block lasts."""
    real = database.write

    @contextlib.asynccontextmanager
    async def write() -> AsyncIterator[Transaction]:
        raise error()
        yield

    database.write = write  # type: ignore[method-assign]
    try:
        yield
    finally:
        database.write = real  # type: ignore[method-assign]


async def is_lost(found: Tenure) -> str:
    await asyncio.wait_for(found.lost.wait(), 30)
    return found.why


async def test_it_is_held_for_longer_than_its_time_and_given_back(
    database: Database, other: Database
) -> None:
    async with held(database, CLAIM, 2) as found:
        for _ in range(6):
            await asyncio.sleep(0.5)
            with pytest.raises(HostHeldError):
                async with held(other, OTHER, 60):
                    pass
        assert not found.lost.is_set()
    async with held(other, OTHER, 60):
        pass


async def test_who_does_not_reach_its_database_ends_before_another_one_may_begin(
    database: Database, other: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenure, "MARGIN_SECONDS", 5)
    async with held(database, CLAIM, 6) as found:
        with refusing(database, lambda: UnreachableError("It is not there.")):
            assert "before the lease of the host ended" in await is_lost(found)
        with pytest.raises(HostHeldError):
            async with held(other, OTHER, 60):
                pass


async def test_who_starts_waits_for_a_lease_that_nobody_makes_anew_and_for_no_other(
    database: Database, other: Database
) -> None:
    """The one of a server that runs, and the one of a server whose computer went down."""

    async def start() -> None:
        async with contextlib.AsyncExitStack() as stack:
            await _hold_host(stack, database, CLAIM, 60, Stop(Supervisor.of_environment()), False)

    async with held(other, OTHER, 3):
        with pytest.raises(HostHeldError):
            await start()
    async with database.write() as conn:
        await hosts.take(conn, OTHER, 1)
    await start()


async def test_an_answer_that_does_not_come_is_none(database: Database) -> None:
    async with held(database, CLAIM, 1) as found, database.write():
        assert "before the lease of the host ended" in await is_lost(found)


async def test_a_moment_without_the_database_is_no_matter(database: Database) -> None:
    async with held(database, CLAIM, 4) as found:
        with refusing(database, lambda: UnreachableError("It is not there.")):
            await asyncio.sleep(1.8)
        await asyncio.sleep(2.7)
        assert not found.lost.is_set()


async def test_a_full_disk_ends_no_server(database: Database, other: Database) -> None:
    async with held(database, CLAIM, 1.5) as found:
        with refusing(database, lambda: DiskFullError("It is full.")):
            await asyncio.sleep(3.5)
        assert not found.lost.is_set()
        with refusing(database, lambda: DiskFullError("It is full.")):
            async with other.write() as conn:
                await hosts.take(conn, replace(CLAIM, server="second"), 60)
            assert "Another server has taken" in await is_lost(found)


async def test_who_finds_that_another_one_has_it_ends_at_once(
    database: Database, other: Database
) -> None:
    async with (
        held(database, CLAIM, 60) as found,
        held(other, replace(CLAIM, server="second"), 60) as second,
    ):
        with pytest.raises(FencedError):
            async with database.write():
                pass
        assert "Another server has taken" in await is_lost(found)
        assert not second.lost.is_set()
    async with other.read() as conn:
        row = await hosts.get(conn, "host")
    assert row is not None
    assert row.holder is None, "the second has given it back, and the first has taken nothing"


async def test_a_newer_torpor_on_the_database_ends_an_older_one(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torpor.store.migrate.HEAD", "0001")
    async with held(database, CLAIM, 0.6) as found:
        assert "newer Torpor" in await is_lost(found)


async def test_it_is_told_until_when_it_is_held(database: Database) -> None:
    async def until() -> hosts.HostRow:
        async with database.read() as conn:
            row = await hosts.get(conn, "host")
        assert row is not None
        return row

    async with held(database, CLAIM, 3):
        first = await until()
        later = await eventually(until, lambda row: row.lease_until != first.lease_until)
        assert later.epoch == first.epoch
        assert later.lease_until > first.lease_until
        assert later.seen_at > first.seen_at
