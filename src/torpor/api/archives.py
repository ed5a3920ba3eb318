"""Trees of files in sessions: as tar archives, in and out, and watched."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated, Any

from fastapi import Query, Response
from starlette.requests import Request

from torpor.api.paths import FILES, Parents, PathOf, Recursive, User, as_text
from torpor.api.permissions import Permission, needs
from torpor.api.routes import errors, router
from torpor.api.schemas.files import Unpacked
from torpor.api.streaming import EVENT_STREAM, Stream, begun, event_stream, frame
from torpor.api.uploads import body_pieces
from torpor.api.wiring import Agent, By, Server, SessionId, note
from torpor.sessions import Sessions
from torpor.sessions.following import LOST
from torpor.sessions.model import Actor
from torpor.vm import GuestAgent, Packing, readable

routes = router("files")

TAR = "application/x-tar"
MOMENT = 0.05
"""Seconds before a lost channel is attached again, so that one that is lost at once takes no
processor for itself."""
_BINARY = {"schema": {"type": "string", "format": "binary"}}


@routes.get(
    FILES + "/archive",
    response_class=Response,
    responses={
        200: {"description": "A tar archive.", "content": {TAR: _BINARY}},
        **errors(400, 404, 409, 502, 503, 507),
    },
    summary="Read a tree as an archive",
)
@needs(Permission.USE)
async def read_archive(
    agent: Agent,
    path: PathOf,
    user: User = "0",
    name: Annotated[
        str | None,
        Query(description="What the tree is called in it; its own name if left out, `.` for none."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        Query(description="Leave out what matches, as in a shell; may be repeated."),
    ] = None,
    one_file_system: Annotated[bool, Query(description="Leave out what is mounted below.")] = False,
) -> Response:
    """Torpor: read a file or a tree as a tar archive (POSIX pax), as it is made."""
    packing = await agent.files.pack(
        path, name=name, exclude=exclude or (), one_file_system=one_file_system, user=user
    )
    return Stream(await begun(_pieces(packing)), TAR)


async def _pieces(packing: Packing) -> AsyncGenerator[bytes, None]:
    async with packing:
        async for piece in packing.pieces():
            yield piece


@routes.put(
    FILES + "/archive",
    responses=errors(400, 404, 408, 409, 502, 503, 507),
    openapi_extra={"requestBody": {"required": True, "content": {TAR: _BINARY}}},
    summary="Unpack an archive",
)
@needs(Permission.USE, audit="file.written", body_limit=None)
async def write_archive(
    request: Request,
    agent: Agent,
    path: PathOf,
    user: User = "0",
    owner: Annotated[
        str | None,
        Query(
            description="Give all of it to this `user` or `user:group`; else as the archive says."
        ),
    ] = None,
    parents: Parents = False,
) -> Unpacked:
    """Torpor: unpack a tar archive below a directory, as it comes. What was unpacked when it breaks
    off stays."""
    note(request, path=as_text(path), archive=True)
    unpacking = await agent.files.unpack(path, owner=owner, parents=parents, user=user)
    async with unpacking:
        async for piece in body_pieces(request):
            await unpacking.write(piece)
        report = await unpacking.finish()
    counted = {
        name: report[name] if type(report.get(name)) is int else 0
        for name in ("members", "attributes", "skipped")
    }
    note(request, **counted)
    return Unpacked(**counted)


@routes.get(
    FILES + "/watch",
    response_class=Response,
    responses={
        200: {
            "description": "A stream of events `change`; the `data` of each is a WatchEvent.",
            "content": {
                EVENT_STREAM: {
                    "example": 'event: change\ndata: {"event":"modified","path":"main.py"}\n\n',
                }
            },
        },
        **errors(400, 404, 409, 502, 503, 507),
    },
    summary="Watch a tree",
)
@needs(Permission.USE)
async def watch_files(
    request: Request,
    server: Server,
    session_id: SessionId,
    by: By,
    path: PathOf,
    user: User = "0",
    recursive: Recursive = False,
) -> Response:
    """Torpor: follow what changes in a directory, until it is gone. It wakes a paused session at
    first, and after that goes on over pauses without keeping the session from them."""
    frames = _changes(server.sessions, session_id, by, path, user, recursive)
    return event_stream(request, await begun(frames), server.closing)


async def _changes(
    service: Sessions, session: str, by: Actor, path: bytes, user: str, recursive: bool
) -> AsyncGenerator[bytes, None]:
    async with service.use(session, by) as used:
        watch = await used.agent.files.watch(path, recursive=recursive, user=user)
    async with watch:
        agent: GuestAgent | None = None
        while True:
            try:
                if agent is not None:
                    await watch.attach(agent.channel)
                async for event in watch.events():
                    yield frame("change", _plain(event))
                return
            except LOST:
                await asyncio.sleep(MOMENT)
                agent = (await service.attached(session)).agent


def _plain(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event as it can be written in JSON."""
    return {
        name: readable(value) if isinstance(value, str) else value is True
        for name, value in event.items()
    }
