"""Tokens hold at all servers on a database, and end at all of them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.postgres import Cluster
from torpor.api import bearers as module
from torpor.api.bearers import Bearers, TokenEndedError
from torpor.store import Database, tokens
from torpor.store.records import Token


class Server:
    """The tokens as one server has them."""

    def __init__(self, database: Database, bearers: Bearers) -> None:
        self.database = database
        self.bearers = bearers


@contextlib.asynccontextmanager
async def server(url: str) -> AsyncIterator[Server]:
    database = await Database.open(url)
    bearers = await Bearers.open(database)
    following = asyncio.create_task(bearers.follow())
    try:
        yield Server(database, bearers)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await database.close()


@pytest.fixture
async def pair(cluster: Cluster) -> AsyncIterator[tuple[Server, Server]]:
    with cluster.migrated() as url:
        async with server(url) as here, server(url) as there:
            yield here, there


async def known(there: Server, text: str) -> None:
    async with asyncio.timeout(5):
        while there.bearers.find(text) is None:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)


async def test_one_that_is_made_at_one_server_holds_at_the_other(
    pair: tuple[Server, Server],
) -> None:
    here, there = pair
    _, text = await here.bearers.make("x", "viewer")
    await known(there, text)
    caller = there.bearers.find(text)
    assert caller is not None
    assert caller.role == "viewer"


async def test_one_that_is_revoked_at_one_server_ends_what_it_has_under_way_at_the_other(
    pair: tuple[Server, Server],
) -> None:
    here, there = pair
    token, text = await here.bearers.make("x", "viewer")
    await known(there, text)

    async def stream() -> None:
        async with there.bearers.while_valid(token.id):
            await asyncio.Event().wait()

    streaming = asyncio.create_task(stream())
    await asyncio.sleep(0.05)
    await here.bearers.revoke(token.id)
    with pytest.raises(TokenEndedError):
        await asyncio.wait_for(streaming, 1)
    assert there.bearers.find(text) is None
    assert not there.bearers.stands(token.id)


async def test_what_was_read_before_a_revocation_was_written_brings_no_token_back(
    pair: tuple[Server, Server],
) -> None:
    here, _ = pair
    token, text = await here.bearers.make("x", "viewer")
    async with here.database.write():  # the revocation waits for this
        revoking = asyncio.create_task(here.bearers.revoke(token.id))
        await asyncio.sleep(0)
        await here.bearers.read_again()
        assert here.bearers.find(text) is None
    await revoking
    await here.bearers.read_again()
    assert here.bearers.find(text) is None


async def test_what_no_news_came_of_is_found_all_the_same(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.1)
    with cluster.migrated() as url:
        async with server(url) as here:
            token, text = await here.bearers.make("x", "viewer")
            async with here.database.write() as conn:  # as by hand
                found: Token | None = await tokens.get(conn, token.id)
                assert found is not None
                await tokens.update(conn, token.id, revoked_at=found.created_at)
            async with asyncio.timeout(5):
                while here.bearers.find(text) is not None:  # noqa: ASYNC110 - nothing tells of it
                    await asyncio.sleep(0.01)


async def test_who_follows_ends_when_it_is_cancelled_just_as_news_come(
    cluster: Cluster,
) -> None:
    with cluster.migrated() as url:
        database = await Database.open(url)
        bearers = await Bearers.open(database)
        following = asyncio.create_task(bearers.follow())
        await asyncio.sleep(0.2)
        bearers._stale.set()
        following.cancel()
        await asyncio.wait([following], timeout=5)
        ended = following.done()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await database.close()
    assert ended
