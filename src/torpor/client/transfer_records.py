"""What the server tells of transfers, as plain data."""

import os
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import unquote_to_bytes

from torpor.client import fields
from torpor.client.fields import Said


@dataclass(frozen=True)
class Transfer:
    """A large file on its way into a session's workspace or out of it.

    ``direction`` is upload or download, ``status`` pending, in_progress, completed or failed (then
    ``error`` says why). ``size`` is in bytes; an upload is split every ``part_size`` of them, and
    ``received`` are the numbers of the parts that have come. ``done`` is how many bytes have been
    put into the workspace or made ready. ``url`` is where a download that is completed is fetched.
    """

    id: str
    direction: str
    status: str
    expires_at: datetime
    path: str = ""
    archive: bool = False
    size: int | None = None
    part_size: int | None = None
    received: tuple[int, ...] = ()
    done: int = 0
    sha256: str | None = None
    url: str | None = None
    error: str | None = None

    @property
    def over(self) -> bool:
        """Whether it has ended, well or not."""
        return self.status in ("completed", "failed")


def transfer(said: Said) -> Transfer:
    """Read what the server says of a transfer."""
    return Transfer(
        id=fields.text(said, "transfer_id"),
        direction=fields.text(said, "direction"),
        status=fields.text(said, "status"),
        expires_at=fields.moment(said, "expires_at"),
        path=_path(said),
        archive=fields.flag(said, "is_archive", False),
        size=fields.perhaps_number(said, "size_bytes"),
        part_size=fields.perhaps_number(said, "part_size"),
        received=fields.numbers(said, "parts_received"),
        done=fields.number(said, "bytes_written", 0),
        sha256=fields.perhaps_text(said, "sha256"),
        url=fields.perhaps_text(said, "download_url"),
        error=fields.perhaps_text(said, "error_message"),
    )


def _path(said: Said) -> str:
    path = fields.text(said, "path", "")
    if fields.perhaps_text(said, "path_encoding") != "percent":
        return path
    return os.fsdecode(unquote_to_bytes(path))


def part_urls(said: Said) -> dict[int, str]:
    """Read where parts go, by their numbers."""
    found = fields.parts(
        said,
        "part_urls",
        lambda each: (fields.number(each, "part_number"), fields.text(each, "upload_url")),
    )
    return dict(found)
