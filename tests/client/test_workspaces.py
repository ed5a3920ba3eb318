"""What the methods over workspaces ask for, and what they make of the answers."""

from datetime import UTC, datetime
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from tests.client.double import AT, Double, refusal, session, workspace
from torpor.client import AsyncClient, Client, ConflictError, Page, Workspace

ID = workspace()["workspace_id"]
WHEN = datetime(2026, 5, 4, 8, 5, 42, 120000, tzinfo=UTC)


async def both(client: Client, other: AsyncClient, called: str, *given: Any, **options: Any) -> Any:
    """Call a method of both clients, and return what both return."""
    found = getattr(client, called)(*given, **options)
    assert await getattr(other, called)(*given, **options) == found
    return found


async def test_a_workspace_is_read(
    double: Double, client: Client, async_client: AsyncClient
) -> None:
    said = workspace(state="ATTACHED", attached_session_id="s1", last_saved_at=AT, more=1)
    double.on("GET", "workspaces/notes", JSONResponse({"workspace": said}))
    found = await both(client, async_client, "get_workspace", "notes")
    assert found == Workspace(
        ID, "notes", "ATTACHED", 10, WHEN, WHEN, 5 << 20, "s1", WHEN, "tok_1", "tok_1"
    )
    bare = {"workspace_id": "w", "state": "NEW", "size_gibibytes": 1, "created_at": AT}
    double.on("GET", "workspaces/w", JSONResponse({"workspace": bare}))
    found = await both(client, async_client, "get_workspace", "w")
    assert found == Workspace("w", None, "NEW", 1, WHEN)


async def test_a_workspace_is_made(
    double: Double, client: Client, async_client: AsyncClient
) -> None:
    double.on("POST", "workspaces", JSONResponse({"workspace": workspace()}, 201))
    made = await both(client, async_client, "create_workspace", 10, name="notes", key="k")
    assert made.id == ID
    await both(client, async_client, "create_workspace", 1)
    asked = double.asked[::2]
    assert [each.said for each in asked] == [
        {"size_gibibytes": 10, "name": "notes"},
        {"size_gibibytes": 1},
    ]
    assert asked[0].headers["idempotency-key"] == "k"
    assert asked[1].headers["idempotency-key"]


async def test_lists_are_pages_of_a_state(
    double: Double, client: Client, async_client: AsyncClient
) -> None:
    said = {"workspaces": [workspace()], "next_page_token": "n"}
    double.on("GET", "workspaces", JSONResponse(said))
    page = await both(
        client, async_client, "list_workspaces", state="available", limit=1, after="a"
    )
    assert isinstance(page, Page)
    assert ([each.id for each in page.items], page.next) == ([ID], "n")
    wanted = (("state", "AVAILABLE"), ("page_size", "1"), ("page_token", "a"))
    assert double.asked[0].query == wanted
    await both(client, async_client, "list_workspaces")
    assert double.asked[-1].query == ()


async def test_one_is_deleted_unless_a_session_has_it(
    double: Double, client: Client, async_client: AsyncClient
) -> None:
    double.on("DELETE", "workspaces/notes", Response(status_code=204))
    await both(client, async_client, "delete_workspace", "notes")
    double.on("DELETE", "workspaces/used", refusal(409, "workspace_in_use", "It is used."))
    with pytest.raises(ConflictError):
        client.delete_workspace("used")


async def test_a_session_is_made_with_one(
    double: Double, client: Client, async_client: AsyncClient
) -> None:
    answer = JSONResponse({"session": session(workspace_id=ID)})
    double.on("POST", "sessions", answer)
    made = await both(client, async_client, "create_session", "one", workspace="notes")
    assert made.workspace == ID
    await both(client, async_client, "create_session", "one", persistent_workspace=True)
    await both(client, async_client, "create_session_from_config", "one", "web", workspace="notes")
    assert [each.said for each in double.asked[::2]] == [
        {"name": "one", "workspace_id": "notes"},
        {"name": "one", "persistent_workspace": True},
        {"name": "one", "config_id": "web", "workspace_id": "notes"},
    ]
