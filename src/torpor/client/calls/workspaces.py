"""Workspaces that outlive sessions. ``workspace`` is the id of one, or its name, if no other one
has it."""

from torpor.client import fields
from torpor.client.call import LONG, Answer, Call, document, keyed, nothing, path, query
from torpor.client.records import Page
from torpor.client.workspace_records import Workspace, workspace


def create_workspace(
    size_gib: int, *, name: str | None = None, key: str | None = None
) -> Call[Workspace]:
    """Make a workspace of ``size_gib`` GiB, which is empty. The ``name`` is for people: others may
    have the same.

    Raises :exc:`ConflictError` if there may be no more.
    """
    return Call(
        "POST",
        path("workspaces"),
        _one,
        headers=keyed(key),
        content=document(size_gibibytes=size_gib, name=name),
        seconds=LONG,
    )


def list_workspaces(
    *, state: str | None = None, limit: int | None = None, after: str | None = None
) -> Call[Page[Workspace]]:
    """Return workspaces, of one ``state`` or of all, the newest first; :attr:`Page.next` is the
    ``after`` of the following page."""
    return Call(
        "GET",
        path("workspaces"),
        _page,
        query=query(
            state=None if state is None else state.upper(), page_size=limit, page_token=after
        ),
    )


def get_workspace(workspace: str) -> Call[Workspace]:
    """Return one workspace."""
    return Call("GET", path("workspaces", workspace), _one)


def delete_workspace(workspace: str) -> Call[None]:
    """Delete a workspace and all that it holds. Raises :exc:`ConflictError` while a session has
    it."""
    where = path("workspaces", workspace)
    return Call("DELETE", where, nothing, seconds=LONG, gone_is_done=True)


def _one(answer: Answer) -> Workspace:
    return workspace(fields.part(answer.json(), "workspace"))


def _page(answer: Answer) -> Page[Workspace]:
    said = answer.json()
    return Page(
        fields.parts(said, "workspaces", workspace), fields.perhaps_text(said, "next_page_token")
    )
