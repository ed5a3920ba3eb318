"""Persistent workspaces: disks that outlive sessions, and that one of them has at a time."""

from dataclasses import replace
from typing import Annotated, get_args

from fastapi import Path, Query, Response

from torpor.api.bearers import Caller
from torpor.api.errors import RefusedError, invalid, problem_of
from torpor.api.permissions import Permission, needs
from torpor.api.routes import errors, router
from torpor.api.schemas.workspaces import (
    NewWorkspaceBody,
    OneWorkspace,
    WorkspaceBody,
    WorkspacePage,
)
from torpor.api.sessions import LARGEST_PAGE, PAGE, PageSize, PageToken
from torpor.api.wiring import Asker, By, Idempotency, Service
from torpor.sessions.errors import KeyReusedError
from torpor.sessions.workspace_model import NewWorkspace
from torpor.store import WorkspaceQuery
from torpor.store.records import Workspace, WorkspaceState

routes = router("workspaces")

WORKSPACE = "/workspaces/{workspace_id}"
STATES: dict[str, WorkspaceState] = {each: each for each in get_args(WorkspaceState)}

WorkspaceId = Annotated[
    str,
    Path(
        max_length=256,
        description="The workspace's id. Torpor: its name will do, if no other one has it.",
    ),
]


def workspace_body(row: Workspace, caller: Caller) -> WorkspaceBody:
    """Return a workspace as it is shown to ``caller``."""
    return WorkspaceBody(
        workspace_id=row.id,
        name=row.name,
        state=row.state,
        attached_session_id=row.session,
        size_gibibytes=row.size_bytes >> 30,
        bytes_used=row.stored_bytes,
        last_saved_at=row.saved_at,
        created_at=row.created_at,
        updated_at=row.updated_at,
        created_by=row.created_by,
        updated_by=row.updated_by,
        error=row.error if caller.may(Permission.USE) else None,
    )


@routes.post(
    "/workspaces",
    status_code=201,
    responses={
        200: {"model": OneWorkspace, "description": "It was made with the same key before."},
        **errors(400, 409, 413, 415, 422, 503, 507),
    },
    summary="Make a workspace",
)
@needs(Permission.USE)
async def create_workspace(
    service: Service,
    caller: Asker,
    key: Idempotency,
    body: NewWorkspaceBody,
    response: Response,
) -> OneWorkspace:
    """Make a workspace, which is empty and AVAILABLE. It takes what is stored in it, and not its
    size.

    Asked for again with the same key, the answer is the workspace of the first time, with the
    status 200; the key of another request is 422 here.
    """
    new = NewWorkspace(body.size_gibibytes, body.name or None)
    try:
        made = await service.workspaces.create(new, caller.actor, key=key)
    except KeyReusedError as error:
        raise _of_other_request(error) from error
    if made.before:
        response.status_code = 200
    return OneWorkspace(workspace=workspace_body(made.workspace, caller))


def _of_other_request(error: KeyReusedError) -> RefusedError:
    problem = problem_of(error)
    assert problem is not None
    return RefusedError(replace(problem, status=422))


@routes.get("/workspaces", responses=errors(400), summary="List workspaces")
@needs(Permission.READ)
async def list_workspaces(
    service: Service,
    caller: Asker,
    page_size: PageSize = PAGE,
    page_token: PageToken = "",
    state: Annotated[str, Query(description="Only workspaces in this state.")] = "",
) -> WorkspacePage:
    """List the workspaces, the newest first, a page at a time."""
    if state and state not in STATES:
        known = ", ".join(STATES)
        raise RefusedError(invalid([f"query parameter 'state': {state!r} is none of {known}"]))
    page = await service.workspaces.page(
        WorkspaceQuery(
            limit=PAGE if page_size < 1 else min(page_size, LARGEST_PAGE),
            after=page_token or None,
            state=STATES[state] if state else None,
        )
    )
    return WorkspacePage(
        workspaces=[workspace_body(each, caller) for each in page.items],
        next_page_token=page.next_cursor or "",
    )


@routes.get(WORKSPACE, responses=errors(404, 409), summary="Show a workspace")
@needs(Permission.READ)
async def get_workspace(service: Service, caller: Asker, workspace_id: WorkspaceId) -> OneWorkspace:
    """Show a workspace: which session has it, and how much is stored in it."""
    row = await service.workspaces.get(workspace_id)
    return OneWorkspace(workspace=workspace_body(row, caller))


@routes.delete(
    WORKSPACE, status_code=204, responses=errors(404, 409, 507), summary="Delete a workspace"
)
@needs(Permission.USE)
async def delete_workspace(service: Service, by: By, workspace_id: WorkspaceId) -> Response:
    """Delete a workspace, with all that it holds. That cannot be while a session has it."""
    await service.workspaces.delete(workspace_id, by)
    return Response(status_code=204)
