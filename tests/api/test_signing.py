"""URLs that are signed: as good as a token, for one thing, and for a while."""

import logging
import time
from typing import Annotated, Any

import pytest
from fastapi import FastAPI

from tests.api.conftest import Api
from tests.store.made import later
from torpor.api.bearers import Caller
from torpor.api.permissions import Permission, needs
from torpor.api.requests import SIGNED
from torpor.api.routes import BASE, router
from torpor.api.signing import Signed, Signer
from torpor.api.wiring import signed
from torpor.sessions.model import Actor
from torpor.store import Database
from torpor.store.records import SigningKey

WHO = Caller(Actor("0123456789abcdef", "ana"), "operator")
routes = router("test")


@routes.get("/signed/{text}")
@needs(Permission.READ)
async def read_signed(allowed: Annotated[Signed, signed("test.read")]) -> dict[str, Any]:
    return {"who": allowed.caller.actor.name, **allowed.claims}


@routes.put("/signed/{text}")
@needs(Permission.USE, audit="test.written")
async def write_signed(allowed: Annotated[Signed, signed("test.write")]) -> dict[str, Any]:
    return dict(allowed.claims)


def with_routes(app: FastAPI) -> None:
    app.router.routes.extend(routes.routes)


def key(name: str, secret: str) -> SigningKey:
    return SigningKey(name, "urls", secret * 32, later(0))


def test_what_was_signed_is_read_until_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    signer = Signer([key("a", "ab")])
    path = signer.path("test.read", WHO, {"part": 3}, seconds=60)
    assert path.startswith(SIGNED)
    found = signer.read(path)
    assert found is not None
    assert (found.purpose, found.caller, found.claims) == ("test.read", WHO, {"part": 3})
    end = found.ends_at
    monkeypatch.setattr(time, "time", lambda: end - 0.001)
    assert signer.read(path) == found
    monkeypatch.setattr(time, "time", lambda: end)
    assert signer.read(path) is None


def test_no_letter_of_it_may_be_another() -> None:
    signer = Signer([key("a", "ab")])
    path = signer.path("test.read", WHO, {}, seconds=60)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    for at in range(len(SIGNED), len(path)):
        if at == len(path) - 1:
            continue  # its last letter has bits that mean nothing
        other = letters[(letters.find(path[at]) + 1) % 64]
        assert signer.read(path[:at] + other + path[at + 1 :]) is None
    for wrong in (path[:-2], path + "A", path.replace(".", ""), SIGNED, "/", SIGNED + "." * 5000):
        assert signer.read(wrong) is None


def test_a_key_that_is_older_still_reads_and_another_does_not() -> None:
    old, new = key("a", "ab"), key("b", "cd")
    path = Signer([old]).path("test.read", WHO, {}, seconds=60)
    assert Signer([old, new]).read(path) is not None
    assert Signer([new]).read(path) is None
    assert Signer([]).read(path) is None
    assert Signer([old]).read(Signer([old, new]).path("x", WHO, {}, seconds=60)) is None


async def test_the_first_start_makes_the_key_and_the_next_ones_have_it(database_url: str) -> None:
    database = await Database.open(database_url)
    path = (await Signer.open(database)).path("test.read", WHO, {}, seconds=60)
    await database.close()
    database = await Database.open(database_url)
    assert (await Signer.open(database)).read(path) is not None
    await database.close()


async def test_it_needs_no_token_and_has_the_role_of_who_asked(api: Api) -> None:
    with_routes(api.app)
    paths = {}
    for role in ("operator", "viewer"):
        who = api.bearers.find(api.tokens[role])
        assert who is not None
        for purpose in ("test.read", "test.write"):
            path = api.signer.path(purpose, who, {"n": 1}, seconds=60)
            paths[role, purpose] = path.removeprefix(BASE)
    async with api.client(None) as client:
        answer = await client.get(paths["viewer", "test.read"])
        assert answer.json() == {"who": "viewer", "n": 1}
        assert (await client.put(paths["operator", "test.write"])).json() == {"n": 1}
        # Not for what the role may not do, and not for what it was not signed for.
        assert (await client.put(paths["viewer", "test.write"])).status_code == 403
        assert (await client.get(paths["operator", "test.write"])).status_code == 404
        nothing = await client.get("/sessions", headers={"x": paths["operator", "test.read"]})
        assert nothing.status_code == 401
    async with api.client("admin") as client:  # a token is nothing there
        wrong = await client.get("/signed/WyJ4Il0.AAAA")
        assert (wrong.status_code, wrong.json()["id"]) == (401, "unauthorized")
    told = [each for each in await api.events() if each.type == "test.written"]
    assert [each.data["status"] for each in told] == [200, 403]


async def test_it_ends_with_the_token_of_who_asked(api: Api) -> None:
    with_routes(api.app)
    token, text = await api.bearers.make("x", "operator")
    who = api.bearers.find(text)
    assert who is not None
    path = api.signer.path("test.read", who, {}, seconds=60).removeprefix(BASE)
    async with api.client(None) as client:
        assert (await client.get(path)).status_code == 200
        await api.bearers.revoke(token.id)
        assert (await client.get(path)).status_code == 401


async def test_the_log_does_not_tell_it(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    with_routes(api.app)
    who = api.bearers.find(api.tokens["viewer"])
    assert who is not None
    path = api.signer.path("test.read", who, {}, seconds=60)
    with caplog.at_level(logging.INFO, "torpor.api"):
        async with api.client(None) as client:
            await client.get(path.removeprefix(BASE))
    secret = path.removeprefix(SIGNED)
    (line,) = [each for each in caplog.records if "fields" in each.__dict__]
    assert secret not in line.getMessage() + repr(line.__dict__["fields"])
    assert line.__dict__["fields"]["route"] == f"{BASE}/signed/{{text}}"


async def test_its_ending_leads_to_a_route_and_makes_it_good_for_no_other(api: Api) -> None:
    for purpose in ("one", "two"):
        of = router("test")

        @of.get("/signed/{text}/" + purpose, name=purpose)
        @needs(Permission.READ)
        async def read(allowed: Annotated[Signed, signed(purpose)]) -> dict[str, Any]:
            return {"for": allowed.purpose}

        api.app.router.routes.extend(of.routes)
    who = api.bearers.find(api.tokens["viewer"])
    assert who is not None
    async with api.client(None) as client:
        for purpose, other in (("one", "two"), ("two", "one")):
            path = api.signer.path(purpose, who, {}, seconds=60, ending="/" + purpose)
            path = path.removeprefix(BASE)
            assert (await client.get(path)).json() == {"for": purpose}
            for wrong in (other, purpose + "/x", ""):
                changed = path.removesuffix(purpose) + wrong
                assert (await client.get(changed)).status_code == 404
