"""The table of links to ports of sessions."""

from typing import Any

import pytest

from tests.store.made import later, session
from torpor.store import Database, previews, sessions
from torpor.store.records import PreviewLink


def link(name: str, of: str = "id-of-one", **rest: Any) -> PreviewLink:
    filled = {
        "id": name, "session": of, "port": 8000, "label": "", "created_at": later(0),
        "created_by": "t", "expires_at": later(10),
    }  # fmt: skip
    return PreviewLink(**filled | rest)


@pytest.fixture
async def two(database: Database) -> Database:
    async with database.write() as conn:
        for name in ("one", "two"):
            await sessions.insert(conn, session(name))
    return database


async def test_links_are_those_of_their_session_the_oldest_first(two: Database) -> None:
    made = [
        link("b", created_at=later(1)),
        link("a", created_at=later(2)),
        link("c", of="id-of-two"),
        link("d", created_at=later(1)),
    ]
    async with two.write() as conn:
        for each in made:
            await previews.insert(conn, each)
    async with two.read() as conn:
        assert await previews.of_session(conn, "id-of-one") == [made[0], made[3], made[1]]
        assert await previews.get(conn, "c") == made[2]
        assert await previews.get(conn, "x") is None


async def test_a_revoked_link_stays_until_it_was_over_for_long(two: Database) -> None:
    async with two.write() as conn:
        await previews.insert(conn, link("a"))
        await previews.insert(conn, link("b", expires_at=later(20)))
        revoked = await previews.update(conn, "b", revoked_at=later(1))
        assert revoked == link("b", expires_at=later(20), revoked_at=later(1))
        await previews.prune(conn, later(20))
        assert await previews.of_session(conn, "id-of-one") == [revoked]
        with pytest.raises(KeyError):
            await previews.update(conn, "a", revoked_at=later(1))
