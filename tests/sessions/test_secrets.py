"""Secrets of sessions: their life, and that no value is anywhere but at the wall."""

import json
from pathlib import Path

import pytest

from tests.sessions.conftest import Service
from torpor.network.errors import NetworkError
from torpor.sessions import (
    ConflictError,
    InvalidError,
    NewSecret,
    NotFoundError,
)
from torpor.sessions.model import Actor
from torpor.store import events as events_table
from torpor.store.records import Status

BY = Actor("t", "tester")
VALUE, NEWER = "s3cr3t-value-1", "s3cr3t-value-2"
BINDINGS = [{"host": "api.example.test"}]


@pytest.fixture
async def kept(service: Service, tmp_path: Path) -> Service:
    """The service, with a key."""
    service.options["sealing_key"] = tmp_path / "sealing-key"
    await service.again()
    return service


async def ready(service: Service, **wanted: object) -> str:
    found = await service.ready(f"n-{len(await service.types())}", **wanted)
    assert found.status is Status.READY, found.failure
    return found.id


async def values(service: Service, session: str) -> list[tuple[str, str]]:
    held = await service.sessions.secrets.held(session)
    return [(each.binding.secret, each.value) for each in held]


async def test_a_session_has_what_it_was_given_and_only_that(kept: Service) -> None:
    secrets = kept.sessions.secrets
    await secrets.put("KEY", NewSecret(VALUE, BINDINGS), BY)
    await secrets.put("OTHER", NewSecret("another-value", BINDINGS), BY)
    one, two = await ready(kept), await ready(kept)
    assert await values(kept, one) == []
    await secrets.grant(one, "KEY", BY, although_open=True)
    await secrets.grant(one, "KEY", BY, although_open=True)
    assert await values(kept, one) == [("KEY", VALUE)]
    assert await values(kept, two) == []
    assert (await secrets.sessions_of("KEY")) == [one]
    await secrets.revoke(one, "KEY", BY)
    assert await values(kept, one) == []
    with pytest.raises(NotFoundError):
        await secrets.revoke(one, "KEY", BY)


async def test_an_open_policy_is_refused_unless_it_is_said_twice(kept: Service) -> None:
    secrets = kept.sessions.secrets
    await secrets.put("KEY", NewSecret(VALUE, BINDINGS), BY)
    one = await ready(kept)
    with pytest.raises(InvalidError) as caught:
        await secrets.grant(one, "KEY", BY)
    assert caught.value.code == "policy_is_open"
    assert await values(kept, one) == []

    async def narrow(_session: object) -> bool:
        return False

    secrets.is_open = narrow
    await secrets.grant(one, "KEY", BY)
    assert await values(kept, one) == [("KEY", VALUE)]
    # And it does not become open by the back door.
    with pytest.raises(InvalidError) as caught:
        await secrets.check_may_open(one)
    assert caught.value.code == "session_has_secrets"
    await secrets.grant(one, "KEY", BY, although_open=True)
    await secrets.check_may_open(one)
    await secrets.grant(one, "KEY", BY)
    await secrets.check_may_open(one)
    assert await values(kept, one) == [("KEY", VALUE)]


async def test_a_value_that_is_set_anew_reaches_running_and_paused_sessions(kept: Service) -> None:
    secrets = kept.sessions.secrets
    await secrets.put("KEY", NewSecret(VALUE, BINDINGS), BY)
    running, paused = await ready(kept), await ready(kept)
    for each in (running, paused):
        await secrets.grant(each, "KEY", BY, although_open=True)
    await kept.sessions.pause(paused, BY)
    again = await secrets.put("KEY", NewSecret(NEWER), BY)
    assert (again.version, again.bindings[0]["host"]) == (2, "api.example.test")
    await kept.sessions.resume(paused, BY)
    for each in (running, paused):
        assert await values(kept, each) == [("KEY", NEWER)]


async def test_forks_have_them_and_destroyed_sessions_do_not(kept: Service) -> None:
    secrets = kept.sessions.secrets
    await secrets.put("KEY", NewSecret(VALUE, [{"host": "h.test", "placeholder": True}]), BY)
    one = await ready(kept)
    await secrets.grant(one, "KEY", BY, although_open=True)
    forked = await kept.sessions.fork(one, BY)
    (child,) = forked.children
    await kept.sessions.ready(child.id, 20)
    assert await values(kept, child.id) == [("KEY", VALUE)]
    parent, found = await kept.sessions.get(one), await kept.sessions.get(child.id)
    assert found.env == parent.env
    await kept.sessions.destroy(child.id, BY)
    assert await secrets.sessions_of("KEY") == [one]


async def test_the_machine_has_a_placeholder_in_its_environment(kept: Service) -> None:
    secrets = kept.sessions.secrets
    bindings = [{"host": "h.test", "placeholder": True, "variable": "TOKEN"}]
    made = await secrets.put("KEY", NewSecret(VALUE, bindings), BY)
    one = await ready(kept, env={"A": "b"})
    await secrets.grant(one, "KEY", BY, although_open=True)
    text = made.bindings[0]["placeholder"]
    assert (await kept.sessions.get(one)).env == {"A": "b", "TOKEN": text}
    # What processes there have stays good when the binding is said anew.
    wider = [{"host": "*.h.test", "placeholder": True, "variable": "TOKEN"}]
    again = await secrets.put("KEY", NewSecret(NEWER, wider), BY)
    assert again.bindings[0]["placeholder"] == text
    moved = [{"host": "h.test", "placeholder": True, "variable": "OTHER"}]
    await secrets.put("KEY", NewSecret(NEWER, moved), BY)
    assert (await kept.sessions.get(one)).env == {"A": "b", "OTHER": text}
    await secrets.remove("KEY", BY)
    assert (await kept.sessions.get(one)).env == {"A": "b"}
    taken = await ready(kept, env={"TOKEN": "mine"})
    await secrets.put("KEY", NewSecret(VALUE, bindings), BY)
    with pytest.raises(ConflictError, match="TOKEN in its environment"):
        await secrets.grant(taken, "KEY", BY, although_open=True)


async def test_no_value_is_in_the_database_its_events_or_its_records(
    kept: Service, tmp_path: Path
) -> None:
    secrets = kept.sessions.secrets
    await secrets.put("KEY", NewSecret(VALUE, BINDINGS), BY)
    one = await ready(kept)
    await secrets.grant(one, "KEY", BY, although_open=True)
    found = await secrets.get("KEY")
    assert VALUE not in repr(found) + found.sealed
    async with kept.database.read() as conn:
        events = await events_table.after(conn, None, None, 1000)
    told = {each.type: each.data for each in events if each.type.startswith("secret.")}
    assert told.keys() == {"secret.set", "secret.granted"}
    assert VALUE not in json.dumps(list(told.values()))
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert VALUE.encode() not in file.read_bytes(), file


async def test_what_cannot_be_is_refused_and_changes_nothing(kept: Service) -> None:
    secrets = kept.sessions.secrets
    with pytest.raises(InvalidError, match="what it is for"):
        await secrets.put("KEY", NewSecret(VALUE), BY)
    await secrets.put("KEY", NewSecret(VALUE, BINDINGS), BY)
    for name, value, bindings in (
        ("1KEY", VALUE, BINDINGS),
        ("KEY", "short", BINDINGS),
        ("KEY", NEWER, []),
        ("KEY", NEWER, [{"host": "10.0.0.1"}]),
        ("KEY", NEWER, [{}] * 33),
    ):
        with pytest.raises(InvalidError) as caught:
            await secrets.put(name, NewSecret(value, bindings), BY)
        assert value not in str(caught.value)
    assert (await secrets.get("KEY")).version == 1
    for missing in (secrets.get("NONE"), secrets.remove("NONE", BY)):
        with pytest.raises(NotFoundError):
            await missing


async def test_without_the_key_nothing_is_set_and_no_request_goes_out(
    kept: Service, tmp_path: Path
) -> None:
    secrets = kept.sessions.secrets
    await secrets.put("KEY", NewSecret(VALUE, BINDINGS), BY)
    one = await ready(kept)
    await secrets.grant(one, "KEY", BY, although_open=True)
    (tmp_path / "sealing-key").unlink()
    await kept.again()
    secrets = kept.sessions.secrets
    with pytest.raises(NetworkError, match="does not open"):
        await secrets.held(one)
    assert not secrets.usable(await secrets.get("KEY"))
    await secrets.put("KEY", NewSecret(NEWER), BY)
    assert secrets.usable(await secrets.get("KEY"))
    assert await values(kept, one) == [("KEY", NEWER)]


async def test_a_server_without_a_key_says_so(service: Service) -> None:
    with pytest.raises(ConflictError, match="no key"):
        await service.sessions.secrets.put("KEY", NewSecret(VALUE, BINDINGS), BY)
