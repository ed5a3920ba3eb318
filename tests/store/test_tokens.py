import pytest

from tests.store.made import later, token
from torpor.store import Database, tokens


async def test_tokens_are_listed_in_the_order_in_which_they_were_made(database: Database) -> None:
    async with database.write() as conn:
        for name, at in (("b", 1), ("a", 2), ("c", 0)):
            await tokens.insert(conn, token(name, created_at=later(at)))
        await tokens.update(conn, "c", revoked_at=later(3))
    async with database.read() as conn:
        assert [each.id for each in await tokens.all(conn)] == ["c", "b", "a"]


async def test_an_update_returns_the_whole(database: Database) -> None:
    async with database.write() as conn:
        await tokens.insert(conn, token("a", expires_at=later(9)))
        new = await tokens.update(conn, "a", used_at=later(1))
        assert new == token("a", expires_at=later(9), used_at=later(1))
        assert new == await tokens.get(conn, "a")
        with pytest.raises(KeyError):
            await tokens.update(conn, "b", used_at=later(1))
