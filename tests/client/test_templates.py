"""What the methods over templates ask for, and what they make of the answers."""

from datetime import UTC, datetime
from typing import Any

import pytest
from starlette.responses import JSONResponse, PlainTextResponse

from tests.client.double import Double, build, refusal, session, template
from torpor.client import AsyncClient, Client, ImageReference, NotFoundError, Page

ID = template()["template_id"]
WHEN = datetime(2026, 5, 4, 8, 5, 42, 120000, tzinfo=UTC)


async def both(client: Client, other: AsyncClient, name: str, *given: Any, **options: Any) -> Any:
    """Call a method of both clients, and return what both return."""
    found = getattr(client, name)(*given, **options)
    assert await getattr(other, name)(*given, **options) == found
    return found


async def test_a_template_is_read(
    double: Double, client: Client, async_client: AsyncClient
) -> None:
    double.on("GET", "templates/tools", JSONResponse({"template": template(more=1)}))
    found = await both(client, async_client, "get_template", "tools")
    assert (found.id, found.name, found.status, found.base) == (ID, "tools", "READY", "sandbox")
    assert (found.created_at, found.updated_at) == (WHEN, WHEN)
    assert found.source == ImageReference("r.test", "team/tools", "1")
    assert str(found.source) == "r.test/team/tools:1"
    assert found.current_build == "build-1"


async def test_a_template_is_made_and_changed(
    double: Double, client: Client, async_client: AsyncClient
) -> None:
    double.on("POST", "templates", JSONResponse({"template": template()}, 201))
    double.on("PUT", "templates/tools", JSONResponse({"template": template()}))
    made = await both(client, async_client, "create_template", "tools", "r.test/x", key="k")
    assert made.name == "tools"
    await both(client, async_client, "update_template", "tools", source="r.test/y", key="k")
    await both(client, async_client, "update_template", "tools", base="coding-base")
    asked = double.asked[::2]
    assert [each.said for each in asked] == [
        {"name": "tools", "base_template": "sandbox", "source_oci_ref": "r.test/x"},
        {"source_oci_ref": "r.test/y"},
        {"base_template": "coding-base"},
    ]
    assert [each.headers["idempotency-key"] for each in asked[:2]] == ["k", "k"]
    assert asked[2].headers["idempotency-key"]


async def test_lists_are_pages(double: Double, client: Client, async_client: AsyncClient) -> None:
    double.on("GET", "templates", JSONResponse({"templates": [template()], "next_page_token": "n"}))
    double.on("GET", "templates/t/builds", JSONResponse({"builds": [build()]}))
    page = await both(client, async_client, "list_templates", limit=1, after="a")
    assert isinstance(page, Page)
    assert (page.items[0].name, page.next) == ("tools", "n")
    assert double.asked[0].query == (("page_size", "1"), ("page_token", "a"))
    page = await both(client, async_client, "list_template_builds", "t", limit=3)
    assert page.next is None
    (found,) = page.items
    assert (found.id, found.template, found.status, found.image) == (
        "build-1", ID, "SUCCEEDED", "t-build-1",
    )  # fmt: skip
    assert found.source.digest == "sha256:" + "0f" * 32


async def test_a_build_and_its_log(
    double: Double, client: Client, async_client: AsyncClient
) -> None:
    failed = build(status="FAILED", error="no such tag", image=None)
    double.on("GET", "templates/t/builds/b", JSONResponse({"build": failed}))
    elsewhere = "https://outside.test:1/v2/agents/signed/abc.DEF-_"
    double.on("GET", "templates/t/builds/b/logs", JSONResponse({"signed_url": elsewhere}))
    double.on("GET", "signed/abc.DEF-_", PlainTextResponse("one\ntwo\n"))
    found = await both(client, async_client, "get_template_build", "t", "b")
    assert (found.status, found.error, found.image) == ("FAILED", "no such tag", None)
    url = await both(client, async_client, "get_template_build_log_url", "t", "b")
    assert url == elsewhere
    # Whatever the server is called outside, this client asks where it has asked.
    assert await both(client, async_client, "read_template_build_log", url) == "one\ntwo\n"


async def test_a_deletion_that_was_done_by_a_lost_try_is_done(
    double: Double, client: Client
) -> None:
    double.on("DELETE", "templates/t", JSONResponse({"template_id": ID, "deleted": True}))
    assert client.delete_template("t") is None
    double.on("DELETE", "templates/t", refusal(404, "not_found", "There is no template 't'."))
    with pytest.raises(NotFoundError):
        client.delete_template("t")


async def test_a_session_of_a_template(double: Double, client: Client) -> None:
    double.on("POST", "sessions", JSONResponse({"session": session(template=ID)}))
    assert client.create_session("b", template="tools").template == ID
    assert double.one("POST", "sessions").said == {"name": "b", "template": "tools"}
