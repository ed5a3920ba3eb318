"""What is asked of sessions, and what is answered, as plain data."""

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from torpor.sessions.egress_policy import Plain, normal
from torpor.sessions.errors import InvalidError, SessionError
from torpor.store.records import Session, Snapshot
from torpor.vm import SIZES

FLAT = "agents.digitalocean.com/flat.v1"
ENVELOPE = "agents.digitalocean.com/v1alpha1"
"""The two formats of manifests: with all keys side by side, and the older one with ``apiVersion``
and ``spec``."""
NO_TEMPLATE = "coding"
"""What stands in the older format for no template; so none can be called so."""
NAME = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9._-]{0,62}[a-zA-Z0-9])?")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LABEL = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9._/-]{0,61}[a-zA-Z0-9])?")
RESERVED = re.compile(
    "TEAM_ID|SESSION_ID|SANDBOX_ID|CONTROL_PLANE_CALLBACK_URL|SANDBOX_TEMPLATE"
    "|SANDBOX_AGENT_WORKDIR|SIZE_SLUG|SANDBOX_IMAGE_ID|SANDBOX_OCI_REF|PLANO.*|.*PERMISSION.*"
)
"""Variables that are the platform's and not a manifest's, as at DigitalOcean."""
MOST_LABELS, MOST_VARIABLES, MOST_TEXT = 64, 512, 64 << 10
LONGEST_DESCRIPTION = 1024
LONGEST_IDLE = 30 * 24 * 3600
MOST_CHILDREN = 64


def now() -> datetime:
    """Return the time, in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Actor:
    """Who asks for something: a token's id and name, or Torpor itself. ``device`` is the install
    of a client that it was asked from, if it said so."""

    id: str
    name: str
    device: str | None = None


SYSTEM = Actor("system", "torpor")


@dataclass(frozen=True)
class Key:
    """An idempotency key: what is asked for twice with one ``key`` is done once. ``digest`` is that
    of the request, so that the same key for something else is refused."""

    key: str
    digest: str


@dataclass(frozen=True)
class NewSession:
    """What a new session shall be. None stands for the server's own default.

    ``config`` is the id of the configuration that it is made of, None if this is its own manifest.
    ``description`` and ``version``, the format in which that was written, are kept with it.
    """

    name: str | None = None
    image: str | None = None
    size: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    idle_timeout: int | None = None
    keep_warm: bool = False
    template: str | None = None
    """The id or the name of a template, in place of an image."""
    persistent_workspace: bool = False
    """Whether a workspace is to be made for it, which outlives it."""
    workspace: str | None = None
    """The id or the name of a workspace that there is; then none is made."""
    config: str | None = None
    description: str = ""
    version: str = FLAT
    egress: Plain = None
    """What its machine may reach; None for all that is public."""


@dataclass(frozen=True)
class Changes:
    """What is to be different about a session from now on; None leaves it as it is."""

    name: str | None = None
    labels: Mapping[str, str] | None = None
    metadata: Mapping[str, Any] | None = None
    idle_timeout: int | None = None
    keep_warm: bool | None = None
    egress: Plain = None


@dataclass(frozen=True)
class Forked:
    """What became of each child that was asked for, and what a fork does not undo: events since
    its checkpoint with which the session reached beyond its machine. ``warnings`` hold for each
    child."""

    children: list[Session | SessionError]
    not_undone: list[str]
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class RolledBack:
    """A session that stands at an earlier checkpoint again, and what that did not undo."""

    session: Session
    not_undone: list[str]


@dataclass(frozen=True)
class Tree:
    """The snapshots of a session, oldest first, which of them it stands on, and the sessions that
    were forked from them."""

    session: Session
    snapshots: list[Snapshot]
    children: list[Session]


def new_session_id() -> str:
    """Return an id for a session."""
    return str(uuid.uuid4())


def check_new(new: NewSession) -> None:
    """Raise :exc:`InvalidError` for what no session can be."""
    if new.name is not None:
        check_name(new.name)
    if new.size is not None and new.size not in SIZES:
        raise InvalidError(
            f"There is no size {new.size!r}.", todo=f"The sizes are {', '.join(SIZES)}."
        )
    if new.image is not None and new.template is not None:
        raise InvalidError(
            "A session starts from an image or from a template, and not from both.",
            todo="Leave out image, or template.",
        )
    check_env(new.env)
    check_labels(new.labels)
    check_metadata(new.metadata)
    check_idle_timeout(new.idle_timeout)
    normal(new.egress)
    if len(new.description) > LONGEST_DESCRIPTION:
        raise InvalidError(
            f"description has {len(new.description)} characters.",
            todo=f"Use at most {LONGEST_DESCRIPTION}.",
        )


def check_changes(changes: Changes) -> None:
    """Raise :exc:`InvalidError` for what no session can be changed to."""
    if changes.name is not None:
        check_name(changes.name)
    if changes.labels is not None:
        check_labels(changes.labels)
    if changes.metadata is not None:
        check_metadata(changes.metadata)
    check_idle_timeout(changes.idle_timeout)
    normal(changes.egress)


def check_name(name: str, what: str = "A session") -> None:
    """Raise :exc:`InvalidError` if a session, or ``what`` else, cannot be called ``name``."""
    if not NAME.fullmatch(name):
        raise InvalidError(
            f"{what} cannot be called {name!r}.",
            todo="Use 1 to 64 letters, digits, '.', '_' and '-', the first and the last of them a"
            " letter or a digit.",
        )
    if is_session_id(name):
        raise InvalidError(
            f"{what} cannot be called {name!r}: that is what ids look like.",
            todo="Use another name.",
        )


def is_session_id(text: str) -> bool:
    """Return whether ``text`` has the form of a session's id."""
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False


def check_env(env: Mapping[str, str]) -> None:
    """Raise :exc:`InvalidError` if commands cannot have these variables."""
    _check_count(env, "env", MOST_VARIABLES)
    for name, value in env.items():
        if not VARIABLE.fullmatch(name) or "\0" in value:
            raise InvalidError(
                f"env: {name!r} cannot be a variable of commands.",
                todo="Names are letters, digits and '_', and values have no NUL.",
            )
        if RESERVED.fullmatch(name):
            raise InvalidError(
                f"env: {name!r} is a variable that the platform sets.", todo="Use another name."
            )


def check_labels(labels: Mapping[str, str]) -> None:
    """Raise :exc:`InvalidError` if a session cannot have these labels."""
    _check_count(labels, "labels", MOST_LABELS)
    for name, value in labels.items():
        if not LABEL.fullmatch(name) or len(value) > 255:
            raise InvalidError(
                f"labels: {name!r} cannot be a label.",
                todo="Names have up to 63 letters, digits, '.', '_', '-' and '/', and begin and end"
                " with a letter or a digit; values have up to 255 characters.",
            )


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Raise :exc:`InvalidError` if a session cannot carry this metadata."""
    _check_count(metadata, "metadata", MOST_VARIABLES)


def check_idle_timeout(seconds: int | None) -> None:
    """Raise :exc:`InvalidError` if a session cannot have this time limit, in seconds."""
    if seconds is not None and not (seconds == 0 or 5 <= seconds <= LONGEST_IDLE):
        raise InvalidError(
            f"idle_timeout: {seconds} s is not possible.",
            todo=f"Use 0 (never) or 5 to {LONGEST_IDLE} s.",
        )


def _check_count(things: Mapping[str, Any], what: str, most: int) -> None:
    if len(things) > most or len(repr(dict(things))) > MOST_TEXT:
        raise InvalidError(
            f"{what} is too large.",
            todo=f"At most {most} entries and {MOST_TEXT >> 10} KiB in all.",
        )
