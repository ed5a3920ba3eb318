import pytest

from tests.store import made
from torpor.store import ConfigQuery, Database, SessionQuery, configs, sessions
from torpor.store.errors import ConfigNameTakenError
from torpor.store.records import Status


async def test_a_config_comes_back_as_it_was(database: Database) -> None:
    config = made.config(
        "one", insights={"logs": False}, manifest={"b": [1, None], "a": {"c": 1.5}}
    )
    async with database.write() as conn:
        await configs.insert(conn, config)
    async with database.read() as conn:
        assert await configs.get(conn, config.id) == config
        assert await configs.find(conn, "ONE") == config
        assert await configs.get(conn, "other") is None


async def test_a_name_is_held_by_one_config_until_that_is_deleted(database: Database) -> None:
    async with database.write() as conn:
        await configs.insert(conn, made.config("one"))
        with pytest.raises(ConfigNameTakenError) as raised:
            await configs.insert(conn, made.config("One", id="second"))
        assert raised.value.holder == "id-of-one"
        await configs.insert(conn, made.config("One", id="kept", implicit=True))
        deleted = await configs.delete(conn, "id-of-one")
        assert deleted.deleted_at is not None
        with pytest.raises(KeyError):
            await configs.delete(conn, "id-of-one")
        await configs.insert(conn, made.config("One", id="second"))
        found = await configs.find(conn, "one")
        assert found is not None
        assert found.id == "second"
        assert await configs.get(conn, "id-of-one") == deleted


async def test_lists_have_what_is_neither_deleted_nor_implicit(database: Database) -> None:
    async with database.write() as conn:
        for number in range(5):
            config = made.config(f"web-{number}", created_at=made.later(number))
            await configs.insert(conn, config)
        await configs.insert(conn, made.config("web-x", implicit=True))
        await configs.insert(conn, made.config("other"))
        await configs.delete(conn, "id-of-web-3")
    async with database.read() as conn:
        page = await configs.page(conn, ConfigQuery(limit=2, search="WEB"))
        assert [each.name for each in page.items] == ["web-4", "web-2"]
        page = await configs.page(conn, ConfigQuery(limit=2, search="web", after=page.next_cursor))
        assert [each.name for each in page.items] == ["web-1", "web-0"]
        assert page.next_cursor is None


async def test_the_same_is_what_has_the_same_content_and_format(database: Database) -> None:
    async with database.write() as conn:
        await configs.insert(conn, made.config("named", content_hash="h"))
        await configs.insert(conn, made.config("kept", content_hash="h", implicit=True))
        found = await configs.same(conn, "h", "flat")
        assert found is not None
        assert found.id == "id-of-kept"
        assert await configs.same(conn, "h", "older") is None
        assert await configs.same(conn, "g", "flat") is None
        await configs.delete(conn, "id-of-kept")
        assert await configs.same(conn, "h", "flat") is None


async def test_sessions_are_found_by_what_they_were_made_of(database: Database) -> None:
    states = {"a": Status.READY, "b": Status.PAUSED, "c": Status.FAILED, "d": Status.DESTROYED}
    async with database.write() as conn:
        for name, status in states.items():
            await sessions.insert(conn, made.session(name, status=status, config="one"))
        await sessions.insert(conn, made.session("e", config="two"))
        await sessions.insert(conn, made.session("f"))
        page = await sessions.page(conn, SessionQuery(config="one"))
        assert {each.name for each in page.items} == set(states)
        users = await sessions.made_of(conn, "one", 10)
        assert {each.name for each in users} == {"a", "b"}
        assert len(await sessions.made_of(conn, "one", 1)) == 1
