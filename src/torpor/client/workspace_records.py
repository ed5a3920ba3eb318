"""What the server tells of workspaces, as plain data."""

from dataclasses import dataclass
from datetime import datetime

from torpor.client import fields
from torpor.client.fields import Said


@dataclass(frozen=True)
class Workspace:
    """A disk that outlives sessions, and that one of them has at a time: ``session``. ``state`` is
    PENDING, AVAILABLE, ATTACHING, ATTACHED, RELEASING, DELETING or FAILED.

    ``size_gib`` is what it can hold, ``stored_bytes`` what is stored of what was saved last, at
    ``saved_at``. ``error`` says why it is FAILED, if the token may see that.
    """

    id: str
    name: str | None
    state: str
    size_gib: int
    created_at: datetime
    updated_at: datetime | None = None
    stored_bytes: int = 0
    session: str | None = None
    saved_at: datetime | None = None
    created_by: str | None = None
    updated_by: str | None = None
    error: str | None = None


def workspace(said: Said) -> Workspace:
    """Read a workspace."""
    return Workspace(
        id=fields.text(said, "workspace_id"),
        name=fields.perhaps_text(said, "name"),
        state=fields.text(said, "state"),
        size_gib=fields.number(said, "size_gibibytes"),
        created_at=fields.moment(said, "created_at"),
        updated_at=fields.perhaps_moment(said, "updated_at"),
        stored_bytes=fields.number(said, "bytes_used", 0),
        session=fields.perhaps_text(said, "attached_session_id"),
        saved_at=fields.perhaps_moment(said, "last_saved_at"),
        created_by=fields.perhaps_text(said, "created_by"),
        updated_by=fields.perhaps_text(said, "updated_by"),
        error=fields.perhaps_text(said, "error"),
    )
