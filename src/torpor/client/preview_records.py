"""Where ports of sessions are reached in a browser, as plain data."""

from dataclasses import dataclass, field
from datetime import datetime

from torpor.client import fields
from torpor.client.fields import Said


@dataclass(frozen=True)
class Ingress:
    """Where a port of a session is reached: by a browser at ``url``, by programs that show a token
    also at ``path_url``."""

    session_id: str
    port: int
    url: str
    path_url: str


def ingress(said: Said) -> Ingress:
    """Read where a port is reached."""
    return Ingress(
        session_id=fields.text(said, "session_id"),
        port=fields.number(said, "port"),
        url=fields.text(said, "url"),
        path_url=fields.text(said, "path_url", ""),
    )


@dataclass(frozen=True)
class Preview:
    """A link to a port of a session. ``link_url`` is what to give to somebody: it is known to who
    makes the link, and told only then."""

    id: str
    session_id: str
    port: int
    label: str
    url: str
    created_at: datetime
    created_by: str
    expires_at: datetime
    revoked_at: datetime | None = None
    link_url: str | None = field(default=None, repr=False)


def preview(said: Said) -> Preview:
    """Read a link."""
    return Preview(
        id=fields.text(said, "preview_id"),
        session_id=fields.text(said, "session_id"),
        port=fields.number(said, "port"),
        label=fields.text(said, "label", ""),
        url=fields.text(said, "url"),
        created_at=fields.moment(said, "created_at"),
        created_by=fields.text(said, "created_by", ""),
        expires_at=fields.moment(said, "expires_at"),
        revoked_at=fields.perhaps_moment(said, "revoked_at"),
        link_url=fields.perhaps_text(said, "link_url"),
    )
