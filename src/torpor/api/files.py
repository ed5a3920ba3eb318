"""Files in sessions: their content, their status, directories, and what is done with names."""

import heapq
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import Header, Query, Response
from starlette.requests import Request

from torpor.api.errors import RefusedError, invalid
from torpor.api.paths import (
    FILES,
    Parents,
    PathOf,
    Recursive,
    User,
    as_bytes,
    as_text,
    octal,
)
from torpor.api.permissions import Permission, needs
from torpor.api.ranges import part_of
from torpor.api.routes import errors, router
from torpor.api.schemas.files import (
    ChangeBody,
    DirectoryBody,
    Entries,
    Entry,
    FileBody,
    LinkBody,
    MoveBody,
    OneFile,
    Written,
)
from torpor.api.streaming import Stream, begun
from torpor.api.uploads import body_pieces
from torpor.api.wiring import Agent, note
from torpor.vm import FileStatus, GuestError, Listed, readable

routes = router("files")

BYTES, LINES = "application/octet-stream", "application/x-ndjson"
PAGE, LARGEST_PAGE = 1000, 10_000
_FAILS = errors(400, 404, 409, 415, 502, 503, 507)
_BINARY = {"schema": {"type": "string", "format": "binary"}}

Mode = Annotated[
    str,
    Query(pattern="^[0-7]{3,4}$", description="Permission bits of a new file, in octal digits."),
]


async def _status(agent: Agent, path: bytes, user: str, *, follow: bool) -> FileStatus:
    found = await agent.files.status(path, follow=follow, user=user)
    if found is None:
        raise GuestError("ENOENT", f"there is no {as_text(path)}")
    return found


@routes.get(
    FILES + "/content",
    response_class=Response,
    responses={
        200: {"description": "All of it.", "content": {BYTES: _BINARY}},
        206: {"description": "The part that Range asks for.", "content": {BYTES: _BINARY}},
        **errors(400, 404, 409, 416, 502, 503, 507),
    },
    summary="Read a file",
)
@needs(Permission.USE)
async def read_file(
    agent: Agent,
    path: PathOf,
    user: User = "0",
    wanted: Annotated[
        str | None, Header(alias="Range", description="`bytes=first-last`: only a part.")
    ] = None,
    if_range: Annotated[
        str | None, Header(description="Only a part if the file still has this ETag, else all.")
    ] = None,
) -> Response:
    """Torpor: read a file, as it comes. Wakes a paused session, as all that is done with files."""
    status = await _status(agent, path, user, follow=True)
    etag = f'"{status.inode:x}-{status.mtime_ns:x}-{status.size:x}"'
    part = part_of(wanted, status.size) if if_range in (None, etag) else None
    headers = {"accept-ranges": "bytes", "etag": etag}
    start, length = 0, status.size or None
    if part is not None:
        start, length = part.start, part.end - part.start
        headers["content-range"] = part.content_range
    if length is not None:  # a file of the kernel's says 0, and has something to say
        headers["content-length"] = str(length)
    pieces = await begun(agent.files.read_pieces(path, start, length, user=user))
    return Stream(pieces, BYTES, status_code=206 if part else 200, headers=headers)


@routes.put(
    FILES + "/content",
    responses={**_FAILS, **errors(408)},
    openapi_extra={"requestBody": {"required": False, "content": {BYTES: _BINARY}}},
    summary="Write a file",
)
@needs(Permission.USE, audit="file.written", body_limit=None)
async def write_file(
    request: Request,
    agent: Agent,
    path: PathOf,
    user: User = "0",
    mode: Mode = "0644",
    parents: Parents = False,
    atomic: Annotated[
        bool,
        Query(
            description="Replace the file at the end and at once, so that nobody ever sees half; a"
            " broken upload leaves the old one. Else a file that is there is emptied first, and"
            " keeps its mode and owner."
        ),
    ] = False,
) -> Written:
    """Torpor: write the body into a file, as it comes; without one the file is empty."""
    note(request, path=as_text(path))
    size = await agent.files.write(
        path, body_pieces(request), mode=octal(mode), parents=parents, atomic=atomic, user=user
    )
    note(request, size=size)
    return Written(size=size)


@routes.get(
    FILES + "/status",
    responses=errors(400, 404, 409, 502, 503, 507),
    summary="Show what there is under a name",
)
@needs(Permission.USE)
async def get_file_status(
    agent: Agent,
    path: PathOf,
    user: User = "0",
    follow: Annotated[bool, Query(description="Of what a symbolic link leads to.")] = False,
) -> OneFile:
    """Torpor: show type, size, mode and times of a file."""
    return OneFile(file=FileBody.of(await _status(agent, path, user, follow=follow)))


@routes.get(
    FILES + "/list",
    responses={
        200: {"content": {LINES: {"schema": {"type": "string"}}}},
        **errors(400, 404, 409, 502, 503, 507),
    },
    response_model=Entries,
    summary="List a directory",
)
@needs(Permission.USE)
async def list_files(
    request: Request,
    agent: Agent,
    path: PathOf,
    user: User = "0",
    recursive: Recursive = False,
    sha256: Annotated[bool, Query(description="With the SHA-256 of files.")] = False,
    exclude: Annotated[
        list[str] | None,
        Query(description="Leave out what matches, as in a shell; may be repeated."),
    ] = None,
    page_size: Annotated[int, Query(ge=1, le=LARGEST_PAGE)] = PAGE,
    page_token: Annotated[str, Query(description="`next_page_token` of the page before.")] = "",
) -> Any:
    """Torpor: list what is in a directory, a page at a time, sorted by path.

    Each page looks at all of the directory. With `Accept: application/x-ndjson` all entries come at
    once instead, one to a line, as they are found.
    """
    found = agent.files.list(
        path, recursive=recursive, digest=sha256, exclude=exclude or (), user=user
    )
    assert isinstance(found, AsyncGenerator)
    if LINES in request.headers.get("accept", ""):
        return Stream(await begun(_lines(found)), LINES)
    return await _page(found, page_size, page_token)


async def _lines(found: AsyncGenerator[Listed, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(found):
        async for each in found:
            yield _entry(each).model_dump_json(exclude_none=True).encode() + b"\n"


async def _page(found: AsyncGenerator[Listed, None], size: int, token: str) -> Entries:
    """Return the ``size`` first entries after ``token``; never more than twice as many are kept."""
    after = _place(token)
    first: list[tuple[bytes, Listed]] = []
    async with aclosing(found):
        async for each in found:
            name = as_bytes(each.path)
            if after is None or name > after:
                first.append((name, each))
            if len(first) > 2 * size:
                first = heapq.nsmallest(size + 1, first, key=lambda entry: entry[0])
    first = heapq.nsmallest(size + 1, first, key=lambda entry: entry[0])
    following = first[size - 1][0].hex() if len(first) > size else ""
    return Entries(entries=[_entry(each) for _, each in first[:size]], next_page_token=following)


def _place(token: str) -> bytes | None:
    """Return the path that a page ends with. Raises :exc:`RefusedError`."""
    try:
        return bytes.fromhex(token) if token else None
    except ValueError:
        raise RefusedError(invalid([f"query parameter 'page_token': {token!r} is none"])) from None


def _entry(each: Listed) -> Entry:
    return Entry(
        path=readable(each.path),
        file=FileBody.of(each.status) if each.status else None,
        sha256=each.sha256,
        error=each.error,
    )


# What is done with names


@routes.delete(FILES, status_code=204, responses=_FAILS, summary="Remove a file")
@needs(Permission.USE, audit="file.removed")
async def remove_file(
    request: Request, agent: Agent, path: PathOf, user: User = "0", recursive: Recursive = False
) -> Response:
    """Torpor: remove a file, a link or an empty directory; with `recursive` a directory with all
    that is in it."""
    note(request, path=as_text(path))
    await agent.files.remove(path, recursive=recursive, user=user)
    return Response(status_code=204)


@routes.post(FILES + "/move", status_code=204, responses=_FAILS, summary="Move a file")
@needs(Permission.USE, audit="file.moved")
async def move_file(request: Request, agent: Agent, body: MoveBody, user: User = "0") -> Response:
    """Torpor: give a file or directory another name in the same file system."""
    note(request, path=body.from_, to=body.to)
    await agent.files.move(body.from_, body.to, replace=body.replace, user=user)
    return Response(status_code=204)


@routes.post(FILES + "/directory", status_code=204, responses=_FAILS, summary="Make a directory")
@needs(Permission.USE, audit="file.written")
async def make_directory(
    request: Request, agent: Agent, body: DirectoryBody, user: User = "0"
) -> Response:
    """Torpor: make a directory."""
    note(request, path=body.path)
    await agent.files.make_directory(
        body.path, mode=octal(body.mode), parents=body.parents, user=user
    )
    return Response(status_code=204)


@routes.post(FILES + "/link", status_code=204, responses=_FAILS, summary="Make a symbolic link")
@needs(Permission.USE, audit="file.written")
async def make_link(request: Request, agent: Agent, body: LinkBody, user: User = "0") -> Response:
    """Torpor: make a symbolic link."""
    note(request, path=body.path)
    await agent.files.make_link(body.path, body.target, user=user)
    return Response(status_code=204)


@routes.patch(FILES, status_code=204, responses=_FAILS, summary="Change a file's attributes")
@needs(Permission.USE, audit="file.changed")
async def change_file(
    request: Request, agent: Agent, body: ChangeBody, user: User = "0"
) -> Response:
    """Torpor: change mode, owner, size or time of a file."""
    note(request, path=body.path)
    await agent.files.change(
        body.path,
        mode=None if body.mode is None else octal(body.mode),
        owner=body.owner,
        size=body.size,
        mtime_ns=body.mtime_ns,
        user=user,
    )
    return Response(status_code=204)
