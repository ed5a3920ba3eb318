"""What a backup says of itself, as plain data, and what becomes of each session in a restore."""

import operator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from torpor.backup.errors import wrong
from torpor.images.names import Record
from torpor.store.records import Session, Snapshot, Status
from torpor.vm.disk import Layer
from torpor.vm.exported import File

ABOUT, DATABASE, SNAPSHOT, DISK, IMAGE, SUMMARY = "ABOU", "DATA", "SNAP", "DISK", "IMAG", "SUMM"
"""The kinds of sections, in their order."""
MOST_TEXT = 64 << 20
"""Bytes of JSON in one section at most."""

Becomes = Literal["paused", "failed", "created", "destroyed"]


@dataclass(frozen=True)
class About:
    """What stands first: when and by which Torpor the backup was made, on which computer, and
    which ``settings`` were not the defaults there. They are told, and not restored."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    created_at: datetime
    torpor: str
    host: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class NamedImage:
    """An image with a name, and its disk, which has no pieces here if it was ``left_out``."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    record: Record
    disk: File


@dataclass(frozen=True)
class SavedDisk:
    """A disk that outlives machines, and what it held: its layers, bottom first, called by their
    digests, and the file of each. One that was left out has no pieces here."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    id: str
    size_bytes: int
    saved_at: str | None
    layers: tuple[Layer, ...]
    files: tuple[File, ...]


@dataclass(frozen=True)
class SavedSession:
    """A session as it was (``status``) and what it becomes when it is restored.

    ``snapshot`` is the one in which it comes back, made at ``saved_at``: what happened in a
    machine that ran on after that is not in the backup.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    id: str
    name: str
    status: Status
    becomes: Becomes
    snapshot: str | None = None
    saved_at: datetime | None = None
    why: str = ""


@dataclass(frozen=True)
class Missing:
    """Something that was to be in the backup and is not: a snapshot, a disk or an image, by its
    name, and why. ``session`` is that of a snapshot."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    what: Literal["snapshot", "disk", "image", "checkpoint"]
    name: str
    why: str
    session: str | None = None


@dataclass(frozen=True)
class Summary:
    """What stands last: what is in the backup, and what is not though it should be."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    sessions: tuple[SavedSession, ...]
    snapshots: tuple[str, ...]
    images: tuple[str, ...]
    missing: tuple[Missing, ...]
    bytes_of_snapshots: int
    disks: Annotated[tuple[str, ...], Field(exclude_if=operator.not_)] = ()

    @property
    def complete(self) -> bool:
        """Whether everything is in it that was to be."""
        return not self.missing


@dataclass(frozen=True)
class Wanted:
    """What a database says is to be in a backup of it: sessions that are not destroyed, and the
    snapshots that are needed, the oldest first."""

    sessions: tuple[Session, ...]
    snapshots: tuple[Snapshot, ...]


def saved(session: Session, there: dict[str, Snapshot]) -> SavedSession:
    """Say what becomes of a session if the snapshots ``there``, by id, are all that there is."""
    found = there.get(session.snapshot) if session.snapshot is not None else None

    def told(becomes: Becomes, why: str = "") -> SavedSession:
        return SavedSession(
            session.id,
            session.name,
            session.status,
            becomes,
            session.snapshot if found is not None else None,
            found.created_at if found is not None else None,
            why,
        )

    match session.status:
        case Status.DESTROYING | Status.DESTROYED:
            return told("destroyed")
        case Status.FAILED:
            return told("failed", session.failure or "it had failed")
        case Status.PROVISIONING if found is not None or session.snapshot is None:
            return told("created", "it was still being created: that is begun anew")
    if found is not None:
        return told("paused")
    if session.snapshot is None:
        return told("failed", "it ran when the backup was made, and no snapshot of it had been")
    return told("failed", f"its snapshot {session.snapshot} is not in the backup")


T = TypeVar("T", About, Summary, NamedImage, SavedDisk)


def write(value: About | Summary | NamedImage | SavedDisk) -> bytes:
    """Return ``value`` as JSON."""
    return TypeAdapter(type(value)).dump_json(value)


def parse(kind: type[T], text: bytes, what: str) -> T:
    """Return what :func:`write` wrote. Raises :exc:`BackupError`."""
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or what
        raise wrong(f"{what}: {where}: {first['msg']}") from None
