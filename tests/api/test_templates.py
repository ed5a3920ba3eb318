"""Templates over the API, on a host that builds files."""

from typing import Any

import httpx
import pytest

from tests.api.conftest import BASE, Api
from tests.waiting import eventually
from torpor.api.template_logs import LOG, LOG_ENDING
from torpor.images import ImageError

NEW = {
    "name": "tools",
    "base_template": "sandbox",
    "source_oci_ref": "docker://registry.test:5000/team/tools:1",
}


async def make(client: httpx.AsyncClient, **changes: str) -> dict[str, Any]:
    """Return a new template."""
    answer = await client.post("/templates", json=NEW | changes)
    assert answer.status_code == 201, answer.text
    return dict(answer.json()["template"])


async def stands(client: httpx.AsyncClient, name: str, status: str) -> dict[str, Any]:
    """Return a template once it has a status."""
    return dict(
        await eventually(
            lambda: template(client, name),
            lambda found: found["status"] == f"TEMPLATE_STATUS_{status}",
        )
    )


async def template(client: httpx.AsyncClient, name: str) -> dict[str, Any]:
    return dict((await client.get(f"/templates/{name}")).json()["template"])


async def builds(client: httpx.AsyncClient, name: str) -> list[dict[str, Any]]:
    """Return the builds of a template, the newest first."""
    return list((await client.get(f"/templates/{name}/builds")).json()["builds"])


async def test_a_template_is_made_built_listed_and_deleted(client: httpx.AsyncClient) -> None:
    made = await make(client)
    assert made.keys() == {
        "template_id", "name", "status", "created_at", "updated_at", "spec",
    }  # fmt: skip
    assert made["status"] == "TEMPLATE_STATUS_PENDING"
    assert made["spec"] == {
        "base_template": "sandbox",
        "image": {"registry": "registry.test:5000", "repository": "team/tools", "tag": "1"},
    }
    found = await stands(client, "tools", "READY")
    assert (await client.get("/templates")).json() == {"templates": [found], "next_page_token": ""}
    (build,) = await builds(client, made["template_id"])
    assert build["build_id"] == found["current_build_id"]
    assert (build["status"], build["name"]) == ("SUCCEEDED", "tools")
    assert build["image"] == f"t-{build['build_id']}"
    assert build["spec"]["image"]["digest"].startswith("sha256:")
    one = await client.get(f"/templates/tools/builds/{build['build_id']}")
    assert one.json() == {"build": build}
    gone = await client.delete("/templates/tools")
    assert gone.json() == {"template_id": made["template_id"], "deleted": True}
    of_build = f"/builds/{build['build_id']}"
    for path in ("", "/builds", of_build, f"{of_build}/logs"):
        answer = await client.get(f"/templates/{made['template_id']}{path}")
        assert (answer.status_code, answer.json()["id"]) == (404, "not_found")
    assert (await client.delete("/templates/tools")).status_code == 404


async def test_lists_go_page_by_page(client: httpx.AsyncClient) -> None:
    names = [f"n{number}" for number in range(3)]
    for name in names:
        await make(client, name=name)
    await client.put("/templates/n0", json={"source_oci_ref": "r.test/x"})
    for path, key, wanted in (("", "templates", 3), ("/n0/builds", "builds", 2)):
        seen: list[dict[str, Any]] = []
        token = ""
        while True:
            answer = await client.get(
                f"/templates{path}", params={"page_size": 1, "page_token": token}
            )
            page = answer.json()
            assert len(page[key]) == 1
            seen += page[key]
            token = page["next_page_token"]
            if not token:
                break
        assert len(seen) == wanted
        assert sorted(seen, key=lambda each: each["created_at"], reverse=True) == seen
        zero = await client.get(f"/templates{path}", params={"page_size": 0})
        assert len(zero.json()[key]) == wanted
        wrong = await client.get(f"/templates{path}", params={"page_token": "x"})
        assert wrong.status_code == 400


async def test_an_update_begins_a_build(client: httpx.AsyncClient) -> None:
    await make(client)
    first = (await stands(client, "tools", "READY"))["current_build_id"]
    digest = "sha256:" + "0f" * 32
    answer = await client.put("/templates/tools", json={"source_oci_ref": f"r.test/new@{digest}"})
    assert answer.status_code == 200
    changed = answer.json()["template"]
    assert changed["status"] == "TEMPLATE_STATUS_PENDING"
    assert changed["spec"]["image"] == {
        "registry": "r.test", "repository": "new", "digest": digest,
    }  # fmt: skip
    after = await stands(client, "tools", "READY")
    assert after["current_build_id"] != first
    answer = await client.put("/templates/tools", json={"base_template": "coding-base"})
    assert answer.json()["template"]["spec"]["base_template"] == "coding-base"
    assert answer.json()["template"]["spec"]["image"]["digest"] == digest


@pytest.mark.parametrize(
    ("method", "path", "body", "why"),
    [
        ("POST", "/templates", {"name": "x"}, "'base_template' is missing"),
        ("POST", "/templates", NEW | {"base_template": "coding-codex"}, "runs no agents"),
        ("POST", "/templates", NEW | {"base_template": "x"}, "'x' is not known"),
        ("POST", "/templates", NEW | {"source_oci_ref": "/etc/shadow"}, "no reference"),
        ("POST", "/templates", NEW | {"source_oci_ref": "oci:/srv/x"}, "no reference"),
        ("POST", "/templates", NEW | {"name": ".."}, "cannot be called"),
        ("POST", "/templates", NEW | {"tag": "1"}, "'tag' is not known"),
        ("POST", "/sessions", {"image": "default", "template": "tools"}, "not from both"),
        ("PUT", "/templates/tools", {}, "t least one key"),
        ("PUT", "/templates/tools", {"source_oci_ref": None}, "t least one key"),
        ("PUT", "/templates/tools", {"name": "other"}, "'name' is not known"),
        ("PUT", "/templates/tools", {"source_oci_ref": "tools"}, "no reference"),
    ],
)
async def test_what_cannot_be_is_refused(
    client: httpx.AsyncClient, method: str, path: str, body: dict[str, Any], why: str
) -> None:
    await make(client)
    answer = await client.request(method, path, json=body)
    assert answer.status_code == 400, answer.text
    assert why in answer.text
    assert len((await client.get("/templates")).json()["templates"]) == 1
    assert len(await builds(client, "tools")) == 1


async def test_a_name_is_taken_once(client: httpx.AsyncClient) -> None:
    await make(client)
    answer = await client.post("/templates", json=NEW | {"name": "Tools"})
    assert (answer.status_code, answer.json()["id"]) == (409, "already_exists")


async def test_a_session_is_started_from_a_template(client: httpx.AsyncClient, api: Api) -> None:
    api.host.step = 0.05
    made = await make(client)
    early = await client.post("/sessions", json={"template": "tools"})
    assert (early.status_code, early.json()["id"]) == (409, "not_ready")
    nothing = await client.post("/sessions", json={"template": "nothing"})
    assert (nothing.status_code, nothing.json()["id"]) == (404, "not_found")
    found = await stands(client, "tools", "READY")
    answer = await client.post(
        "/sessions",
        params={"wait": "ready"},
        content=f"name: one\ntemplate: {made['template_id']}\n",
        headers={"content-type": "application/x-yaml"},
    )
    assert answer.status_code == 200, answer.text
    session = answer.json()["session"]
    assert session["template"] == made["template_id"]
    assert session["image"] == f"t-{found['current_build_id']}"


async def test_the_log_is_read_at_a_url_that_needs_no_token(
    client: httpx.AsyncClient, api: Api
) -> None:
    await make(client)
    build = (await stands(client, "tools", "READY"))["current_build_id"]
    answer = await client.get(f"/templates/tools/builds/{build}/logs")
    assert answer.json().keys() == {"signed_url"}
    url = answer.json()["signed_url"]
    assert url.startswith(f"http://torpor{BASE}/signed/")
    async with api.client(None) as anybody:
        read = await anybody.get(url)
        assert read.status_code == 200
        assert read.headers["content-type"] == "text/plain; charset=utf-8"
        lines = read.text.splitlines()
        assert lines[0].endswith("Z begun: registry.test:5000/team/tools:1")
        assert lines[-1].split(" ", 1)[1].startswith("done: sha256:")
        # Nothing else is read by it, and not by a letter more.
        assert (await anybody.get(url + "A")).status_code == 404
        assert (await anybody.get(url.replace("/log", "A/log"))).status_code == 401
        assert (await anybody.get("/templates")).status_code == 401
        who = api.bearers.find(api.tokens["viewer"])
        assert who is not None
        claims = {"template": "tools", "build": build}
        of_viewer = api.signer.path(LOG, who, claims, seconds=60, ending=LOG_ENDING)
        of_viewer = of_viewer.removeprefix(BASE)
        assert (await anybody.get(of_viewer)).status_code == 403
        await client.delete("/templates/tools")
        assert (await anybody.get(url)).status_code == 404


async def test_of_a_log_that_was_cut_it_says_so(
    client: httpx.AsyncClient, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torpor.store.builds.MOST_LINES", 2)
    await make(client)
    build = (await stands(client, "tools", "READY"))["current_build_id"]
    url = (await client.get(f"/templates/tools/builds/{build}/logs")).json()["signed_url"]
    lines = (await client.get(url)).text.splitlines()
    assert lines[0] == "(3 older lines are not kept)"
    assert len(lines) == 3


async def test_who_may_only_look_sees_that_it_failed_and_not_why(api: Api) -> None:
    secret = "the registry said: no such user in /srv/.docker/config.json"  # noqa: S105
    api.host.refuse["build_image"] = ImageError(secret, "", "")
    async with api.client() as operator, api.client("viewer") as viewer:
        await make(operator)
        await stands(viewer, "tools", "FAILED")
        (build,) = await builds(operator, "tools")
        assert secret in build["error"]
        (seen,) = await builds(viewer, "tools")
        assert (seen["status"], "error" in seen) == ("FAILED", False)
        path = f"/templates/tools/builds/{build['build_id']}"
        assert "error" not in (await viewer.get(path)).json()["build"]
        assert (await viewer.get(f"{path}/logs")).status_code == 403
        stream = await viewer.get("/events", params={"replay_only": True})
        assert "template.build_failed" in stream.text
        assert "config.json" not in stream.text
        stream = await operator.get("/events", params={"replay_only": True})
        assert "config.json" in stream.text


@pytest.mark.parametrize("role", ["viewer", "approver"])
async def test_who_may_only_look_changes_nothing(api: Api, role: Any) -> None:
    async with api.client() as operator:
        await make(operator)
    async with api.client(role) as looker:
        assert (await looker.get("/templates")).status_code == 200
        assert (await looker.post("/templates", json=NEW)).status_code == 403
        changes = {"source_oci_ref": "r.test/x"}
        assert (await looker.put("/templates/tools", json=changes)).status_code == 403
        assert (await looker.delete("/templates/tools")).status_code == 403


async def test_each_change_is_told_with_who_made_it(api: Api, client: httpx.AsyncClient) -> None:
    await make(client)
    await client.post("/templates", json=NEW)
    await client.put("/templates/tools", json={"source_oci_ref": "r.test/x"})
    await client.delete("/templates/tools")
    events = await api.events()
    told = [each for each in events if each.type in (
        "template.created", "template.updated", "template.deleted", "request.refused",
    )]  # fmt: skip
    assert [each.type for each in told] == [
        "template.created", "request.refused", "template.updated", "template.deleted",
    ]  # fmt: skip
    actor = api.bearers.find(api.tokens["operator"])
    assert actor is not None
    assert {each.actor for each in told} == {actor.actor.id}
    assert told[1].data["error"] == "already_exists"
    assert told[2].data["source"] == "r.test/x:latest"


async def test_what_is_asked_for_twice_with_a_key_is_done_once(client: httpx.AsyncClient) -> None:
    key = {"Idempotency-Key": "k1"}
    first = await client.post("/templates", json=NEW, headers=key)
    again = await client.post("/templates", json=NEW, headers=key)
    assert again.status_code == 201
    assert first.json()["template"]["template_id"] == again.json()["template"]["template_id"]
    other = await client.post("/templates", json=NEW | {"name": "two"}, headers=key)
    assert (other.status_code, other.json()["id"]) == (409, "conflict")
    key = {"Idempotency-Key": "k2"}
    for _ in range(2):
        await client.put("/templates/tools", json={"source_oci_ref": "r.test/x"}, headers=key)
    assert len(await builds(client, "tools")) == 2
