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
    config: str | None = None
    """The configuration that it was made of."""
    template: str | None = None
    """The template that its image was built for."""
    host: str | None = None
    """The host that has its machine and its snapshots."""
    workspace: str | None = None
    """The workspace that it holds."""
    egress: str | dict[str, Any] | None = None
    """What its machine may reach, in the normal form of the wall's policies; None: all that is
    public."""
    names: str | None = None
    """Which addresses stand for which names in its machine, as the wall wrote it down. (Not read
    here: it may be long, and each list of sessions would.)"""


@dataclass(frozen=True)
class Config:
    """A configuration: a manifest that sessions are made of, which never changes.

    ``manifest`` is its canonical form and ``content_hash`` the hash of that, ``schema_version`` the
    format in which it was written. An ``implicit`` one was kept for a session that brought its own
    manifest: it holds no name, and no list has it. One that was deleted stays for the sessions that
    were made of it.
    """

    id: str
    name: str
    created_at: datetime
    updated_at: datetime
    created_by: str
    content_hash: str
    schema_version: str
    manifest: dict[str, Any]
    insights: dict[str, Any] | None = None
    implicit: bool = False
    deleted_at: datetime | None = None


SnapshotKind = Literal["pause", "checkpoint", "fork", "files"]
"""Why a snapshot was made: by a pause, by a checkpoint that was asked for, as the source of a fork,
or because a machine had ended and its files were left."""


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of a session. ``id`` is the host's name of it, ``checkpoint`` the one that users
    know it by, if they may go back to it. ``event`` is the last event before the cut,
    ``workspace`` the one whose disk was cut with it."""

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
    workspace: str | None = None


WorkspaceState = Literal[
    "PENDING", "AVAILABLE", "ATTACHING", "ATTACHED", "RELEASING", "DELETING", "FAILED"
]
"""Where a workspace stands: its disk is being made; nobody has it; the session that has it is being
started with it; has it; is being destroyed, and its disk saved; the disk is being removed; or there
is nothing of it that could be used."""


@dataclass(frozen=True)
class Workspace:
    """A disk that outlives sessions, and that one of them has at a time: ``session``.

    ``name`` is a mark for people, which others may have too. ``updated_at`` and ``updated_by`` are
    of the last change that somebody has asked for, ``saved_at`` of the last time that its content
    was saved. ``size_bytes`` is what it can hold, ``stored_bytes`` what was stored of it then.
    ``error`` says why it is FAILED.
    """

    id: str
    name: str | None
    created_at: datetime
    updated_at: datetime
    created_by: str
    updated_by: str
    state: WorkspaceState
    size_bytes: int
    stored_bytes: int = 0
    session: str | None = None
    saved_at: datetime | None = None
    error: str | None = None
    host: str | None = None
    """The host that has the disk."""


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
    host: str | None = None


@dataclass(frozen=True)
class HostRow:
    """A host, and the server that holds it: ``holder``, until ``lease_until``, reached at ``url``.

    ``epoch`` counts how often it was taken. ``version`` is the Torpor that took it last, and
    ``seen_at`` when that was last heard of.
    """

    id: str
    name: str
    url: str | None
    epoch: int
    holder: str | None
    lease_until: datetime | None
    version: str
    seen_at: datetime


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


TransferStatus = Literal["pending", "in_progress", "completed", "failed"]
Direction = Literal["upload", "download"]


@dataclass(frozen=True)
class Transfer:
    """A large file or archive on its way into a session's workspace or out of it, by way of the
    server's disk.

    ``path`` is where in the machine, percent-encoded. ``archive``: a tar archive that is unpacked
    there, or made of what is there. ``part_size`` is that of the parts of an upload, in bytes.
    ``size`` and ``sha256`` (in hexadecimal digits) are those that were announced, and once it is
    completed those that it has. ``done_bytes`` is what has arrived in the end. ``expires_at`` is
    when what is not completed is given up, and what was to be fetched is removed.
    """

    id: str
    session: str
    created_at: datetime
    updated_at: datetime
    expires_at: datetime
    created_by: str
    direction: Direction
    path: str
    archive: bool
    status: TransferStatus
    part_size: int | None = None
    size: int | None = None
    sha256: str | None = None
    done_bytes: int = 0
    error: str | None = None


@dataclass(frozen=True)
class Part:
    """A part of an upload that has come whole; ``number`` counts from 1, ``size`` is in bytes."""

    transfer: str
    number: int
    size: int
    sha256: str


@dataclass(frozen=True)
class PreviewLink:
    """A link to what listens on a ``port`` of a session: whoever has it may use that, as the token
    ``created_by`` could, until ``expires_at``, unless it was revoked before. (What is signed
    has its role.)"""

    id: str
    session: str
    port: int
    label: str
    created_at: datetime
    created_by: str
    expires_at: datetime
    revoked_at: datetime | None = None


@dataclass(frozen=True)
class Secret:
    """A credential of a team. ``bindings`` say which requests it is used for, as plain data.
    ``sealed`` is its value, as only the ``key`` of that id opens it; ``version`` counts how often
    it was set."""

    id: str
    name: str
    created_at: datetime
    updated_at: datetime
    created_by: str
    updated_by: str
    bindings: list[dict[str, Any]]
    sealed: str = field(repr=False)
    key: str
    version: int


@dataclass(frozen=True)
class Grant:
    """That requests of a session get a secret. ``although_open``: it was said that this is to be
    although its policy lets it talk to everybody."""

    session: str
    secret: str
    created_at: datetime
    created_by: str
    although_open: bool = False


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


@dataclass(frozen=True)
class EgressEntry:
    """A line of what the wall decided for a session: one decision, or ``count`` that are alike and
    came between ``at`` and ``until``.

    ``host`` is the name, or else the address, that the machine wanted; empty where so many were
    wanted at once that they stand together, with port 0. ``rule`` is what decided, ``why`` and
    ``add`` say of what was denied the reason and the rule that would allow it. An allowed
    connection that lasts has a line when it begins, and one when it has ``ended``: with the seconds
    that it took and the bytes that went each way, in all.
    """

    id: str
    session: str
    at: datetime
    until: datetime
    count: int
    transport: str
    host: str
    port: int
    allowed: bool
    rule: str
    why: str = ""
    add: str = ""
    spoken: str | None = None
    address: str | None = None
    ended: bool = False
    seconds: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    inspected: bool = False
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Flow:
    """What went from a session to one place outside, and back, over all its life.

    ``kind`` is what kind of place: a ``host``. ``name`` is empty for those that came when so many
    were known already that they stand together. ``connections`` were allowed, ``denied`` were not;
    the times are those of the first and the last of either. ``inspected``: TLS to it was ended at
    the wall at least once; ``secrets`` are the names of those that were put in there.
    """

    session: str
    kind: str
    name: str
    first_at: datetime
    last_at: datetime
    connections: int = 0
    denied: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    inspected: bool = False
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Traffic:
    """The bytes that went from a session to a host, and back, in the seconds before ``at``;
    ``host`` is empty for those of many that stand together."""

    session: str
    at: datetime
    host: str
    sent_bytes: int
    received_bytes: int


TemplateStatus = Literal["PENDING", "BUILDING", "READY", "FAILED"]


@dataclass(frozen=True)
class Template:
    """An image of a team's own, by name. ``base`` is what it is to be put on, ``source`` where in
    which registry it is, and ``current_build`` the build that new sessions start from."""

    id: str
    name: str
    created_at: datetime
    updated_at: datetime
    created_by: str
    status: TemplateStatus
    base: str
    source: str
    current_build: str | None = None
    deleted_at: datetime | None = None


BuildStatus = Literal["PENDING", "BUILDING", "SUCCEEDED", "FAILED"]


@dataclass(frozen=True)
class Build:
    """One making of a template's image, of what ``base`` and ``source`` were then. ``manifest`` is
    the digest of what the registry had, ``image`` the host's name of the image from when the host
    may have it until it has forgotten it."""

    id: str
    template: str
    created_at: datetime
    updated_at: datetime
    status: BuildStatus
    base: str
    source: str
    manifest: str | None = None
    image: str | None = None
    error: str | None = None
    host: str | None = None
    """The host whose server makes it."""


@dataclass(frozen=True)
class Line:
    """A line of what was told while a template was built; the first one has the number 1."""

    build: str
    number: int
    at: datetime
    text: str
