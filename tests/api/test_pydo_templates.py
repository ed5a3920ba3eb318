"""Templates with DigitalOcean's own Python client: what it has by hand and what it has generated,
with and without blocking."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from pydo import Client
from pydo.aio import Client as AsyncClient

from tests.api.conftest import Api, served
from tests.api.test_pydo import aside, shows
from tests.waiting import eventually
from torpor.images import ImageError

pytestmark = pytest.mark.filterwarnings("ignore")

SOURCE = "registry.test/team/tools:1"
BODY = {"name": "tools", "base_template": "coding-base", "source_oci_ref": SOURCE}
TEMPLATE = {"template_id", "name", "status", "created_at", "updated_at", "spec"}
BUILD = {"build_id", "template_id", "name", "status", "created_at", "updated_at", "spec"}
OURS = {"current_build_id", "image"}
NOWHERE = "2f1a9c1e-7f0b-4c55-9a8e-0d6a3c1b7e42"


@pytest.fixture
async def address(api: Api) -> AsyncIterator[str]:
    """Where the API is served."""
    async with served(api) as where:
        yield f"http://{where}"


@pytest.fixture
def client(api: Api, address: str) -> Any:
    """The client, whose methods are to be called in a thread."""
    token = api.tokens["operator"]
    return Client(
        token, endpoint=address, agents_endpoint=address,
        authentication_policy=shows(token), retry_total=0,
    )  # fmt: skip


@pytest.fixture
async def waiting(api: Api, address: str) -> AsyncIterator[Any]:
    """The client for coroutines."""
    token = api.tokens["operator"]
    async with AsyncClient(
        token, endpoint=address, agents_endpoint=address,
        authentication_policy=shows(token), retry_total=0,
    ) as opened:  # fmt: skip
        yield opened


async def stands(api: Api, status: str) -> None:
    """Return when the template has a status."""
    await eventually(lambda: api.sessions.templates.get("tools"), lambda t: t.status == status)


async def test_by_hand(api: Api, client: Any) -> None:
    templates = client.agents.templates
    made = (await aside(templates.create, BODY))["template"]
    assert made.keys() - OURS == TEMPLATE
    assert made["status"] == "TEMPLATE_STATUS_PENDING"
    template = made["template_id"]
    await stands(api, "READY")
    found = (await aside(templates.get, template))["template"]
    assert found["status"] == "TEMPLATE_STATUS_READY"
    assert found["spec"] == {
        "base_template": "coding-base",
        "image": {"registry": "registry.test", "repository": "team/tools", "tag": "1"},
    }
    listed = await aside(templates.list, page_size=1)
    assert [each["template_id"] for each in listed["templates"]] == [template]
    builds = (await aside(templates.list_builds, template, page_size=10))["builds"]
    assert [each.keys() - OURS for each in builds] == [BUILD]
    build = (await aside(templates.get_build, template, builds[0]["build_id"]))["build"]
    assert build["status"] == "SUCCEEDED"
    logs = await aside(templates.get_build_logs, template, build["build_id"])
    assert logs.keys() == {"signed_url"}
    async with httpx.AsyncClient() as anybody:  # a URL that needs no token
        text = (await anybody.get(logs["signed_url"])).text
    assert f"begun: {SOURCE}" in text
    changed = await aside(templates.update, template, {"source_oci_ref": "r.test/x:2"})
    assert changed["template"]["spec"]["image"]["registry"] == "r.test"
    gone = await aside(templates.delete, template)
    assert (gone["template_id"], gone["deleted"]) == (template, True)
    assert (await aside(templates.list))["templates"] == []


async def test_generated(api: Api, client: Any) -> None:
    harness = client.harness
    made = (await aside(harness.create_template, BODY))["template"]
    assert made.keys() - OURS == TEMPLATE
    template = made["template_id"]
    await stands(api, "READY")
    assert (await aside(harness.get_template, template))["template"]["name"] == "tools"
    assert len((await aside(harness.list_templates, page_size=5))["templates"]) == 1
    builds = (await aside(harness.list_template_builds, template))["builds"]
    build = await aside(harness.get_template_build, template, builds[0]["build_id"])
    assert build["build"].keys() - OURS == BUILD
    changed = await aside(harness.update_template, template, {"base_template": "sandbox"})
    assert changed["template"]["spec"]["base_template"] == "sandbox"
    gone = await aside(harness.delete_template, template)
    assert (gone["template_id"], gone["deleted"]) == (template, True)


async def test_what_is_wrong_is_what_it_knows(api: Api, client: Any) -> None:
    templates, harness = client.agents.templates, client.harness
    for call in (templates.get, templates.delete, templates.list_builds):
        with pytest.raises(ResourceNotFoundError):
            await aside(call, NOWHERE)
    for call in (templates.get_build, templates.get_build_logs):
        with pytest.raises(ResourceNotFoundError):
            await aside(call, NOWHERE, NOWHERE)
    with pytest.raises(ResourceNotFoundError):
        await aside(templates.update, NOWHERE, {"source_oci_ref": SOURCE})
    with pytest.raises(HttpResponseError, match="runs no agents"):
        await aside(templates.create, BODY | {"base_template": "coding-codex"})
    with pytest.raises(HttpResponseError, match="'name' is missing"):
        await aside(templates.create, {"base_template": "sandbox", "source_oci_ref": SOURCE})
    await aside(templates.create, BODY)
    with pytest.raises(ResourceExistsError):
        await aside(templates.create, BODY)
    # What is generated returns the errors that it has a description of.
    for call, arguments in (
        (harness.get_template, (NOWHERE,)),
        (harness.delete_template, (NOWHERE,)),
        (harness.list_template_builds, (NOWHERE,)),
        (harness.get_template_build, (NOWHERE, NOWHERE)),
        (harness.update_template, (NOWHERE, {"source_oci_ref": SOURCE})),
    ):
        said = await aside(call, *arguments)
        assert said["id"] == "not_found", call
        assert said["message"]
    said = await aside(harness.create_template, BODY | {"source_oci_ref": "/etc/passwd"})
    assert said["id"] == "bad_request"


async def test_a_build_that_fails_says_why(api: Api, client: Any) -> None:
    api.host.refuse["build_image"] = ImageError("There is no such image.", "Nothing.", "Look.")
    made = (await aside(client.agents.templates.create, BODY))["template"]
    await stands(api, "FAILED")
    (build,) = (await aside(client.harness.list_template_builds, made["template_id"]))["builds"]
    assert build["status"] == "FAILED"
    assert "There is no such image." in build["error"]


async def test_without_blocking(api: Api, waiting: Any) -> None:
    templates, harness = waiting.agents.templates, waiting.harness
    template = (await templates.create(BODY))["template"]["template_id"]
    await stands(api, "READY")
    for found in (await templates.get(template), await harness.get_template(template)):
        assert found["template"]["status"] == "TEMPLATE_STATUS_READY"
    for listed in (await templates.list(page_size=1), await harness.list_templates()):
        assert len(listed["templates"]) == 1
    await templates.update(template, {"source_oci_ref": "r.test/x"})
    await harness.update_template(template, {"source_oci_ref": "r.test/y"})
    builds = (await templates.list_builds(template))["builds"]
    assert len(builds) == len((await harness.list_template_builds(template))["builds"]) == 3
    build = builds[-1]["build_id"]
    for one in (
        await templates.get_build(template, build),
        await harness.get_template_build(template, build),
    ):
        assert one["build"]["status"] == "SUCCEEDED"
    assert "signed_url" in await templates.get_build_logs(template, build)
    assert (await harness.delete_template(template))["deleted"] is True
    assert (await harness.get_template(template))["id"] == "not_found"
    again = (await harness.create_template(BODY))["template"]["template_id"]
    assert (await templates.delete(again))["deleted"] is True
    with pytest.raises(ResourceNotFoundError):
        await templates.get(again)


async def test_a_session_of_a_template(api: Api, client: Any) -> None:
    await aside(client.agents.templates.create, BODY)
    await stands(api, "READY")
    manifest = "name: one\ntemplate: tools\n"
    made = (await aside(client.agents.sessions.create_from_manifest, manifest))["session"]
    ran = await aside(
        client.agents.sessions.exec_in_sandbox, made["session_id"], argv=["sh", "-c", "echo $IMAGE"]
    )
    template = await api.sessions.templates.get("tools")
    assert ran["stdout"] == f"t-{template.current_build}\n"
