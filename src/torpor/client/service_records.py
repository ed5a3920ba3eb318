"""What the server tells of itself, its host and its tokens, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from torpor.client import fields
from torpor.client.fields import Said


@dataclass(frozen=True)
class Size:
    """A size that sessions can have; prices are in dollars."""

    slug: str
    vcpus: int
    memory_mib: int
    price_per_hour: float
    price_per_month: float


def size(said: Said) -> Size:
    """Read a size."""
    return Size(
        slug=fields.text(said, "slug"),
        vcpus=fields.number(said, "vcpus"),
        memory_mib=fields.number(said, "memory_mb"),
        price_per_hour=fields.real(said, "price_per_hour_usd", 0.0),
        price_per_month=fields.real(said, "price_per_month_usd", 0.0),
    )


@dataclass(frozen=True)
class Who:
    """Whom the server takes the client for, and what that one may do."""

    id: str
    name: str
    role: str
    permissions: tuple[str, ...] = ()


def who(said: Said) -> Who:
    """Read whom the server takes the client for."""
    return Who(
        id=fields.text(said, "id", ""),
        name=fields.text(said, "name", ""),
        role=fields.text(said, "role"),
        permissions=fields.texts(said, "permissions"),
    )


@dataclass(frozen=True)
class Token:
    """A token, without its secret."""

    id: str
    name: str
    role: str
    created_at: datetime
    expires_at: datetime | None = None
    used_at: datetime | None = None
    revoked_at: datetime | None = None


def token(said: Said) -> Token:
    """Read a token."""
    return Token(
        id=fields.text(said, "id"),
        name=fields.text(said, "name", ""),
        role=fields.text(said, "role"),
        created_at=fields.moment(said, "created_at"),
        expires_at=fields.perhaps_moment(said, "expires_at"),
        used_at=fields.perhaps_moment(said, "used_at"),
        revoked_at=fields.perhaps_moment(said, "revoked_at"),
    )


@dataclass(frozen=True)
class NewToken:
    """A token that was just made. ``bearer`` is what to show; it is told this once."""

    token: Token
    bearer: str


@dataclass(frozen=True)
class Sample:
    """What a session used at one moment, as its host saw it: seconds since its machine's process
    began, bytes of memory, bytes stored. A paused session has only the last."""

    at: datetime
    machine: str | None
    vcpu: float
    waited: float
    emulator: float
    resident: int
    private: int
    stored: int


def sample(said: Said) -> Sample:
    """Read a sample."""
    return Sample(
        at=fields.moment(said, "at"),
        machine=fields.perhaps_text(said, "sandbox_id"),
        vcpu=fields.real(said, "vcpu_seconds"),
        waited=fields.real(said, "waited_seconds"),
        emulator=fields.real(said, "emulator_seconds"),
        resident=fields.number(said, "resident_bytes"),
        private=fields.number(said, "private_bytes"),
        stored=fields.number(said, "stored_bytes"),
    )


@dataclass(frozen=True)
class HostStatus:
    """The server, and the computer that it runs machines on. ``promised_free_bytes`` is the memory
    that can still be promised to machines, below 0 if too much has been; ``sessions`` how many
    there are in each state. ``why`` is empty, and ``jail_missing`` None, for who may not use
    sessions."""

    name: str
    version: str
    accelerator: str
    why: str
    qemu: str
    jail_missing: tuple[str, ...] | None
    memory_bytes: int
    free_memory_bytes: int
    promised_free_bytes: int
    free_disk_bytes: int
    stored_bytes: int
    sessions: Mapping[str, int]
    wall_missing: str | None = None
    """Why machines have no network there, if so."""


def host_status(said: Said) -> HostStatus:
    """Read what the server says of its host."""
    counts = fields.perhaps_part(said, "sessions")
    return HostStatus(
        name=fields.text(said, "name"),
        version=fields.text(said, "version"),
        accelerator=fields.text(said, "accelerator"),
        why=fields.text(said, "why", ""),
        qemu=fields.text(said, "qemu", ""),
        jail_missing=fields.texts(said, "jail_missing") if "jail_missing" in said else None,
        memory_bytes=fields.number(said, "memory_bytes"),
        free_memory_bytes=fields.number(said, "free_memory_bytes"),
        promised_free_bytes=fields.number(said, "promised_free_bytes"),
        free_disk_bytes=fields.number(said, "free_disk_bytes"),
        stored_bytes=fields.number(said, "stored_bytes"),
        sessions={name: fields.number(counts, name) for name in counts},
        wall_missing=fields.perhaps_text(said, "wall_missing"),
    )
