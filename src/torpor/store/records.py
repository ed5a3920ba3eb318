"""What the database holds, as plain data that the packages above pass around.

All times are aware and in UTC. Records are never changed: an update returns a new one.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal


class Status(StrEnum):
    """The state of a session, as its users see it."""

    PROVISIONING = "PROVISIONING"
    """It is being started for the first time."""
    READY = "READY"
    """Its machine runs."""
    DETACHED = "DETACHED"
    """Its machine runs, and does not answer at the moment."""
    PAUSED = "PAUSED"
    """It stands still in a snapshot, and costs only storage."""
    DESTROYING = "DESTROYING"
    """It is being removed for good."""
    DESTROYED = "DESTROYED"
    """Nothing of it is left but its history."""
    FAILED = "FAILED"
    """Its machine is gone without having been asked to; snapshots of it may be left."""


@dataclass(frozen=True)
class Session:
    """One session: what was meant (name, image, size, labels...) and where it stands.

    ``generation`` grows by one with each snapshot and each rollback, and never goes back.
    ``machine`` is the machine that runs it on its host, ``snapshot`` the newest one of its state:
    what a resume takes, or, while it is provisioning, what it starts from. ``idle_timeout`` is in
    seconds; None means the server's own, 0 never. ``failure`` says why it is FAILED.
    """

    id: str
    name: str
    status: Status
    image: str
    size: str
    created_at: datetime
    updated_at: datetime
    used_at: datetime
    created_by: str
    generation: int = 0
    agent: str = "none"
    env: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    idle_timeout: int | None = None
    keep_warm: bool = False
    pause_reason: str | None = None
    parent: str | None = None
    fork_id: str | None = None
    forked_from: str | None = None
    """The checkpoint that it was forked from."""
    machine: str | None = None
    snapshot: str | None = None
    boot_id: str | None = None
    failure: str | None = None
    last_event_at: datetime | None = None
    defaults: dict[str, Any] = field(default_factory=dict)
    """What its image says of commands in it: ``env``, ``user``, ``working_dir``."""


SnapshotKind = Literal["pause", "checkpoint", "fork", "files"]
"""Why a snapshot was made: by a pause, by a checkpoint that was asked for, as the source of a fork,
or because a machine had ended and its files were left."""


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of a session. ``id`` is the host's name of it, ``checkpoint`` the one that users
    know it by, if they may go back to it. ``event`` is the last event before the cut."""

    id: str
    session: str
    kind: SnapshotKind
    generation: int
    created_at: datetime
    status: Literal["PENDING", "READY", "FAILED", "LOST"] = "READY"
    checkpoint: str | None = None
    label: str = ""
    parent: str | None = None
    event: str | None = None
    error: str | None = None
    stored_bytes: int = 0
    durable: bool = False


@dataclass(frozen=True)
class Event:
    """Something that happened. ``id`` is a ULID: ids sort as the events happened."""

    id: str
    type: str
    at: datetime
    session: str | None = None
    actor: str | None = None
    data: dict[str, Any] = field(default_factory=dict)


OperationState = Literal["started", "done", "failed", "interrupted"]


@dataclass(frozen=True)
class Operation:
    """A change that was asked for, noted before it is begun, so that none is lost or done twice.

    ``id`` is a ULID. ``key`` is the idempotency key that ``actor`` gave, ``digest`` that of what
    was asked for with it. ``plan`` has the ids that it is going to make, ``result`` those that it
    made.
    """

    id: str
    kind: str
    actor: str
    started_at: datetime
    session: str | None = None
    state: OperationState = "started"
    key: str | None = None
    digest: str | None = None
    plan: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    ended_at: datetime | None = None


Role = Literal["viewer", "approver", "operator", "admin"]


@dataclass(frozen=True)
class Token:
    """A bearer token; ``sha256`` is the hash of its secret, in hexadecimal digits."""

    id: str
    name: str
    role: Role
    sha256: str
    created_at: datetime
    expires_at: datetime | None = None
    used_at: datetime | None = None
    revoked_at: datetime | None = None


@dataclass(frozen=True)
class SigningKey:
    """A key that the server signs with, for one purpose; ``secret`` is in hexadecimal digits."""

    id: str
    purpose: str
    secret: str = field(repr=False)
    created_at: datetime


@dataclass(frozen=True)
class PreviewLink:
    """A link to what listens on a ``port`` of a session: whoever has it may use that, as the token
    ``created_by`` in its ``role`` could, until ``expires_at``, unless it was revoked before."""

    id: str
    session: str
    port: int
    label: str
    created_at: datetime
    created_by: str
    role: Role
    expires_at: datetime
    revoked_at: datetime | None = None


@dataclass(frozen=True)
class Sample:
    """What a session used at one moment, as its host saw it.

    Seconds count from the start of the machine's process ``machine``: ``vcpu`` those that its vCPUs
    ran, ``waited`` those they were ready and had no processor, ``emulator`` those of QEMU's other
    threads. ``resident`` and ``private`` are bytes of memory. ``stored`` is what its snapshots and
    its disk take, in bytes. A paused session has only that.
    """

    session: str
    at: datetime
    machine: str | None
    vcpu: float
    waited: float
    emulator: float
    resident: int
    private: int
    stored: int
