"""Configurations: kept, cloned, deleted, and what sessions have of them."""

import asyncio

import pytest

from tests.sessions.conftest import ANN, Service, full_disk
from torpor.sessions import Actor, ConflictError, InvalidError, Key, NewSession, NotFoundError
from torpor.sessions.model import ENVELOPE
from torpor.store import ConfigQuery, SessionQuery
from torpor.store.errors import DiskFullError
from torpor.store.records import Config, Status

NEW = NewSession(size="mars-2vcpu-1gb", env={"A": "b"}, labels={"team": "x"}, idle_timeout=900)
BOB = Actor("tok_bob", "bob")


async def kept(service: Service, name: str = "web") -> Config:
    return await service.sessions.configs.create(name, NEW, ANN)


async def test_a_session_has_what_its_configuration_says(service: Service) -> None:
    configs = service.sessions.configs
    config = await kept(service)
    wanted = await configs.new_session("WEB", "one")
    session = await service.sessions.create(wanted, BOB)
    assert (session.name, session.config, session.created_by) == ("one", config.id, BOB.id)
    assert (session.size, session.env, session.labels, session.idle_timeout) == (
        NEW.size, NEW.env, NEW.labels, NEW.idle_timeout,
    )  # fmt: skip
    await service.status(session, Status.READY)
    forked = await service.sessions.fork(session.id, ANN)
    child = forked.children[0]
    assert not isinstance(child, Exception)
    assert child.config == config.id
    page = await service.sessions.page(SessionQuery(config=config.id))
    assert {each.id for each in page.items} == {session.id, child.id}


async def test_a_session_with_a_manifest_of_its_own_has_a_configuration_in_no_list(
    service: Service,
) -> None:
    configs = service.sessions.configs
    one = await service.sessions.create(NEW, ANN)
    other = await service.sessions.create(NEW, BOB)
    third = await service.sessions.create(NewSession(), ANN)
    older = NewSession(**{**vars(NEW), "version": ENVELOPE})
    fourth = await service.sessions.create(older, ANN)
    assert one.config == other.config
    assert len({one.config, third.config, fourth.config}) == 3
    found = await configs.find(one.config or "")
    assert (found.name, found.implicit) == (one.name, True)
    assert (await configs.page(ConfigQuery())).items == []
    # It holds no name, and can be given one.
    clone = await configs.clone(found.id, one.name, ANN)
    assert (clone.implicit, clone.content_hash) == (False, found.content_hash)
    assert clone.id != found.id
    assert [each.id for each in (await configs.page(ConfigQuery())).items] == [clone.id]


async def test_a_configuration_is_deleted_when_nothing_of_it_lives(service: Service) -> None:
    configs = service.sessions.configs
    config = await kept(service)
    session = await service.sessions.create(await configs.new_session("web", "one"), ANN)
    await service.status(session, Status.READY)
    with pytest.raises(ConflictError, match="one") as raised:
        await configs.delete(config.id, ANN)
    assert (raised.value.code, raised.value.facts) == ("config_in_use", {"sessions": [session.id]})
    await service.sessions.pause(session.id, ANN)
    with pytest.raises(ConflictError):
        await configs.delete(config.id, ANN)
    await service.sessions.destroy(session.id, ANN)
    await configs.delete(config.id, ANN)
    for again in (configs.find(config.id), configs.find("web"), configs.delete(config.id, ANN)):
        with pytest.raises(NotFoundError):
            await again
    assert (await service.get(session)).config == config.id
    assert (await kept(service)).id != config.id
    types = [event for event in await service.types() if event.startswith("config.")]
    assert types == ["config.created", "config.deleted", "config.created"]


async def test_one_of_which_a_session_has_failed_can_be_deleted(service: Service) -> None:
    config = await kept(service)
    wanted = await service.sessions.configs.new_session("web", "one")
    session = await service.sessions.create(wanted, ANN)
    session = await service.status(session, Status.READY)
    service.host.die(service.machine(session))
    await service.status(session, Status.FAILED)
    await service.sessions.configs.delete(config.id, ANN)


async def test_a_session_of_a_configuration_that_was_deleted_meanwhile_is_refused(
    service: Service,
) -> None:
    config = await kept(service)
    wanted = await service.sessions.configs.new_session("web", "one")
    await service.sessions.configs.delete(config.id, ANN)
    with pytest.raises(NotFoundError):
        await service.sessions.create(wanted, ANN)
    assert (await service.sessions.page(SessionQuery())).items == []


async def test_of_a_deletion_and_a_session_at_once_one_comes_about(service: Service) -> None:
    configs = service.sessions.configs
    for number in range(10):
        config = await kept(service, f"web-{number}")
        wanted = await configs.new_session(config.id, f"one-{number}")
        done = await asyncio.gather(
            service.sessions.create(wanted, ANN), configs.delete(config.id, ANN),
            return_exceptions=True,
        )  # fmt: skip
        assert len([each for each in done if isinstance(each, Exception)]) == 1, done
        page = await service.sessions.page(SessionQuery(config=config.id))
        assert len(page.items) == (0 if isinstance(done[0], Exception) else 1)


async def test_what_is_asked_for_twice_with_a_key_is_kept_once(service: Service) -> None:
    configs, key = service.sessions.configs, Key("k", "digest")
    asked = (configs.create("web", NEW, ANN, key=key) for _ in range(5))
    made = await asyncio.gather(*asked)
    assert len({each.id for each in made}) == 1
    await service.again()
    configs = service.sessions.configs
    assert await configs.create("web", NEW, ANN, key=key) == made[0]
    with pytest.raises(ConflictError, match="another request"):
        await configs.create("other", NEW, ANN, key=Key("k", "other"))
    with pytest.raises(ConflictError) as raised:
        await configs.create("web", NEW, ANN)
    assert raised.value.code == "already_exists"
    again = Key("c", "digest")
    clone = await configs.clone(made[0].id, "two", ANN, key=again)
    assert await configs.clone(made[0].id, "two", ANN, key=again) == clone
    assert len((await configs.page(ConfigQuery())).items) == 2


async def test_a_full_disk_keeps_nothing_and_the_key_is_free(service: Service) -> None:
    configs, key = service.sessions.configs, Key("k", "digest")
    disk = full_disk(service.database, lambda said: "INSERT INTO operations" in said)
    with disk, pytest.raises(DiskFullError):
        await configs.create("web", NEW, ANN, key=key)
    assert (await configs.page(ConfigQuery())).items == []
    assert "config.created" not in await service.types()
    assert (await configs.create("web", NEW, ANN, key=key)).name == "web"


@pytest.mark.parametrize(
    ("name", "new"),
    [
        ("-", NEW),
        ("x" * 65, NEW),
        ("web", NewSession(size="huge")),
        ("web", NewSession(env={"SESSION_ID": "x"})),
        ("web", NewSession(env={"TOKEN": "ghp_" + "x" * 36})),
        ("web", NewSession(idle_timeout=1)),
        ("web", NewSession(description="x" * 1025)),
    ],
)
async def test_what_cannot_be_is_not_kept(service: Service, name: str, new: NewSession) -> None:
    with pytest.raises(InvalidError):
        await service.sessions.configs.create(name, new, ANN)
    assert (await service.sessions.configs.page(ConfigQuery())).items == []
    assert "config.created" not in await service.types()


async def test_what_a_session_may_have_for_itself_is_not_kept_under_a_name(
    service: Service,
) -> None:
    new = NewSession(env={"TOKEN": "ghp_" + "x" * 36})
    session = await service.sessions.create(new, ANN)
    with pytest.raises(InvalidError, match="TOKEN"):
        await service.sessions.configs.clone(session.config or "", "web", ANN)
