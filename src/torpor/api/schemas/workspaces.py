"""Workspaces that outlive sessions."""

from pydantic import Field

from torpor.api.schemas.body import Answered, Asked, Time

WORKSPACE_ID = "8d0a6c1f-3c1b-4c55-9a8e-7f0b2f1a9c1e"


class NewWorkspaceBody(Asked):
    """A workspace that is to be."""

    size_gibibytes: int = Field(
        description="How much it can hold, in GiB: 1 to 100, or what the server allows. That cannot"
        " be changed later.",
        examples=[10],
    )
    name: str | None = Field(
        None,
        description="A name for people, 1 to 64 characters; others may have the same.",
        examples=["notes"],
        max_length=256,
    )


class WorkspaceBody(Answered):
    """A disk that outlives sessions, and that one of them has at a time, as `/workspace`."""

    workspace_id: str = Field(description="Its id.", examples=[WORKSPACE_ID])
    name: str | None = Field(None, description="Its name, if it has one.", examples=["notes"])
    state: str = Field(
        description="AVAILABLE: a session can have it. ATTACHING, ATTACHED and RELEASING: one is"
        " being started with it, has it, or is being destroyed, and it is saved. DELETING, or"
        " FAILED: it cannot be used. Torpor: PENDING: it is being made.",
        examples=["AVAILABLE"],
    )
    attached_session_id: str | None = Field(None, description="The session that has it.")
    size_gibibytes: int = Field(description="How much it can hold, in GiB.", examples=[10])
    bytes_used: int = Field(
        description="What is stored of what was saved last, in bytes.", examples=[5_505_024]
    )
    last_saved_at: Time | None = Field(
        None,
        description="When what it holds was last saved: by a pause, a checkpoint, or the end of a"
        " session.",
    )
    created_at: Time
    updated_at: Time = Field(
        description="When somebody last asked for a change of it: that a session gets it, or gives"
        " it up, or that it is deleted."
    )
    created_by: str = Field(description="The id of the token with which it was made.")
    updated_by: str = Field(description="The id of the token with which that was asked for.")
    error: str | None = Field(
        None, description="Torpor: why it is FAILED, for those who may use sessions."
    )


class OneWorkspace(Answered):
    """A workspace."""

    workspace: WorkspaceBody


class WorkspacePage(Answered):
    """Some workspaces, the newest first."""

    workspaces: list[WorkspaceBody]
    next_page_token: str = Field(
        description="Names the next page as `page_token`; empty when there are no more.",
        examples=[""],
    )
