"""What the server tells of configurations, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from torpor.client import fields
from torpor.client.fields import Said


@dataclass(frozen=True)
class Config:
    """A configuration: a kept manifest that sessions are made of, and that never changes.

    ``content_hash`` is the SHA-256 of its canonical manifest, ``schema_version`` the format in
    which it was written, ``created_by`` the id of a token. ``manifest`` is empty in a list, and
    has no variables if the token may not see them.
    """

    id: str
    name: str
    content_hash: str
    schema_version: str
    created_by: str
    created_at: datetime
    updated_at: datetime
    manifest: Mapping[str, Any] = field(default_factory=dict)


def config(said: Said) -> Config:
    """Read a configuration."""
    return Config(
        id=fields.text(said, "id"),
        name=fields.text(said, "name"),
        content_hash=fields.text(said, "content_hash"),
        schema_version=fields.text(said, "agentspec_schema_version"),
        created_by=fields.text(said, "created_by", ""),
        created_at=fields.moment(said, "created_at"),
        updated_at=fields.moment(said, "updated_at"),
        manifest=fields.perhaps_part(said, "manifest"),
    )
