"""The workspace of a session: files and archives of some size, in and out in one request."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Header, Query, Response
from starlette.requests import Request

from torpor.api.errors import RETRY_SECONDS, Problem, RefusedError, refused
from torpor.api.paths import PathOf, as_text
from torpor.api.permissions import Permission, needs
from torpor.api.routes import SESSION, errors, router
from torpor.api.schemas.transfers import Uploaded
from torpor.api.streaming import Stream, begun
from torpor.api.uploads import body_pieces
from torpor.api.wiring import By, Server, SessionId, note
from torpor.sessions import InUse
from torpor.sessions.carrying import no_file, packed
from torpor.sessions.staging import aside
from torpor.sessions.workspace_paths import resolve, resolve_file
from torpor.sessions.workspace_root import make_root, user_of
from torpor.vm import GuestError

routes = router("workspace")

WORKSPACE = SESSION + "/workspace"
BYTES = "application/octet-stream"
UPLOAD_LIMIT = 500 << 20
WAIT_SECONDS = 30.0
"""How long a request waits for its turn."""
MAGIC = b"DOWSSHA1"
"""What the footer of a download begins with; the SHA-256 in hexadecimal digits follows, and the end
of a line."""
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_FAILS = errors(400, 404, 409, 413, 502, 503, 507)


@dataclass(frozen=True)
class Place:
    """Something in a workspace, by its path in the machine; ``archive``: as a tar archive."""

    path: bytes
    archive: bool

    @classmethod
    def of(cls, path: bytes, archive: bool) -> "Place":
        """Return the place that a request names. Raises :exc:`InvalidError`."""
        return cls((resolve if archive else resolve_file)(path), archive)


async def _to(
    path: PathOf,
    is_archive: Annotated[
        bool, Query(description="The body is a tar archive, which is unpacked at the path.")
    ] = False,
) -> Place:
    return Place.of(path, is_archive)


async def _from(
    path: PathOf,
    as_archive: Annotated[
        bool, Query(description="As a tar archive, as a directory needs it.")
    ] = False,
) -> Place:
    return Place.of(path, as_archive)


def _used(place_of: Callable[..., Coroutine[Any, Any, Place]]) -> Any:
    """Return the dependency that is the session, which is thawed for a request and stays until the
    answer has been sent, and its turn. A place that cannot be wakes nothing."""

    async def used(
        place: Annotated[Place, Depends(place_of)],
        server: Server,
        session_id: SessionId,
        by: By,
    ) -> AsyncIterator[InUse]:
        # FastAPI leaves this when the answer has been sent, or could not be.
        async with _turn(server.streaming), server.sessions.use(session_id, by) as found:
            await make_root(found)
            yield found

    return Depends(used)


@contextlib.asynccontextmanager
async def _turn(streaming: asyncio.Semaphore) -> AsyncIterator[None]:
    """Wait for a turn, and have it until the block ends. Raises :exc:`RefusedError`."""
    try:
        await asyncio.wait_for(streaming.acquire(), WAIT_SECONDS)
    except TimeoutError:
        raise refused(
            503,
            "too_many_transfers",
            f"Other files are on their way, and none of them has ended for {WAIT_SECONDS:.0f} s.",
            todo="Ask again a little later, or use a transfer.",
            Retry_After=str(RETRY_SECONDS),
        ) from None
    try:
        yield
    finally:
        streaming.release()


@routes.post(
    WORKSPACE + "/upload",
    responses={**_FAILS, **errors(408)},
    openapi_extra={"requestBody": {"required": False, "content": {BYTES: _BINARY}}},
    summary="Upload a file or an archive",
)
@needs(Permission.USE, audit="file.written", body_limit=UPLOAD_LIMIT)
async def upload_to_workspace(
    request: Request,
    place: Annotated[Place, Depends(_to)],
    used: Annotated[InUse, _used(_to)],
    sha256: Annotated[
        str | None,
        Header(
            alias="X-Content-Sha256",
            pattern="^[0-9a-fA-F]{64}$",
            description="What the body's SHA-256 has to be; if it is not, a file stays as it was.",
        ),
    ] = None,
) -> Uploaded:
    """Write the body, at most 500 MiB, into the workspace: as a file, which is replaced at the end
    and at once, or unpacked.

    A path that does not begin with a slash begins at `/workspace`. A file without a body is an
    empty one. What was unpacked of an archive
    that breaks off, or is another than was said, stays.
    """
    note(request, path=as_text(place.path), archive=place.archive)
    files, user = used.agent.files, user_of(used)
    pieces = _checked(request, sha256)
    if place.archive:
        size = 0
        unpacking = await files.unpack(place.path, owner=user, parents=True, user=user)
        async with unpacking:
            async for piece in pieces:
                await unpacking.write(piece)
                size += len(piece)
            await unpacking.finish()
    else:
        size = await files.write(place.path, pieces, parents=True, atomic=True, user=user)
    note(request, size=size)
    return Uploaded(bytes_written=size, path=as_text(place.path))


async def _checked(request: Request, sha256: str | None) -> AsyncGenerator[bytes, None]:
    """Yield the body. Raises :exc:`RefusedError`, before its end, if it is another than was
    said."""
    digest = hashlib.sha256()
    async for piece in body_pieces(request):
        await aside(digest.update, piece)
        yield piece
    found = digest.hexdigest()
    if sha256 is not None and found != sha256.lower():
        raise RefusedError(
            Problem(
                400,
                "checksum_mismatch",
                f"The body has the SHA-256 {found}, and {sha256} was said.",
                state="A file stays as it was; what was unpacked of an archive stays.",
                todo="Send it again.",
            )
        )


@routes.get(
    WORKSPACE + "/download",
    response_class=Response,
    responses={
        200: {
            "description": "All of it, and 73 bytes more: `DOWSSHA1`, its SHA-256 in hexadecimal"
            " digits, and the end of a line. What ends otherwise has broken off.",
            "content": {BYTES: _BINARY},
        },
        **_FAILS,
    },
    summary="Download a file or an archive",
)
@needs(Permission.USE)
async def download_from_workspace(
    place: Annotated[Place, Depends(_from)], used: Annotated[InUse, _used(_from)]
) -> Response:
    """Read a file of the workspace, or an archive of what is in it, as it comes, with a footer by
    which one sees that it is whole."""
    status = await used.agent.files.status(place.path, follow=True, user=user_of(used))
    if status is None:
        raise GuestError("ENOENT", f"there is no {as_text(place.path)}")
    if place.archive:
        pieces = _archive(used, place.path, directory=status.type == "directory")
        headers = {"x-workspace-is-archive": "true"}
    elif status.type == "file":
        pieces = used.agent.files.read_pieces(place.path, user=user_of(used))
        headers = {"x-workspace-size-bytes": str(status.size)}
    else:
        raise no_file(place.path, status.type)
    return Stream(await begun(_with_footer(pieces)), BYTES, headers=headers)


async def _archive(used: InUse, path: bytes, *, directory: bool) -> AsyncGenerator[bytes, None]:
    async with await packed(used, path, directory=directory) as packing:
        async for piece in packing.pieces():
            yield piece


async def _with_footer(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    digest = hashlib.sha256()
    async with aclosing(pieces):
        async for piece in pieces:
            await aside(digest.update, piece)
            yield piece
    yield MAGIC + digest.hexdigest().encode() + b"\n"
