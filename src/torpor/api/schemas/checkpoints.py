"""Checkpoints, forks and the tree of snapshots."""

from typing import Any

from pydantic import Field

from torpor.api.schemas.body import Answered, Asked, Time
from torpor.api.schemas.sessions import SessionBody

_NOT_UNDONE = (
    "Torpor: what is not undone, being outside of the machine: the ids of the events in which the"
    " session reached out since then."
)


class NewCheckpoint(Asked):
    """A checkpoint that is to be."""

    label: str = Field(
        "", description="A few words on it.", examples=["before the upgrade"], max_length=255
    )


class CheckpointBody(Answered):
    """A state of a session, memory and all, that it can go back to and be forked from."""

    checkpoint_id: str = Field(description="Its id.", examples=["cp_9f2c1a4b7d3e5f60"])
    session_id: str = Field(description="The session that it is of.")
    created_at: Time
    kind: str = Field(
        description="explicit if it was asked for, implicit if it was made for a fork.",
        examples=["explicit"],
    )
    label: str = Field(description="The words on it.", examples=["before the upgrade"])
    status: str = Field(description="PENDING, READY or FAILED.", examples=["READY"])
    error_message: str | None = Field(
        None, description="Why it is FAILED, for those who may use the session."
    )
    event_id: str | None = Field(None, description="The last event before it.")
    size_bytes: int = Field(
        description="What it takes on disk. (Not what was allocated: mostly that is far more.)",
        examples=[31457280],
    )
    snapshot_id: str = Field(description="Torpor: the snapshot that holds it.")
    generation: int = Field(description="Torpor: the generation of the session that it holds.")
    durable: bool = Field(description="Torpor: whether it survives a power cut.")


class OneCheckpoint(Answered):
    """A checkpoint."""

    checkpoint: CheckpointBody


class CheckpointPage(Answered):
    """Some checkpoints, the newest first."""

    checkpoints: list[CheckpointBody]
    next_page_token: str = Field(
        description="Names the next page as `page_token`; empty when there are no more.",
        examples=[""],
    )


class CheckpointDeleted(Answered):
    """That a checkpoint is not there any more."""

    checkpoint_id: str = Field(description="The id that was asked for.")
    deleted: bool = Field(True, description="Always true.")


class RolledBackBody(Answered):
    """A session that stands at an earlier checkpoint again."""

    session: SessionBody
    not_undone: list[str] = Field(description=_NOT_UNDONE)


class ForkBody(Asked):
    """Which children are to be made."""

    count: int = Field(
        1, ge=1, le=64, description="How many children; Torpor: up to 64.", examples=[2]
    )
    from_checkpoint_id: str | None = Field(
        None, description="The checkpoint that they begin from. Left out: the session as it is now."
    )


class ForkError(Answered):
    """Why there is no such child."""

    index: int = Field(description="Which child, counted from 0.")
    id: str = Field(description="A word for programs.", examples=["no_room"])
    message: str = Field(description="What happened.")
    state: str | None = Field(None, description="What state things are in now.")
    todo: str | None = Field(None, description="What to do about it.")
    facts: dict[str, Any] | None = Field(None, description="More of it as plain data.")


class ForkedBody(Answered):
    """The children that were made."""

    sessions: list[SessionBody]
    errors: list[ForkError] = Field(
        description="Torpor: the children that were not made, and why. DigitalOcean makes all or"
        " none."
    )
    not_undone: list[str] = Field(description=_NOT_UNDONE)


class Node(Answered):
    """A snapshot in the tree."""

    snapshot_id: str
    parent_snapshot_id: str | None = None
    kind: str = Field(description="pause, checkpoint, fork or files.", examples=["checkpoint"])
    generation: int
    created_at: Time
    status: str = Field(description="READY, PENDING, FAILED or LOST.", examples=["READY"])
    durable: bool
    size_bytes: int
    checkpoint_id: str | None = None
    label: str = ""
    current: bool = Field(description="Whether the session stands on it: its newest state but one.")
    children: list[str] = Field(description="The sessions that were forked from it.")


class TreeBody(Answered):
    """The snapshots of a session, each before those that were made on top of it."""

    session: SessionBody
    snapshots: list[Node]
    children: list[SessionBody] = Field(description="The sessions that were forked from it.")
