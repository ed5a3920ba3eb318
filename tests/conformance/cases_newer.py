"""Methods that newer clients have than the one that is tested, and that work: they are sent as what
those send (DigitalOcean's pydo and godo, as their public sources are)."""

from typing import Any

from tests.conformance.judging import Case, Outcome, call
from tests.conformance.needs import config, name, new_workspace, used_workspace, workspace
from tests.conformance.world import NOWHERE, World

KEYS = {
    "workspace_id": str, "name": str, "state": str, "attached_session_id": str,
    "size_gibibytes": int, "bytes_used": int, "last_saved_at": str, "created_at": str,
    "updated_at": str, "created_by": str, "updated_by": str,
}  # fmt: skip
"""What they read of a workspace."""
OPTIONAL = {"name", "attached_session_id", "last_saved_at"}
WHERE = "/v2/agents/workspaces"


def is_workspace(said: dict[str, Any], **holds: object) -> bool:
    """Return whether an answer has a workspace as they read it."""
    right = all(type(said[key]) is KEYS[key] for key in said)
    return right and KEYS.keys() - said.keys() <= OPTIONAL and holds.items() <= said.items()


def has_all(answer: dict[str, Any]) -> bool:
    """Return whether an answer is a page of workspaces that no session has."""
    found = answer["workspaces"]
    return bool(found) and all(is_workspace(each, state="AVAILABLE") for each in found)


async def is_gone(world: World, outcome: Outcome) -> bool:
    """Return whether the workspace that a call was for is there no more."""
    async with world.server.client() as client:
        answer = await client.get(f"/workspaces/{outcome.arguments[0]}")
    return answer.status_code == 404


async def has_it(world: World, outcome: Outcome) -> bool:
    """Return whether the session that a call has made holds its workspace."""
    said = outcome.answer["session"]
    found = await world.ask("GET", f"/workspaces/{said['workspace_id']}")
    return bool(found["workspace"]["attached_session_id"] == said["session_id"])


def of_config(which: Any) -> dict[str, Any]:
    return {"name": name, "config_id": config, "workspace_id": which}


WORKSPACES = (
    Case(
        "agents.workspaces.create",
        call(json={"size_gibibytes": 20, "name": name}),
        (400, call(json={"size_gibibytes": 101})),
        holds=lambda answer: is_workspace(
            answer["workspace"], state="AVAILABLE", size_gibibytes=20
        ),
        sent=("POST", WHERE),
    ),
    Case(
        "agents.workspaces.list",
        call(params={"page_size": 200, "state": "AVAILABLE"}),
        (400, call(params={"state": "GOOD"})),
        holds=has_all,
        sent=("GET", WHERE),
    ),
    Case(
        "agents.workspaces.get",
        call(workspace),
        (404, call(NOWHERE)),
        holds=lambda answer: is_workspace(answer["workspace"], state="AVAILABLE"),
        sent=("GET", WHERE + "/{}"),
    ),
    Case(
        "agents.workspaces.delete",
        call(new_workspace),
        (409, call(used_workspace)),
        then=is_gone,
        sent=("DELETE", WHERE + "/{}"),
    ),
    Case(
        "agents.sessions.create_from_config(workspace_id)",
        call(json=of_config(new_workspace)),
        (409, call(json=of_config(used_workspace))),
        then=has_it,
        sent=("POST", "/v2/agents/sessions"),
    ),
)
