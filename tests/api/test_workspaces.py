"""Workspaces over the API, on a host whose disks are files."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.api.conftest import Api
from tests.waiting import eventually
from torpor.api.document import document
from torpor.sessions import SYSTEM, NewWorkspace
from torpor.vm import HostError, SnapshotError

CONFIG = {"name": "c", "manifest_yaml": "size: mars-2vcpu-1gb\n"}


async def make(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    """Return a new workspace."""
    answer = await client.post("/workspaces", json={"size_gibibytes": 1} | body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json()["workspace"])


async def workspace(client: httpx.AsyncClient, called: str) -> dict[str, Any]:
    answer = await client.get(f"/workspaces/{called}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["workspace"])


async def session(client: httpx.AsyncClient, called: str) -> dict[str, Any]:
    return dict((await client.get(f"/sessions/{called}")).json()["session"])


def lines(api: Api, found: dict[str, Any]) -> list[str] | None:
    """Return what a session finds on its disk."""
    return api.host.read_disk(found["sandbox_id"])


async def test_a_workspace_is_made_listed_and_deleted(client: httpx.AsyncClient) -> None:
    made = await make(client, size_gibibytes=20, name="notes")
    assert made.keys() == {
        "workspace_id", "name", "state", "size_gibibytes", "bytes_used", "created_at",
        "updated_at", "created_by", "updated_by",
    }  # fmt: skip
    assert (made["state"], made["size_gibibytes"], made["name"]) == ("AVAILABLE", 20, "notes")
    assert made["created_at"] == made["updated_at"]
    assert made["created_by"] == made["updated_by"]
    assert type(made["bytes_used"]) is int
    for called in (made["workspace_id"], "notes"):
        assert await workspace(client, called) == made
    assert (await client.get("/workspaces")).json() == {
        "workspaces": [made],
        "next_page_token": "",
    }
    gone = await client.delete(f"/workspaces/{made['workspace_id']}")
    assert (gone.status_code, gone.content) == (204, b"")
    for method in ("GET", "DELETE"):
        answer = await client.request(method, f"/workspaces/{made['workspace_id']}")
        assert (answer.status_code, answer.json()["id"]) == (404, "not_found")


async def test_the_list_goes_page_by_page_and_by_state(api: Api, client: httpx.AsyncClient) -> None:
    made = [(await make(client, name=f"n{number}"))["workspace_id"] for number in range(3)]
    await api.ready(workspace_id="n1")
    seen: list[str] = []
    token = ""
    while True:
        params = {"page_size": 1, "page_token": token}
        page = (await client.get("/workspaces", params=params)).json()
        assert len(page["workspaces"]) == 1
        seen.append(page["workspaces"][0]["workspace_id"])
        token = page["next_page_token"]
        if not token:
            break
    assert seen == made[::-1]
    for state, names in (("AVAILABLE", ["n2", "n0"]), ("ATTACHED", ["n1"]), ("FAILED", [])):
        page = (await client.get("/workspaces", params={"state": state})).json()
        assert [each["name"] for each in page["workspaces"]] == names
    for wrong in ({"state": "attached"}, {"state": "x"}, {"page_token": "x"}):
        assert (await client.get("/workspaces", params=wrong)).status_code == 400
    for size in (0, 100_000):
        page = (await client.get("/workspaces", params={"page_size": size})).json()
        assert len(page["workspaces"]) == 3


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        ("/workspaces", {}, "'size_gibibytes' is missing"),
        ("/workspaces", {"size_gibibytes": 0}, "1 to 100"),
        ("/workspaces", {"size_gibibytes": 101}, "1 to 100"),
        ("/workspaces", {"size_gibibytes": "10"}, "'size_gibibytes'"),
        ("/workspaces", {"size_gibibytes": True}, "'size_gibibytes'"),
        ("/workspaces", {"size_gibibytes": 1.5}, "'size_gibibytes'"),
        ("/workspaces", {"size_gibibytes": 1, "name": "a\nb"}, "cannot be called"),
        ("/workspaces", {"size_gibibytes": 1, "region": "x"}, "'region' is not known"),
        ("/sessions", {"persistent_workspace": "yes"}, "'persistent_workspace'"),
        ("/sessions", {"workspace_id": 1}, "'workspace_id'"),
        (
            "/configs",
            CONFIG | {"manifest_yaml": "workspace_id: notes\n"},
            "only one session at a time",
        ),
    ],
)
async def test_what_cannot_be_is_refused(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], why: str
) -> None:
    answer = await client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert why in f"{answer.json()['message']} {answer.json().get('todo')}"
    assert (await client.get("/workspaces")).json()["workspaces"] == []


async def test_viewers_see_them_and_change_none(api: Api, client: httpx.AsyncClient) -> None:
    made = await make(client)
    api.host.refuse["release_disk"] = SnapshotError("/srv/torpor/layers/x is damaged.")
    used = await api.ready(workspace_id=made["workspace_id"])
    await client.delete(f"/sessions/{used}")
    where = f"/workspaces/{made['workspace_id']}"
    assert (await workspace(client, made["workspace_id"]))["error"].startswith("/srv/torpor")
    async with api.client("viewer") as viewer:
        shown = (await viewer.get(where)).json()["workspace"]
        assert (shown["state"], "error" in shown) == ("FAILED", False)
        assert (await viewer.get("/workspaces")).status_code == 200
        for method, path, body in (
            ("POST", "/workspaces", {"size_gibibytes": 1}),
            ("DELETE", where, None),
        ):
            answer = await viewer.request(method, path, json=body)
            assert answer.status_code == 403
    async with api.client(None) as nobody:
        assert (await nobody.get(where)).status_code == 401
    events = [each for each in await api.events() if each.type == "request.refused"]
    assert [each.data["status"] for each in events] == [403, 403]


# Keys


async def test_a_key_makes_one_and_another_request_with_it_is_422(
    client: httpx.AsyncClient,
) -> None:
    headers = {"idempotency-key": "notes-1"}
    body = {"size_gibibytes": 1, "name": "notes"}
    first = await client.post("/workspaces", json=body, headers=headers)
    again = await client.post("/workspaces", json=body, headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    other = await client.post("/workspaces", json=body | {"size_gibibytes": 2}, headers=headers)
    assert (other.status_code, other.json()["id"]) == (422, "conflict")
    assert len((await client.get("/workspaces")).json()["workspaces"]) == 1
    await client.delete("/workspaces/notes")
    anew = await client.post("/workspaces", json=body, headers=headers)
    assert anew.status_code == 201
    assert anew.json()["workspace"]["workspace_id"] != first.json()["workspace"]["workspace_id"]


async def test_the_document_says_so(api: Api) -> None:
    paths = document(api.app)["paths"]
    responses = paths["/v2/agents/workspaces"]["post"]["responses"]
    assert {"200", "201", "409", "422"} <= responses.keys()
    schema = responses["422"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/Error"}
    assert "422" not in paths["/v2/agents/configs"]["post"]["responses"]


# Sessions


async def test_a_session_has_it_and_the_next_one_finds_what_it_wrote(
    api: Api, client: httpx.AsyncClient
) -> None:
    made = (await make(client, name="notes"))["workspace_id"]
    first = await session(client, await api.ready(name="one", workspace_id=made))
    assert first["workspace_id"] == made
    held = await workspace(client, made)
    assert (held["state"], held["attached_session_id"]) == ("ATTACHED", first["session_id"])
    api.host.write_disk(first["sandbox_id"], "hello")
    refused = await client.delete(f"/workspaces/{made}")
    assert (refused.status_code, refused.json()["id"]) == (409, "workspace_in_use")
    assert refused.json()["facts"]["session_id"] == first["session_id"]
    refused = await client.post("/sessions", json={"name": "two", "workspace_id": "notes"})
    assert (refused.status_code, refused.json()["id"]) == (409, "workspace_in_use")
    assert (await client.delete("/sessions/one")).status_code == 204
    free = await workspace(client, made)
    assert (free["state"], "attached_session_id" in free) == ("AVAILABLE", False)
    assert free["last_saved_at"] > held["created_at"]
    second = await session(client, await api.ready(name="two", workspace_id="notes"))
    assert lines(api, second) == ["hello"]
    assert "workspace_id" not in await session(client, first["session_id"])


async def test_one_that_is_not_there_is_404(client: httpx.AsyncClient) -> None:
    answer = await client.post("/sessions", json={"workspace_id": "none"})
    assert (answer.status_code, answer.json()["id"]) == (404, "not_found")


async def test_the_limit_is_409(api: Api, client: httpx.AsyncClient) -> None:
    for _ in range(100):
        await api.sessions.workspaces.create(NewWorkspace(1), SYSTEM)
    for path, body in (
        ("/workspaces", {"size_gibibytes": 1}),
        ("/sessions", {"persistent_workspace": True}),
    ):
        answer = await client.post(path, json=body)
        assert (answer.status_code, answer.json()["id"]) == (409, "limit_reached")


@pytest.mark.parametrize("how", ["json", "yaml", "envelope", "config"])
async def test_a_session_that_asks_for_a_lasting_one_gets_one(
    api: Api, client: httpx.AsyncClient, how: str
) -> None:
    if how == "json":
        answer = await client.post("/sessions", json={"name": "one", "persistent_workspace": True})
    elif how == "config":
        body = CONFIG | {"manifest_yaml": "persistent_workspace: true\n"}
        made = await client.post("/configs", json=body)
        manifest = made.json()["config"]["manifest"]
        assert manifest["spec"]["sandbox"] == {"persistentWorkspace": True}
        answer = await client.post("/sessions", json={"name": "one", "config_id": "c"})
    else:
        text = "name: one\npersistent_workspace: true\n"
        if how == "envelope":
            text = (
                "apiVersion: agents.digitalocean.com/v1alpha1\nkind: Agent\nmetadata: {name: one}\n"
                "spec:\n  runtime: {adapter: none}\n  sandbox: {persistentWorkspace: true}\n"
            )
        headers = {"content-type": "application/x-yaml"}
        answer = await client.post("/sessions", content=text, headers=headers)
    assert answer.status_code == 200, answer.text
    made_id = answer.json()["session"]["workspace_id"]
    found = await workspace(client, made_id)
    assert (found["name"], found["size_gibibytes"]) == ("one", 10)
    ready = await eventually(
        lambda: session(client, "one"), lambda s: s["status"] == "SESSION_STATUS_READY"
    )
    api.host.write_disk(ready["sandbox_id"], "hello")
    await client.delete("/sessions/one")
    assert (await workspace(client, made_id))["state"] == "AVAILABLE"
    assert api.host.saved_on(made_id) == ["hello"]


@pytest.mark.parametrize("how", ["yaml", "config"])
async def test_one_is_named_in_a_manifest_and_beside_a_configuration(
    api: Api, client: httpx.AsyncClient, how: str
) -> None:
    made = (await make(client, name="notes"))["workspace_id"]
    if how == "yaml":
        text = f"name: one\nworkspace_id: {made}\npersistent_workspace: true\n"
        headers = {"content-type": "application/yaml"}
        answer = await client.post("/sessions", content=text, headers=headers)
    else:
        body = CONFIG | {"manifest_yaml": "persistent_workspace: true\n"}
        config = (await client.post("/configs", json=body)).json()["config"]["id"]
        answer = await client.post(
            "/sessions", json={"name": "one", "config_id": config, "workspace_id": "notes"}
        )
    assert answer.json()["session"]["workspace_id"] == made
    assert len((await client.get("/workspaces")).json()["workspaces"]) == 1
    # What it is made of says nothing of the one workspace that it has.
    shown = await session(client, "one")
    kept = (await client.get(f"/configs/{shown['config_id']}")).json()["config"]
    assert made not in str(kept)


async def test_children_are_told_that_they_have_copies(api: Api, client: httpx.AsyncClient) -> None:
    made = (await make(client))["workspace_id"]
    parent = await api.ready(name="one", workspace_id=made)
    answer = await client.post(f"/sessions/{parent}/fork", json={"count": 2})
    for child in answer.json()["sessions"]:
        assert "workspace_id" not in child
        assert made in child["warnings"][0]
    await client.delete(f"/sessions/{parent}")
    assert (await workspace(client, made))["state"] == "AVAILABLE"


async def test_what_cannot_be_saved_is_not_ended(api: Api, client: httpx.AsyncClient) -> None:
    made = (await make(client))["workspace_id"]
    used = await api.ready(name="one", workspace_id=made)
    api.host.write_disk((await session(client, used))["sandbox_id"], "hello")
    api.host.refuse["release_disk"] = OSError(28, "No space left on device")
    answer = await client.delete(f"/sessions/{used}")
    assert (answer.status_code, answer.json()["id"]) == (507, "no_space")
    assert (await workspace(client, made))["state"] == "RELEASING"
    assert (await client.delete(f"/sessions/{used}")).status_code == 204
    assert api.host.saved_on(made) == ["hello"]


async def test_a_host_that_makes_none_is_told(api: Api, client: httpx.AsyncClient) -> None:
    api.host.refuse["make_disk"] = HostError("There is no mkfs.ext4.")
    answer = await client.post("/workspaces", json={"size_gibibytes": 1})
    assert answer.status_code == 409
    assert "no mkfs.ext4" in answer.json()["message"]
    api.host.refuse["make_disk"] = OSError(28, "No space left on device")
    assert (await client.post("/workspaces", json={"size_gibibytes": 1})).status_code == 507


async def test_two_requests_for_the_same_one_at_once(api: Api, client: httpx.AsyncClient) -> None:
    made = (await make(client))["workspace_id"]
    api.host.step = 0.01
    answers = await asyncio.gather(
        *(client.post("/sessions", json={"workspace_id": made}) for _ in range(4))
    )
    assert sorted(each.status_code for each in answers) == [200, 409, 409, 409]
