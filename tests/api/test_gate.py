"""Who may pass: judged before anything is looked up."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from starlette.routing import Route as StarletteRoute
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.api.conftest import BASE, Api, served
from torpor.api.permissions import Permission, needs_of
from torpor.store.errors import DiskFullError
from torpor.store.records import Role

PATHS = (
    "/sessions",
    "/sessions/2f1a9c1e-7f0b-4c55-9a8e-0d6a3c1b7e42",
    "/sessions/one/pause",
    "/nothing",
    "/tokens",
    "/sessions/one/execs/x/stream",
)


@pytest.mark.parametrize(
    "shown",
    [
        None,
        "Bearer",
        "Bearer ",
        "Basic dG9ycG9y",
        "Bearer torpor_0000000000000000_" + "0" * 64,
        "Bearer torpor_x_y",
        "Bearer é",
    ],
)
async def test_without_a_valid_token_every_path_says_the_same(api: Api, shown: str | None) -> None:
    session = await api.ready(name="one")
    calls = list(api.host.calls)
    headers = {} if shown is None else {"authorization": shown.encode()}
    bodies = set()
    async with api.client(None) as client:
        for path in (*PATHS, f"/sessions/{session}", "/../../metrics"):
            for method in ("GET", "POST", "DELETE", "PUT", "OPTIONS", "BREW"):
                answer = await client.request(method, path, headers=headers, content=b"{")
                assert answer.status_code == 401, (method, path)
                assert answer.headers["www-authenticate"] == "Bearer"
                body = answer.json()
                assert body.pop("request_id") == answer.headers["x-request-id"]
                bodies.add((str(body), *sorted(answer.headers.keys())))
    assert len(bodies) == 1
    assert api.host.calls == calls


async def test_a_secret_that_is_wrong_is_nobodys(api: Api) -> None:
    token = api.tokens["admin"]
    wrong = token[:-1] + ("0" if token[-1] != "0" else "1")
    assert api.bearers.find(token) is not None
    assert api.bearers.find(wrong) is None
    assert api.bearers.find(token + "0") is None


async def test_a_token_that_is_revoked_or_expired_is_nobodys(api: Api) -> None:
    token, bearer = await api.bearers.make("x", "admin", datetime.now(UTC) + timedelta(hours=1))
    assert api.bearers.find(bearer) is not None
    await api.bearers.revoke(token.id)
    assert api.bearers.find(bearer) is None
    _, expired = await api.bearers.make("x", "admin", datetime.now(UTC) - timedelta(seconds=1))
    assert api.bearers.find(expired) is None


async def test_the_use_of_a_token_is_written_down(api: Api) -> None:
    async with api.client("viewer") as client:
        await client.get("/whoami")
    await api.bearers.note_uses()
    again = await type(api.bearers).open(api.database)
    assert [bool(each.used_at) for each in again.list()] == [True, False, False, False]


async def test_unauthenticated_traffic_wakes_nothing(api: Api) -> None:
    session = await api.ready(name="one")
    await api.sessions.pause(session, api.bearers.find(api.tokens["admin"]).actor)  # type: ignore[union-attr]
    calls = list(api.host.calls)
    async with api.client(None) as client:
        body = {"argv": ["true"]}
        await client.post("/sessions/one/sandbox/exec", json=body)
        await client.get("/sessions/one/files/content", params={"path": "/etc/passwd"})
        await client.post(f"/sessions/{session}/resume")
    assert api.host.calls == calls


@pytest.mark.parametrize(
    ("role", "method", "path", "passes"),
    [
        ("viewer", "GET", "/sessions", True),
        ("viewer", "GET", "/events?replay_only=true", True),
        ("viewer", "GET", "/host", True),
        ("viewer", "POST", "/sessions", False),
        ("viewer", "POST", "/sessions/nobody/pause", False),
        ("viewer", "GET", "/sessions/nobody/files/content?path=/etc", False),
        ("viewer", "GET", "/sessions/nobody/execs", False),
        ("approver", "POST", "/sessions/nobody/fork", False),
        ("operator", "POST", "/sessions/nobody/fork", True),
        ("operator", "GET", "/tokens", False),
        ("operator", "POST", "/tokens", False),
        ("admin", "GET", "/tokens", True),
    ],
)
async def test_a_role_may_do_what_it_may_and_is_refused_before_any_lookup(
    api: Api, role: Role, method: str, path: str, passes: bool
) -> None:
    async with api.client(role) as client:
        answer = await client.request(method, path)
    assert (answer.status_code != 403) is passes
    if not passes:
        assert answer.json()["id"] == "forbidden"


async def test_a_refused_call_says_403_even_if_its_body_is_wrong(api: Api) -> None:
    async with api.client("viewer") as client:
        answer = await client.post("/sessions", content=b"{" * 3_000_000)
    assert answer.status_code == 403


def test_every_route_says_what_it_needs(api: Api) -> None:
    routes = [route for route in api.app.routes if isinstance(route, StarletteRoute)]
    assert len(routes) > 40
    for route in api.app.routes:
        assert needs_of(route) is not None, route


def test_what_changes_something_needs_more_than_to_see(api: Api) -> None:
    for route in api.app.routes:
        wanted = needs_of(route)
        assert wanted is not None
        methods = getattr(route, "methods", None) or {"WS"}
        if not methods <= {"GET", "HEAD"}:
            assert wanted.permission not in (Permission.NONE, Permission.READ), route


async def test_env_is_shown_to_those_who_could_read_it_anyway(api: Api) -> None:
    session = await api.ready(env={"KEY": "hush"})
    async with api.client("operator") as client:
        assert (await client.get(f"/sessions/{session}")).json()["session"]["env"] == {
            "KEY": "hush"
        }
    async with api.client("viewer") as client:
        for path in (f"/sessions/{session}", "/sessions"):
            assert "hush" not in (await client.get(path)).text


async def test_a_token_that_asks_too_often_is_told_when_to_come_back(
    tmp_path: Path, database_url: str
) -> None:
    api = await Api(tmp_path, database_url, rate_limit_burst=5, rate_limit_per_second=1).open()
    try:
        async with api.client("viewer") as client, api.client("operator") as other:
            answers = [await client.get("/whoami") for _ in range(6)]
            assert [each.status_code for each in answers] == [200] * 5 + [429]
            assert [each.headers["ratelimit-remaining"] for each in answers] == list("432100")
            assert answers[-1].json()["id"] == "too_many_requests"
            assert answers[-1].headers["retry-after"] == "1"
            assert (await other.get("/whoami")).status_code == 200
    finally:
        await api.close()


async def test_without_authentication_everybody_is_an_admin(
    tmp_path: Path, database_url: str
) -> None:
    api = await Api(tmp_path, database_url, authentication="none").open()
    try:
        async with api.client(None, headers={"host": "127.0.0.1:8470"}) as client:
            assert (await client.get("/whoami")).json()["role"] == "admin"
            assert (await client.get("/tokens")).json()["id"] == "no_authentication"
    finally:
        await api.close()


HERE = "127.0.0.1:8470"


@pytest.mark.parametrize(
    ("passes", "headers"),
    [
        (True, {"host": "localhost"}),
        (True, {"host": "LOCALHOST:1234"}),
        (True, {"host": "[::1]:8470"}),
        (True, {"host": HERE, "origin": f"http://{HERE}", "sec-fetch-site": "same-origin"}),
        (True, {"host": HERE, "sec-fetch-site": "none"}),
        (False, {"host": "rebound.example:8470"}),
        (False, {"host": "rebound.example:8470", "origin": "http://rebound.example:8470"}),
        (False, {"host": "127.0.0.1.rebound.example"}),
        (False, {"host": "127.0.0.1@rebound.example"}),
        (False, {"host": "[::1"}),
        (False, {"host": ""}),
        (False, {"host": HERE, "origin": "https://evil.example"}),
        (False, {"host": HERE, "origin": "http://127.0.0.1:8080"}),
        (False, {"host": HERE, "origin": "null"}),
        (False, {"host": HERE, "sec-fetch-site": "cross-site"}),
        (False, {"host": HERE, "sec-fetch-site": "same-site"}),
    ],
)
async def test_without_authentication_web_pages_are_not_served(
    tmp_path: Path, database_url: str, passes: bool, headers: dict[str, str]
) -> None:
    api = await Api(tmp_path, database_url, authentication="none").open()
    try:
        async with api.client(None, headers=headers) as client:
            for method, path in (("GET", "/sessions"), ("POST", "/sessions"), ("GET", "/nothing")):
                answer = await client.request(method, path)
                refused = answer.status_code == 403 and answer.json()["id"] == "foreign_origin"
                assert refused is not passes, (method, path, answer.text)
        assert not any(event.type == "session.created" for event in await api.events()) or passes
    finally:
        await api.close()


async def test_without_authentication_web_pages_open_no_websockets(
    tmp_path: Path, database_url: str
) -> None:
    api = await Api(tmp_path, database_url, authentication="none").open()
    try:
        async with served(api) as place:
            url = f"ws://{place}{BASE}/sessions/one/execs/x/stream"
            with pytest.raises(InvalidStatus) as refused:
                await connect(url, origin="https://evil.example")  # type: ignore[arg-type]
            assert refused.value.response.status_code == 403
            with pytest.raises(InvalidStatus) as refused:
                await connect(url, origin=f"http://{place}")  # type: ignore[arg-type]
            assert refused.value.response.status_code == 404
    finally:
        await api.close()


async def test_the_log_says_whose_request_it_was(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "torpor.api"):
        async with api.client("viewer") as client:
            await client.get("/whoami")
    (line,) = [each for each in caplog.records if each.getMessage().endswith("/whoami 200")]
    assert line.fields["token"] == api.tokens["viewer"].split("_")[1]  # type: ignore[attr-defined]


async def test_a_revocation_that_was_not_written_down_is_asked_for_again(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, bearer = await api.bearers.make("x", "admin")

    @contextlib.asynccontextmanager
    async def full() -> AsyncIterator[None]:
        raise DiskFullError("The disk is full.")
        yield

    with monkeypatch.context() as patch:
        patch.setattr(api.database, "write", full)
        with pytest.raises(DiskFullError):
            await api.bearers.revoke(token.id)
    assert api.bearers.find(bearer) is None
    await api.bearers.revoke(token.id)
    assert (await type(api.bearers).open(api.database)).find(bearer) is None


async def test_tokens_are_made_listed_and_revoked(api: Api) -> None:
    async with api.client("admin") as admin:
        made = (await admin.post("/tokens", json={"name": "ci", "role": "viewer"})).json()
        bearer = {"authorization": f"Bearer {made['bearer']}"}
        async with api.client(None) as client:
            seen = (await client.get("/whoami", headers=bearer)).json()
            assert (seen["name"], seen["role"], seen["permissions"]) == ("ci", "viewer", ["read"])
            listed = (await admin.get("/tokens")).text
            assert made["token"]["id"] in listed
            assert made["bearer"].rpartition("_")[2] not in listed
            path = f"/tokens/{made['token']['id']}"
            assert (await admin.delete(path)).status_code == 204
            assert (await admin.delete(path)).status_code == 204
            assert (await client.get("/whoami", headers=bearer)).status_code == 401
        assert (await admin.delete("/tokens/nobody")).status_code == 404
        assert (await admin.post("/tokens", json={"name": "x", "role": "god"})).status_code == 400


async def test_what_was_changed_and_by_whom_is_an_event(api: Api) -> None:
    async with api.client("admin") as admin, api.client("viewer") as viewer:
        made = (await admin.post("/tokens", json={"name": "ci", "role": "viewer"})).json()
        await viewer.post("/sessions", json={})
        await admin.post("/sessions/nobody/pause")
        await admin.get("/sessions/nobody")
    await asyncio.sleep(0)
    told = [event for event in await api.events() if event.type[:7] in ("token.c", "request")]
    assert [event.type for event in told] == ["token.created"] + ["request.refused"] * 2
    assert told[0].data["token_id"] == made["token"]["id"]
    assert made["bearer"] not in str(told)
    assert told[1].data["status"] == 403
    assert told[1].actor == api.tokens["viewer"].split("_")[1]
    assert (told[2].data["route"], told[2].data["error"]) == (
        f"{BASE}/sessions/{{session_id}}/pause",
        "not_found",
    )


async def test_each_request_is_one_line_in_the_log_without_any_secret(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "torpor.api")
    async with api.client("viewer") as client:
        await client.get("/sessions/nobody?page_size=1", headers={"x-request-id": "r1"})
        await client.get("/nothing", headers={"authorization": "Bearer hush"})
    known, unknown = (record.fields for record in caplog.records if hasattr(record, "fields"))
    assert (known["request_id"], known["status"]) == ("r1", 400)
    assert known["token"] == api.tokens["viewer"].split("_")[1]
    assert known["route"] == f"{BASE}/sessions/{{session_id}}"
    assert (unknown["token"], unknown["status"], unknown["error"]) == (None, 401, "unauthorized")
    said = str([vars(record) for record in caplog.records])
    for secret in (api.tokens["viewer"], "hush", "page_size"):
        assert secret not in said


async def test_open_paths_need_no_token(api: Api) -> None:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=api.app), base_url="http://torpor"
    ) as client:
        for path in ("/healthz", "/readyz", "/openapi.json", "/docs"):
            assert (await client.get(path)).status_code == 200, path
        assert (await client.get("/metrics")).status_code == 401
        api.app.state.parts.closing.set()
        assert (await client.get("/readyz")).status_code == 503


async def test_a_request_id_is_taken_over_only_if_it_can_be_mistaken_for_nothing(
    client: httpx.AsyncClient,
) -> None:
    taken = await client.get("/whoami", headers={"x-request-id": "abc-1"})
    assert taken.headers["x-request-id"] == "abc-1"
    for bad in ("a b", "x" * 65, "a=b"):
        answer = await client.get("/whoami", headers={"x-request-id": bad})
        assert answer.headers["x-request-id"] != bad


async def test_paths_and_methods_that_there_are_not_are_said_to_be_so(
    client: httpx.AsyncClient,
) -> None:
    answer = await client.get("/nothing")
    assert (answer.status_code, answer.json()["id"]) == (404, "not_found")
    answer = await client.put("/sessions")
    assert (answer.status_code, answer.json()["id"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, POST"
    assert (await client.get("/sessions/")).status_code == 404


async def test_a_method_that_a_path_does_not_know_is_told_all_that_it_knows(api: Api) -> None:
    known: dict[str, set[str]] = {}
    for route in api.app.routes:
        known.setdefault(route.path, set()).update(getattr(route, "methods", ()))  # type: ignore[attr-defined]
    async with api.client() as client:
        for path, methods in known.items():
            if methods and "/signed/" not in path:  # what is there is not told without a signature
                answer = await client.options(f"http://torpor{path}")
                assert answer.status_code == 405, path
                assert answer.headers["allow"] == ", ".join(sorted(methods)), path
