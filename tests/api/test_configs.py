"""Configurations over HTTP."""

import hashlib
import json
from typing import Any

import httpx
import pytest

from tests.api.conftest import Api

MANIFEST = """\
name: left-out
description: builds things
size: mars-2vcpu-1gb
env:
  PORT: 8080
  ON: yes
labels: {team: search}
metadata: {n: [1, null, {y: null}]}
idle_timeout: 15m
"""
CANONICAL = {
    "apiVersion": "agents.digitalocean.com/v1alpha1",
    "kind": "Agent",
    "metadata": {"labels": {"team": "search"}, "description": "builds things"},
    "spec": {
        "runtime": {"adapter": "none"},
        "sandbox": {"sizeSlug": "mars-2vcpu-1gb", "idleTimeoutSeconds": 900},
        "env": {"PORT": "8080", "ON": "yes"},
        "x-torpor": {"metadata": {"n": [1, None, {"y": None}]}},
    },
}
YAML = {"content-type": "application/x-yaml"}


async def make(client: httpx.AsyncClient, name: str = "web", **more: Any) -> dict[str, Any]:
    answer = await client.post("/configs", json={"name": name, "manifest_yaml": MANIFEST, **more})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()["config"]
    return made


async def test_a_configuration_is_made_shown_cloned_used_and_deleted(
    api: Api, client: httpx.AsyncClient
) -> None:
    made = await make(client, insights={"logs": False})
    assert made["manifest"] == CANONICAL
    said = json.dumps(CANONICAL, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert made["content_hash"] == hashlib.sha256(said.encode()).hexdigest()
    assert made["agentspec_schema_version"] == "agents.digitalocean.com/flat.v1"
    assert (made["name"], made["credentials"], made["insights"]) == ("web", [], {"logs": False})
    assert made["created_by"] == api.tokens["operator"].split("_")[1] or made["created_by"]
    for path in (made["id"], made["id"].upper(), "web", "WEB"):
        assert (await client.get(f"/configs/{path}")).json()["config"] == made
    answer = await client.post(f"/configs/{made['id']}/clone", json={"name": "web-2"})
    assert answer.status_code == 201
    clone = answer.json()["config"]
    assert clone["id"] != made["id"]
    assert (clone["content_hash"], clone["manifest"]) == (made["content_hash"], CANONICAL)
    session = await client.post("/sessions", json={"name": "one", "config_id": made["id"]})
    assert session.status_code == 200, session.text
    shown = session.json()["session"]
    assert shown["config_id"] == made["id"]
    assert (shown["env"], shown["idle_timeout_seconds"]) == ({"PORT": "8080", "ON": "yes"}, 900)
    assert shown["metadata"] == {"n": [1, None, {"y": None}]}
    listed = (await client.get("/configs/web/sessions")).json()
    assert [each["session_id"] for each in listed["sessions"]] == [shown["session_id"]]
    assert (await client.get("/configs/web-2/sessions")).json()["sessions"] == []
    answer = await client.delete("/configs/web")
    assert (answer.status_code, answer.json()["id"]) == (409, "config_in_use")
    assert answer.json()["facts"] == {"sessions": [shown["session_id"]]}
    assert (await client.delete(f"/sessions/{shown['session_id']}")).status_code == 204
    assert (await client.get("/configs/web/sessions")).json()["sessions"] == []
    everything = await client.get("/configs/web/sessions", params={"status": "SESSION_STATUS_ALL"})
    assert [each["config_id"] for each in everything.json()["sessions"]] == [made["id"]]
    assert (await client.delete("/configs/web")).status_code == 204
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/sessions"), ("POST", "/clone")):
        body = {"json": {"name": "x"}} if method == "POST" else {}
        gone = await client.request(method, f"/configs/{made['id']}{path}", **body)
        assert (gone.status_code, gone.json()["id"]) == (404, "not_found")
    found = (await client.get(f"/sessions/{shown['session_id']}")).json()["session"]
    assert found["config_id"] == made["id"]


async def test_configurations_are_listed_page_by_page(client: httpx.AsyncClient) -> None:
    for number in range(5):
        await make(client, f"web-{number}")
    await make(client, "other")
    await client.post("/sessions", json={})
    found: list[str] = []
    token = ""
    while True:
        page = await client.get(
            "/configs", params={"page_size": 2, "page_token": token, "search": "WEB"}
        )
        assert all("manifest" not in each for each in page.json()["configs"])
        found += [each["name"] for each in page.json()["configs"]]
        token = page.json()["next_page_token"]
        if not token:
            break
    assert found == [f"web-{number}" for number in reversed(range(5))]
    for size in (0, 201):
        assert (await client.get("/configs", params={"page_size": size})).status_code == 400
    assert (await client.get("/configs", params={"page_size": 200})).status_code == 200
    assert (await client.get("/configs", params={"page_token": "x"})).status_code == 400
    assert (await client.get("/configs", params={"search": "x" * 65})).status_code == 400


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({}, 400, "'name' is missing"),
        ({"name": "x"}, 400, "'manifest_yaml' is missing"),
        ({"name": "x-", "manifest_yaml": ""}, 400, "cannot be called"),
        ({"name": "x", "manifest_yaml": "- a\n"}, 400, "valid dictionary"),
        ({"name": "x", "manifest_yaml": "size: big\n"}, 400, "no size 'big'"),
        ({"name": "x", "manifest_yaml": "a: 1\nsise: big\n"}, 400, "'sise' is not known (line 2)"),
        ({"name": "x", "manifest_yaml": "secrets: [{name: a}]\n"}, 400, "key 'secrets' needs"),
        ({"name": "x", "manifest_yaml": "env: {A: ghp_" + "x" * 36 + "}\n"}, 400, "credential"),
        ({"name": "x", "manifest_yaml": "env: {TEAM_ID: x}\n"}, 400, "'team_id'"),
        ({"name": "x", "manifest_yaml": "a: " + "x" * (512 << 10)}, 413, "524288"),
        ({"name": "x", "manifest_yaml": "", "insights": {"logs": True}}, 400, "insights"),
        ({"name": "x", "manifest_yaml": "", "secrets": {}}, 400, "'secrets' is not known"),
    ],
)  # fmt: skip
async def test_what_cannot_be_kept_is_refused(
    client: httpx.AsyncClient, body: dict[str, Any], status: int, said: str
) -> None:
    answer = await client.post("/configs", json=body)
    assert answer.status_code == status, answer.text
    assert said in answer.json()["message"].lower()
    assert (await client.get("/configs")).json()["configs"] == []


async def test_names_and_keys_are_used_once(client: httpx.AsyncClient) -> None:
    made = await make(client)
    body = {"name": "Web", "manifest_yaml": ""}
    taken = await client.post("/configs", json=body)
    assert (taken.status_code, taken.json()["id"]) == (409, "already_exists")
    taken = await client.post(f"/configs/{made['id']}/clone", json={"name": "WEB"})
    assert (taken.status_code, taken.json()["id"]) == (409, "already_exists")
    headers = {"idempotency-key": "k"}
    body = {"name": "two", "manifest_yaml": ""}
    first, second = [await client.post("/configs", json=body, headers=headers) for _ in range(2)]
    assert first.json() == second.json()
    assert (first.status_code, second.status_code) == (201, 201)


async def test_a_clone_has_no_slots_for_secrets(client: httpx.AsyncClient) -> None:
    await make(client)
    for key in ("secrets", "oauth_assignments"):
        answer = await client.post("/configs/web/clone", json={"name": "x", key: {"a": "b"}})
        assert (answer.status_code, key in answer.json()["message"]) == (400, True)
        answer = await client.post("/configs/web/clone", json={"name": f"x-{key}", key: {}})
        assert answer.status_code == 201
    answer = await client.post("/configs/web/clone", content="a=b", headers={"content-type": "x/y"})
    assert answer.status_code == 415


async def test_who_may_only_look_sees_no_variables_and_changes_nothing(
    api: Api, client: httpx.AsyncClient
) -> None:
    await make(client)
    async with api.client("viewer") as viewer:
        shown = (await viewer.get("/configs/web")).json()["config"]
        assert "env" not in shown["manifest"]["spec"]
        assert shown["manifest"]["spec"]["sandbox"] == CANONICAL["spec"]["sandbox"]  # type: ignore[index]
        assert (await viewer.get("/configs")).status_code == 200
        assert (await viewer.get("/configs/web/sessions")).status_code == 200
        body = {"name": "x", "manifest_yaml": ""}
        refused = [
            await viewer.post("/configs", json=body),
            await viewer.post("/configs/web/clone", json={"name": "x"}),
            await viewer.delete("/configs/web"),
        ]
    assert [each.status_code for each in refused] == [403] * 3
    events = await api.events()
    assert [each.type for each in events].count("request.refused") == 3
    created = [each for each in events if each.type == "config.created"]
    assert len(created) == 1
    assert created[0].data["name"] == "web"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"config_id": "web"}, "'name' is missing"),
        ({"config_id": "web", "name": "one", "size": "big"}, "'size' cannot stand beside"),
        ({"config_id": "web", "name": "one", "env": {}}, "'env' cannot stand beside"),
        ({"config_id": "web", "name": "one", "resume_on_topoff": True}, "balance"),
        ({"config_id": "web", "name": "one", "workspace_id": "w"}, "'workspace_id' is not known"),
        ({"config_id": 7, "name": "one"}, "'config_id'"),
        ({"config_id": "web", "name": "1b4e28ba-2fa1-11d2-883f-0016d3cca427"}, "ids look like"),
    ],
)  # fmt: skip
async def test_a_session_of_a_configuration_brings_a_name_and_no_more(
    client: httpx.AsyncClient, body: dict[str, Any], said: str
) -> None:
    await make(client)
    answer = await client.post("/sessions", json=body)
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["message"]


async def test_a_session_of_a_configuration_that_is_not_there_is_refused(
    client: httpx.AsyncClient,
) -> None:
    answer = await client.post("/sessions", json={"name": "one", "config_id": "web"})
    assert (answer.status_code, answer.json()["id"]) == (404, "not_found")


async def test_two_sessions_cannot_have_one_name(client: httpx.AsyncClient) -> None:
    await make(client)
    body = {"name": "one", "config_id": "web", "resume_on_topoff": False}
    assert (await client.post("/sessions", json=body)).status_code == 200
    answer = await client.post("/sessions", json=body)
    assert (answer.status_code, answer.json()["id"]) == (409, "already_exists")
