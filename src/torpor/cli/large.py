"""Large files, copied in a way that can be gone on with when it was cut off: as transfers.

The server keeps what has come of it for a day, whatever becomes of this program or of the server.
"""

import hashlib
import posixpath
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from torpor.cli.harmless import complain
from torpor.cli.transfer import Amount, CopyError, Report, There, put_in_place

if TYPE_CHECKING:
    from torpor.client import Client, FileStatus, Transfer

LARGE = 256 << 20
"""Bytes from which on a file is copied like this."""
WORKSPACE = "/workspace/"
LOOK_EVERY = 0.5
"""Seconds between two looks at a transfer."""
PIECE = 1 << 20


def is_large(path: str, size: int) -> bool:
    """Return whether a file is to be copied like this: it has to be in the workspace."""
    return size >= LARGE and posixpath.normpath(path).startswith(WORKSPACE)


def put_large(
    client: "Client", source: Path, target: There, mode: int, resume: str | None, report: Report
) -> None:
    """Copy a file into a session's workspace, or go on with the transfer ``resume``. Raises
    :exc:`CopyError`, OSError and the client's errors."""
    size = source.stat().st_size
    if resume is None:
        transfer = client.create_upload(target.session, target.path, size=size)
    else:
        transfer = _earlier(client, target, resume, "upload")
        if transfer.size != size:
            raise CopyError(
                f"Transfer {resume} is of a file of {transfer.size} bytes, and {source} has {size}."
            )
    with _going_on(transfer.id):
        if transfer.status == "pending":
            digest = _put_parts(client, source, target, transfer, size, report)
            client.commit_upload(target.session, transfer.id, sha256=digest)
        _wait(client, target, transfer.id, f"putting {target.path} in place", report)
    client.change_file(target.session, target.path, mode=mode)


def _put_parts(
    client: "Client", source: Path, target: There, transfer: "Transfer", size: int, report: Report
) -> str:
    """Upload the parts that have not come, and return the SHA-256 of all."""
    each = transfer.part_size or size
    numbers = range(1, -(-size // each) + 1)
    missing = [number for number in numbers if number not in transfer.received]
    urls = client.get_part_urls(target.session, transfer.id, missing) if missing else {}
    digest = hashlib.sha256()
    done = 0
    with source.open("rb") as file:
        for number in numbers:
            data = file.read(each)
            if len(data) != min(each, size - done):
                raise CopyError(f"{source} has become shorter while it was copied.")
            digest.update(data)
            if number in urls:
                client.put_part(urls[number], data)
            done += len(data)
            report(Amount(f"copying to {target.path}", done, size))
    return digest.hexdigest()


def get_large(
    client: "Client",
    source: There,
    target: Path,
    found: "FileStatus",
    resume: str | None,
    report: Report,
) -> None:
    """Copy a file out of a session's workspace, or go on with the transfer ``resume``. Raises as
    :func:`put_large`."""
    if resume is None:
        transfer = client.create_download(source.session, source.path)
    else:
        transfer = _earlier(client, source, resume, "download")
    part = target.with_name(f".{target.name}.{transfer.id}")
    with _going_on(transfer.id):
        ready = _wait(client, source, transfer.id, f"making {source.path} ready", report)
        if ready.url is None:
            raise CopyError(f"What transfer {transfer.id} had made ready is not there any more.")
        digest = _fetch(client, source, ready, part, report)
    if digest != ready.sha256:
        part.unlink()
        raise CopyError(
            f"What came of {source.path} is not what the server has: its SHA-256 is {digest}, and"
            f" not {ready.sha256}. Nothing was kept of it. Copy it again."
        )
    put_in_place(part, target, found.mode)
    client.cancel_transfer(source.session, transfer.id)  # it takes no space there any more


def _fetch(client: "Client", source: There, ready: "Transfer", part: Path, report: Report) -> str:
    """Read what is missing of ``part``, and return the SHA-256 of all of it."""
    size = ready.size or 0
    digest = hashlib.sha256()
    with part.open("a+b") as file:
        file.seek(0)
        while piece := file.read(PIECE):
            digest.update(piece)
        done = file.tell()
        if done >= size:
            return digest.hexdigest()
        with closing(client.read_download_pieces(ready.url or "", offset=done)) as pieces:
            for piece in pieces:
                file.write(piece)
                digest.update(piece)
                done += len(piece)
                report(Amount(f"copying {source.path}", done, size))
    return digest.hexdigest()


def _earlier(client: "Client", there: There, transfer_id: str, direction: str) -> "Transfer":
    """Return the transfer that is gone on with. Raises :exc:`CopyError` if it is another one."""
    found = client.get_transfer(there.session, transfer_id)
    if found.direction != direction or found.path != posixpath.normpath(there.path):
        raise CopyError(
            f"Transfer {transfer_id} is the {found.direction} of {found.path}, and not the"
            f" {direction} of {there.path}."
        )
    return found


def _wait(
    client: "Client", there: There, transfer_id: str, what: str, report: Report
) -> "Transfer":
    """Return a transfer once it is completed. Raises :exc:`CopyError` if it fails."""
    while True:
        found = client.get_transfer(there.session, transfer_id)
        if found.status == "failed":
            raise CopyError(f"{there.path} was not copied: {found.error}")
        if found.over:
            return found
        report(Amount(what, found.done, found.size))
        time.sleep(LOOK_EVERY)


@contextmanager
def _going_on(transfer_id: str) -> Iterator[None]:
    """Say how to go on if the block is cut off."""
    from torpor.client import ClientError

    try:
        yield
    except (ClientError, OSError, KeyboardInterrupt):
        complain(f"It was cut off. To go on: the same command with --resume {transfer_id}")
        raise
