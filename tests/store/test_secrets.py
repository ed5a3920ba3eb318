"""The tables of secrets, and of which sessions have which."""

from typing import Any

import pytest

from tests.store.made import later, session
from torpor.store import Database, secrets, sessions
from torpor.store.records import Grant, Secret


def secret(name: str, **rest: Any) -> Secret:
    filled = {
        "id": f"id-of-{name}", "name": name, "created_at": later(0), "updated_at": later(0),
        "created_by": "t", "updated_by": "t", "bindings": [{"host": "h.test", "methods": []}],
        "sealed": "c2VhbGVk", "key": "k", "version": 1,
    }  # fmt: skip
    return Secret(**filled | rest)


@pytest.fixture
async def filled(database: Database) -> Database:
    async with database.write() as conn:
        for name in ("one", "two"):
            await sessions.insert(conn, session(name))
        for name in ("B", "A"):
            await secrets.insert(conn, secret(name))
    return database


async def test_they_are_kept_and_changed(filled: Database) -> None:
    async with filled.write() as conn:
        assert await secrets.listed(conn) == [secret("A"), secret("B")]
        assert await secrets.named(conn, "A") == secret("A")
        assert await secrets.named(conn, "a") is None
        changed = await secrets.update(conn, "id-of-A", sealed="x", version=2)
        assert changed == secret("A", sealed="x", version=2)
        with pytest.raises(KeyError):
            await secrets.update(conn, "id-of-C", version=2)
    assert "sealed" not in repr(changed)


async def test_sessions_have_those_that_they_were_given(filled: Database) -> None:
    async with filled.write() as conn:
        for name in ("B", "A"):
            await secrets.grant(conn, Grant("id-of-one", f"id-of-{name}", later(0), "t"))
        assert await secrets.of_session(conn, "id-of-one") == [secret("A"), secret("B")]
        assert await secrets.of_session(conn, "id-of-two") == []
        await secrets.inherit(conn, "id-of-one", "id-of-two")
        assert await secrets.granted(conn, "id-of-two") == [
            Grant("id-of-two", f"id-of-{name}", later(0), "t") for name in ("A", "B")
        ]
        assert await secrets.sessions_of(conn, "id-of-A") == ["id-of-one", "id-of-two"]
        assert await secrets.revoke(conn, "id-of-one", "id-of-A")
        assert not await secrets.revoke(conn, "id-of-one", "id-of-A")
        assert await secrets.of_session(conn, "id-of-one") == [secret("B")]
        await secrets.forget_session(conn, "id-of-two")
        assert await secrets.sessions_of(conn, "id-of-A") == []


async def test_one_that_is_removed_is_nobodys(filled: Database) -> None:
    async with filled.write() as conn:
        await secrets.grant(conn, Grant("id-of-one", "id-of-A", later(0), "t"))
        await secrets.remove(conn, "id-of-A")
        assert await secrets.of_session(conn, "id-of-one") == []
        assert await secrets.listed(conn) == [secret("B")]
