"""Secrets over the API: values go in and never come out."""

from typing import Any

import httpx
import pytest

from tests.api.conftest import Api

VALUE = "s3cr3t-value-1"
BODY: dict[str, Any] = {
    "value": VALUE,
    "bindings": [{"host": "api.example.test", "path": "/v1/**"}],
}


@pytest.fixture
async def admin(api: Api) -> Any:
    async with api.client("admin") as opened:
        yield opened


async def put(admin: httpx.AsyncClient, name: str = "KEY", **body: Any) -> dict[str, Any]:
    answer = await admin.put(f"/secrets/{name}", json=BODY | body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_one_is_set_shown_listed_and_removed(api: Api, admin: httpx.AsyncClient) -> None:
    made = await put(admin)
    assert made["session_ids"] == []
    said = made["secret"]
    assert (said["name"], said["version"], said["usable"]) == ("KEY", 1, True)
    assert said["bindings"] == [
        {
            "host": "api.example.test", "port": 443, "schemes": ["https", "wss"], "methods": [],
            "path": "/v1/**", "header": "authorization", "template": "Bearer {}",
        }
    ]  # fmt: skip
    assert (await admin.get("/secrets/KEY")).json() == made
    assert (await admin.get("/secrets")).json() == {"secrets": [said]}
    # What was answered can be asked for.
    again = await put(admin, bindings=said["bindings"])
    assert again["secret"]["bindings"] == said["bindings"]
    assert (await admin.delete("/secrets/KEY")).status_code == 204
    for method in ("GET", "DELETE"):
        assert (await admin.request(method, "/secrets/KEY")).status_code == 404


async def test_a_value_comes_back_nowhere(api: Api, admin: httpx.AsyncClient) -> None:
    await put(admin)
    session = await api.ready()
    await admin.put(f"/sessions/{session}/secrets/KEY", json={"although_open": True})
    seen = ""
    for path in (
        "/secrets",
        "/secrets/KEY",
        f"/sessions/{session}/secrets",
        f"/sessions/{session}",
    ):
        seen += (await admin.get(path)).text
    for wrong in ({"bindings": [{"host": 1}]}, {"x": 1}, {"bindings": [{"host": "10.0.0.1"}]}):
        answer = await admin.put("/secrets/KEY", json=BODY | wrong)
        assert answer.status_code == 400
        seen += answer.text
    seen += str([each.data for each in await api.events()])
    assert "api.example.test" in seen
    assert VALUE not in seen


async def test_roles(api: Api, admin: httpx.AsyncClient) -> None:
    await put(admin)
    session = await api.ready()
    grant = f"/sessions/{session}/secrets/KEY"
    for role, may_give in (("viewer", False), ("approver", False), ("operator", True)):
        async with api.client(role) as client:
            assert (await client.get("/secrets/KEY")).status_code == 200
            assert (await client.put("/secrets/KEY", json=BODY)).status_code == 403
            assert (await client.delete("/secrets/KEY")).status_code == 403
            given = await client.put(grant, json={"although_open": True})
            assert given.status_code == (200 if may_give else 403)
            taken = await client.delete(grant)
            assert taken.status_code == (204 if may_give else 403)
    async with api.client(None) as nobody:
        assert (await nobody.get("/secrets")).status_code == 401


async def test_an_open_policy_has_to_be_said_twice(api: Api, admin: httpx.AsyncClient) -> None:
    await put(admin)
    session = await api.ready()
    grant = f"/sessions/{session}/secrets/KEY"
    refused = await admin.put(grant, json={})
    assert (refused.status_code, refused.json()["id"]) == (400, "policy_is_open")
    assert (await admin.get(f"/sessions/{session}/secrets")).json() == {"secrets": []}
    given = await admin.put(grant, json={"although_open": True})
    assert given.json()["name"] == "KEY"
    assert (await admin.get("/secrets/KEY")).json()["session_ids"] == [session]
    assert (await admin.delete(grant)).status_code == 204
    assert (await admin.delete(grant)).status_code == 404


@pytest.mark.parametrize(
    ("name", "body", "why"),
    [
        ("KEY", {"value": VALUE}, "what it is for"),
        ("1KEY", BODY, "cannot be called"),
        ("KEY", BODY | {"value": "short"}, "8 to 8192"),
        ("KEY", {"bindings": BODY["bindings"]}, "'value' is missing"),
        ("KEY", BODY | {"bindings": []}, "1 to 32"),
        ("KEY", BODY | {"bindings": [{"host": "h.test", "schemes": ["http"]}]}, "no TLS"),
        ("KEY", BODY | {"bindings": [{"host": "h.test", "hosts": 1}]}, "not known"),
        ("KEY", BODY | {"bindings": [{"host": "h.test", "basic": "a", "query": "b"}]}, "one way"),
    ],
)
async def test_what_cannot_be_is_refused(
    admin: httpx.AsyncClient, name: str, body: dict[str, Any], why: str
) -> None:
    answer = await admin.put(f"/secrets/{name}", json=body)
    assert answer.status_code == 400
    assert why in f"{answer.json()['message']} {answer.json().get('todo')}"
    assert (await admin.get("/secrets")).json() == {"secrets": []}
