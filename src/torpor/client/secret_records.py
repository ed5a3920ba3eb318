"""What the server tells of secrets, as plain data."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from torpor.client import fields
from torpor.client.fields import Said


@dataclass(frozen=True)
class Secret:
    """A secret, without its value. ``bindings`` say which requests it is used for, and how;
    ``version`` is how often it was set. ``usable`` says whether the server has its key.
    ``sessions`` are the ids of those that have it, None where that was not asked for."""

    name: str
    bindings: tuple[dict[str, Any], ...]
    version: int
    usable: bool
    created_at: datetime
    updated_at: datetime
    created_by: str
    updated_by: str
    sessions: tuple[str, ...] | None = None


def secret(said: Said, sessions: tuple[str, ...] | None = None) -> Secret:
    """Read a secret."""
    return Secret(
        name=fields.text(said, "name"),
        bindings=tuple(fields.parts(said, "bindings", dict)),
        version=fields.number(said, "version"),
        usable=fields.flag(said, "usable"),
        created_at=fields.moment(said, "created_at"),
        updated_at=fields.moment(said, "updated_at"),
        created_by=fields.text(said, "created_by"),
        updated_by=fields.text(said, "updated_by"),
        sessions=sessions,
    )
