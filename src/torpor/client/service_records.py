"""What the server tells of itself, its host and its tokens, as plain data."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

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
    """Whom the server takes the client for."""

    id: str
    name: str
    role: str


def who(said: Said) -> Who:
    """Read whom the server takes the client for."""
    return Who(
        id=fields.text(said, "id", ""),
        name=fields.text(said, "name", ""),
        role=fields.text(said, "role"),
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
    """A token that was just made. ``secret`` is the whole bearer token; it is told this once."""

    token: Token
    secret: str


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
        machine=fields.perhaps_text(said, "machine"),
        vcpu=fields.real(said, "vcpu", 0.0),
        waited=fields.real(said, "waited", 0.0),
        emulator=fields.real(said, "emulator", 0.0),
        resident=fields.number(said, "resident", 0),
        private=fields.number(said, "private", 0),
        stored=fields.number(said, "stored", 0),
    )


@dataclass(frozen=True)
class HostStatus:
    """The server and the computer that it runs machines on, as the server tells it."""

    version: str
    facts: dict[str, Any]


def host_status(said: Said) -> HostStatus:
    """Read what the server says of its host."""
    return HostStatus(version=fields.text(said, "version", ""), facts=dict(said))
