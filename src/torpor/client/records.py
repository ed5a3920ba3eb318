"""What the server tells of sessions, as plain data.

Times are aware and in UTC, sizes in bytes, durations in seconds unless the name says otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from torpor.client import fields
from torpor.client.egress_records import Policy, policy
from torpor.client.errors import ApiError, told_error
from torpor.client.fields import Said

STATUS_PREFIX = "SESSION_STATUS_"
LIVE = ("PROVISIONING", "READY", "DETACHED", "PAUSED", "DESTROYING")
"""The states of a session that can still be used, or still goes."""

T = TypeVar("T")


@dataclass(frozen=True)
class Page(Generic[T]):
    """A part of a list; ``next`` is what to ask for the following one with, None at its end."""

    items: tuple[T, ...]
    next: str | None


@dataclass(frozen=True)
class Recoverable:
    """A snapshot that a session which is FAILED can go on from."""

    snapshot: str
    kind: str
    generation: int
    created_at: datetime
    durable: bool
    checkpoint: str | None


@dataclass(frozen=True)
class Session:
    """One session. ``status`` is PROVISIONING, READY, DETACHED, PAUSED, DESTROYING, DESTROYED or
    FAILED; ``operation`` the kind of the operation under way. ``env`` is None if the token may not
    see it. ``idle_timeout`` is in seconds, 0 never, None the server's own.
    """

    id: str
    name: str
    status: str
    created_at: datetime
    updated_at: datetime | None = None
    last_event_at: datetime | None = None
    agent: str = "none"
    image: str = ""
    template: str | None = None
    """The id of the template whose image that is, if it is one's."""
    size: str = ""
    generation: int = 0
    env: Mapping[str, str] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    idle_timeout: int | None = None
    keep_warm: bool = False
    pause_reason: str | None = None
    operation: str | None = None
    parent: str | None = None
    fork_id: str | None = None
    forked_from: str | None = None
    """The checkpoint that it was forked from."""
    sandbox: str | None = None
    boot_id: str | None = None
    failure: str | None = None
    recoverable: tuple[Recoverable, ...] = ()
    warnings: tuple[str, ...] = ()
    """Said once, by the call that created it."""
    config: str | None = None
    """The id of the configuration that it was made of."""
    workspace: str | None = None
    """The id of the workspace that it has."""
    egress: Policy = "unrestricted"
    """What its machine may reach."""


def session(said: Said) -> Session:
    """Read a session."""
    env = said.get("env")
    return Session(
        id=fields.text(said, "session_id"),
        name=fields.text(said, "name", ""),
        status=fields.text(said, "status").removeprefix(STATUS_PREFIX),
        created_at=fields.moment(said, "created_at"),
        updated_at=fields.perhaps_moment(said, "updated_at"),
        last_event_at=fields.perhaps_moment(said, "last_event_at"),
        agent=fields.text(said, "agent_kind", "none").removeprefix("AGENT_KIND_").lower(),
        image=fields.text(said, "image", ""),
        template=fields.perhaps_text(said, "template"),
        size=fields.text(said, "size", ""),
        generation=fields.number(said, "generation", 0),
        env=None if env is None else fields.part(said, "env"),
        labels=fields.perhaps_part(said, "labels"),
        metadata=fields.perhaps_part(said, "metadata"),
        idle_timeout=fields.perhaps_number(said, "idle_timeout_seconds"),
        keep_warm=fields.flag(said, "keep_warm", False),
        pause_reason=fields.perhaps_text(said, "pause_reason"),
        operation=fields.perhaps_text(said, "operation"),
        parent=fields.perhaps_text(said, "parent_session_id"),
        fork_id=fields.perhaps_text(said, "fork_id"),
        forked_from=fields.perhaps_text(said, "fork_from_checkpoint_id"),
        sandbox=fields.perhaps_text(said, "sandbox_id"),
        boot_id=fields.perhaps_text(said, "boot_id"),
        failure=fields.perhaps_text(said, "failure"),
        recoverable=fields.parts(said, "recoverable", _recoverable),
        warnings=fields.texts(said, "warnings"),
        config=fields.perhaps_text(said, "config_id"),
        workspace=fields.perhaps_text(said, "workspace_id"),
        egress=policy(said, "egress"),
    )


def _recoverable(said: Said) -> Recoverable:
    return Recoverable(
        snapshot=fields.text(said, "snapshot_id"),
        kind=fields.text(said, "kind"),
        generation=fields.number(said, "generation"),
        created_at=fields.moment(said, "created_at"),
        durable=fields.flag(said, "durable"),
        checkpoint=fields.perhaps_text(said, "checkpoint_id"),
    )


@dataclass(frozen=True)
class Checkpoint:
    """A snapshot that one can go back to. ``kind`` is ``explicit`` if it was asked for, else
    ``implicit``; ``status`` PENDING, READY or FAILED. ``size_bytes`` is what is stored of it."""

    id: str
    session: str
    kind: str
    label: str
    status: str
    created_at: datetime
    size_bytes: int = 0
    error: str | None = None
    event: str | None = None
    snapshot: str | None = None
    generation: int = 0
    durable: bool = False


def checkpoint(said: Said) -> Checkpoint:
    """Read a checkpoint."""
    return Checkpoint(
        id=fields.text(said, "checkpoint_id"),
        session=fields.text(said, "session_id"),
        kind=fields.text(said, "kind", ""),
        label=fields.text(said, "label", ""),
        status=fields.text(said, "status", ""),
        created_at=fields.moment(said, "created_at"),
        size_bytes=fields.number(said, "size_bytes", 0),
        error=fields.perhaps_text(said, "error_message"),
        event=fields.perhaps_text(said, "event_id"),
        snapshot=fields.perhaps_text(said, "snapshot_id"),
        generation=fields.number(said, "generation", 0),
        durable=fields.flag(said, "durable", False),
    )


@dataclass(frozen=True)
class ForkFailure:
    """A child that was asked for and that there is not: its place among them, and why."""

    index: int
    error: ApiError


@dataclass(frozen=True)
class Forked:
    """What came of a fork: the children that there are, those that there are not, and what a fork
    does not undo, as in :class:`RolledBack`."""

    sessions: tuple[Session, ...]
    failures: tuple[ForkFailure, ...] = ()
    not_undone: tuple[str, ...] = ()


def forked(said: Said) -> Forked:
    """Read what came of a fork."""
    return Forked(
        sessions=fields.parts(said, "sessions", session),
        failures=fields.parts(said, "errors", _failure),
        not_undone=not_undone(said),
    )


def _failure(said: Said) -> ForkFailure:
    return ForkFailure(fields.number(said, "index"), told_error(said))


@dataclass(frozen=True)
class RolledBack:
    """A session after a rollback, and what is ``not_undone``: the ids of the events since the
    checkpoint in which the session reached out of its machine."""

    session: Session
    not_undone: tuple[str, ...] = ()


def rolled_back(said: Said) -> RolledBack:
    """Read what came of a rollback."""
    return RolledBack(session(fields.part(said, "session")), not_undone(said))


def not_undone(said: Said) -> tuple[str, ...]:
    """Read what neither a fork nor a rollback undoes."""
    return fields.texts(said, "not_undone")


@dataclass(frozen=True)
class Node:
    """One snapshot of a session's tree. ``parent`` is the snapshot that it came from. ``current``
    says that the session stands here: it runs on from it, or is paused in it. ``children`` are the
    ids of the sessions that were forked from it."""

    snapshot: str
    kind: str
    generation: int
    created_at: datetime
    status: str = "READY"
    parent: str | None = None
    checkpoint: str | None = None
    label: str = ""
    stored_bytes: int = 0
    durable: bool = False
    current: bool = False
    children: tuple[str, ...] = ()


def node(said: Said) -> Node:
    """Read one snapshot of a tree."""
    return Node(
        snapshot=fields.text(said, "snapshot_id"),
        kind=fields.text(said, "kind"),
        generation=fields.number(said, "generation"),
        created_at=fields.moment(said, "created_at"),
        status=fields.text(said, "status", "READY"),
        parent=fields.perhaps_text(said, "parent_snapshot_id"),
        checkpoint=fields.perhaps_text(said, "checkpoint_id"),
        label=fields.text(said, "label", ""),
        stored_bytes=fields.number(said, "size_bytes", 0),
        durable=fields.flag(said, "durable", False),
        current=fields.flag(said, "current", False),
        children=fields.texts(said, "children"),
    )


@dataclass(frozen=True)
class Tree:
    """The snapshots of a session, each before those that were made on top of it, and the sessions
    that were forked from it."""

    session: Session
    nodes: tuple[Node, ...]
    children: tuple[Session, ...]


def tree(said: Said) -> Tree:
    """Read the tree of a session."""
    return Tree(
        session=session(fields.part(said, "session")),
        nodes=fields.parts(said, "snapshots", node),
        children=fields.parts(said, "children", session),
    )


@dataclass(frozen=True)
class Event:
    """Something that happened. Ids sort as the events happened."""

    id: str
    type: str
    at: datetime
    session: str | None = None
    actor: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


def event(said: Said) -> Event:
    """Read an event."""
    return Event(
        id=fields.text(said, "event_id"),
        type=fields.text(said, "type"),
        at=fields.moment(said, "created_at"),
        session=fields.perhaps_text(said, "session_id"),
        actor=fields.perhaps_text(said, "actor"),
        data=fields.perhaps_part(said, "data"),
    )


@dataclass(frozen=True)
class History:
    """Events of the past, the oldest first; ``more`` says that there are older ones."""

    events: tuple[Event, ...]
    more: bool
