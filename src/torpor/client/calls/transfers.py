"""Transfers: large files and archives, into a session's workspace and out of it.

An upload is begun, its parts are put where the server says, and it is committed; a download is
begun, looked at until it is completed, and read. All of it can be asked for again, and gone on with
after a lost connection or a restart of either side. A paused session is woken when it is needed.
"""

import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from torpor.client import fields
from torpor.client.call import (
    JSON,
    LONG,
    ROOT,
    Call,
    Content,
    document,
    keyed,
    nothing,
    path,
    query,
)
from torpor.client.transfer_records import Transfer, part_urls, transfer

BYTES = {"content-type": "application/octet-stream"}
SIGNED = ROOT + "/signed/"


def create_upload(
    session: str,
    file: str,
    *,
    size: int | None = None,
    sha256: str | None = None,
    archive: bool = False,
    key: str | None = None,
) -> Call[Transfer]:
    """Begin to upload a file of ``size`` bytes into the workspace, at most 50 GiB; ``archive``: a
    tar archive that is unpacked at ``file``. With ``sha256`` it is refused if it has another."""
    return _create(session, "upload", file, key, is_archive=archive, size_bytes=size, sha256=sha256)


def create_download(
    session: str, file: str, *, archive: bool = False, key: str | None = None
) -> Call[Transfer]:
    """Begin to make a file of the workspace ready to be read; ``archive``: a tar archive of what is
    there. Look at it until it is over."""
    return _create(session, "download", file, key, as_archive=archive)


def _create(
    session: str, direction: str, file: str, key: str | None, **more: Any
) -> Call[Transfer]:
    return Call(
        "POST",
        path("sessions", session, "workspace", "transfers"),
        lambda answer: transfer(answer.json()),
        headers=keyed(key),
        content=document(direction=direction, **_named(file), **more),
    )


def _named(file: str) -> dict[str, str]:
    """Return how a path is said; one that is no UTF-8 is percent-encoded."""
    name = os.fsencode(file)
    try:
        return {"path": name.decode()}
    except UnicodeDecodeError:
        return {"path": quote(name), "path_encoding": "percent"}


def get_transfer(session: str, transfer_id: str) -> Call[Transfer]:
    """Return how far a transfer is."""
    return Call("GET", _path(session, transfer_id), lambda answer: transfer(answer.json()))


def get_part_urls(session: str, transfer_id: str, numbers: Sequence[int]) -> Call[dict[int, str]]:
    """Return where parts go, by their numbers, which count from 1; 1000 at once at most. Each URL
    is as good as a token for its part."""
    return Call(
        "POST",
        _path(session, transfer_id, "part-upload-urls"),
        lambda answer: part_urls(answer.json()),
        headers=JSON,
        content=document(part_numbers=list(numbers)),
    )


def put_part(url: str, content: bytes) -> Call[None]:
    """Upload a part to its URL. When this returns it is on the server's disk."""
    return Call("PUT", _signed(url), nothing, headers=BYTES, content=content, seconds=LONG)


def commit_upload(session: str, transfer_id: str, *, sha256: str | None = None) -> Call[None]:
    """Have an upload whose parts have all come be put into the workspace; look at it until it is
    over. Raises :exc:`ConflictError` (``parts_missing``)."""
    return Call(
        "POST",
        _path(session, transfer_id, "commit"),
        nothing,
        headers=JSON,
        content=document(sha256=sha256),
    )


def cancel_transfer(session: str, transfer_id: str, *, reason: str | None = None) -> Call[bool]:
    """Give up a transfer; return whether it was this that ended it."""
    return Call(
        "POST",
        _path(session, transfer_id, "cancel"),
        lambda answer: fields.flag(answer.json(), "aborted"),
        headers=JSON,
        content=document(reason=reason),
    )


def read_download_pieces(url: str, *, offset: int = 0) -> Call[None]:
    """Yield what a download has brought, from ``offset`` on, in pieces. Compare its SHA-256."""
    headers = {"range": f"bytes={offset}-"} if offset else {}
    return Call("GET", _signed(url), nothing, headers=headers, seconds=LONG)


def upload_file(
    session: str,
    file: str,
    content: Content,
    *,
    archive: bool = False,
    sha256: str | None = None,
) -> Call[int]:
    """Write at most 500 MiB into the workspace in one request, and return how many bytes these
    were; ``archive``: a tar archive that is unpacked at ``file``."""
    return Call(
        "POST",
        path("sessions", session, "workspace", "upload"),
        lambda answer: fields.number(answer.json(), "bytes_written"),
        query=query(path=file, is_archive=archive),
        headers=BYTES | ({"x-content-sha256": sha256} if sha256 else {}),
        content=content,
        seconds=LONG,
    )


def _path(session: str, transfer_id: str, *more: str) -> str:
    return path("sessions", session, "workspace", "transfers", transfer_id, *more)


def _signed(url: str) -> str:
    """Return the path of a signed URL: it is asked for where all else is, whatever the server is
    called by others."""
    _, signed, rest = url.partition(SIGNED)
    if not rest:
        raise ValueError("this is no URL that a Torpor server has signed")
    return signed + rest
