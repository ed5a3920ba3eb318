"""Events, as they happen and as they happened: one stream for both."""

import contextlib
import re
from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from torpor.api.bearers import Caller
from torpor.api.devices import Device, device_of
from torpor.api.errors import RefusedError, invalid
from torpor.api.permissions import Permission, needs
from torpor.api.routes import SESSION, errors, router
from torpor.api.schemas.body import rfc3339
from torpor.api.streaming import EVENT_STREAM, comment, event_stream, frame
from torpor.api.wiring import Asker, Parts, Server, SessionId
from torpor.sessions import Sessions
from torpor.sessions.model import now
from torpor.store.records import Event, Status

routes = router("events")

RECENT = 100
"""Events with which a live stream begins that has no place to go on from."""
LONGEST_PAGE = 1000
PAGE = 500
ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}", re.IGNORECASE | re.ASCII)
PRIVATE: Mapping[str, Collection[str]] = {
    "egress.no_network": ("reason",),
    "exec.started": ("argv",),
    "operation.failed": ("error",),
    "server.reconciled": ("sessions",),
    "session.detached": ("error",),
    "session.failed": ("error",),
    "session.held": ("reason",),
    "snapshot.lost": ("error",),
    "snapshot.not_durable": ("error",),
    "template.build_failed": ("error",),
    "transfer.failed": ("error",),
    "workspace.failed": ("error",),
    "workspace.not_mounted": ("error",),
}
"""What of events only those see who may use sessions: the words of a command may be secret, and
why something failed may name paths of the host, and have words of its programs and of a machine's
console."""
LAST = "session.destroyed"
"""The type of the last event that a session has."""

STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A stream of events; the `data` of each is an EventBody. It begins with a"
        " frame `stream.state`, and comments (`: keepalive`) come every 15 s.",
        "content": {
            EVENT_STREAM: {
                "example": "id: 01JT9Q0M7V3WZ2K4N8XG5B6C1D\nevent: session.paused\n"
                'data: {"event_id":"01JT9Q0M7V3WZ2K4N8XG5B6C1D","type":"session.paused",'
                '"session_id":"2f1a9c1e-7f0b-4c55-9a8e-0d6a3c1b7e42",'
                '"created_at":"2026-05-04T08:05:42.120000Z","data":{"reason":"idle"},'
                '"actor":"system"}\n\n',
            },
        },
    }
}


@dataclass(frozen=True)
class Wanted:
    """What of the events is wanted: all after ``after`` (None: the recent ones) and those that
    come; only what there is if ``finite``; or at most ``limit`` before ``before``."""

    after: str | None
    before: str | None
    finite: bool
    limit: int | None


async def wanted_events(
    replay_only: Annotated[
        bool, Query(description="End when all that there is has been sent.")
    ] = False,
    replay_from: Annotated[
        str | None,
        Query(description="With `replay_only`: only what comes after this event."),
    ] = None,
    cursor: Annotated[
        str | None,
        Query(
            description="Go on after this event. It says the same as the header Last-Event-ID, and"
            " is believed rather than that."
        ),
    ] = None,
    before: Annotated[
        str | None,
        Query(
            description="The last events before this one, the oldest first; then the comment"
            " `: has_more=true` or `: has_more=false`, and the end."
        ),
    ] = None,
    limit: Annotated[
        int | None,
        Query(
            ge=1, le=LONGEST_PAGE, description="With `before` or `replay_only`: how many at most."
        ),
    ] = None,
    last_event_id: Annotated[
        str | None, Header(description="The last event that was seen; go on after it.")
    ] = None,
) -> Wanted:
    """Read which events are wanted. Raises :exc:`RefusedError`."""
    said = {"replay_from": replay_from, "cursor": cursor, "before": before}
    wrong = [
        f"query parameter {name!r}: {value!r} is no id of an event"
        for name, value in said.items()
        if value and not ULID.fullmatch(value)
    ]
    if replay_from and not replay_only:
        wrong.append("query parameter 'replay_from' is for 'replay_only=true'; use 'cursor'")
    if before and (cursor or replay_from):
        wrong.append("query parameter 'before' goes back, and is alone")
    if limit and not (before or replay_only):
        wrong.append("query parameter 'limit' is for 'before' or 'replay_only=true'")
    if wrong:
        raise RefusedError(invalid(wrong))
    after = replay_from or cursor
    if not after and last_event_id and ULID.fullmatch(last_event_id):
        after = last_event_id
    return Wanted(
        after=after.upper() if after else None,
        before=before.upper() if before else None,
        finite=replay_only or before is not None,
        limit=limit,
    )


def event_frame(event: Event, caller: Caller) -> bytes:
    """Return an event as a frame of a stream, without what is not for ``caller``."""
    hidden = () if caller.may(Permission.USE) else PRIVATE.get(event.type, ())
    data = {
        "event_id": event.id,
        "session_id": event.session,
        "type": event.type,
        "created_at": rfc3339(event.at),
        "data": {name: value for name, value in event.data.items() if name not in hidden},
        "actor": event.actor,
    }
    return frame(event.type, data, event.id)


async def _state(service: Sessions, session: str | None, wanted: Wanted) -> bytes:
    """Return the frame that every stream begins with. It has no id: it is no event, and nobody is
    to go on after it."""
    about: dict[str, Any] = {
        "mode": "replay" if wanted.finite else "live",
        "last_event_id": await service.events.last(),
    }
    if session is not None:
        record = await service.get(session)
        about |= {"status": f"SESSION_STATUS_{record.status}", "generation": record.generation}
    data = {
        "session_id": session,
        "type": "stream.state",
        "created_at": rfc3339(now()),
        "data": about,
    }
    return frame("stream.state", data)


async def frames(
    service: Sessions, session: str | None, wanted: Wanted, caller: Caller
) -> AsyncGenerator[bytes, None]:
    """Yield the frames of a stream of events."""
    yield await _state(service, session, wanted)
    if wanted.before is not None:
        limit = wanted.limit or PAGE
        found = await service.events.before(wanted.before, session, limit + 1)
        for event in found[-limit:]:
            yield event_frame(event, caller)
        yield comment(f"has_more={str(len(found) > limit).lower()}")
    elif wanted.finite:
        async for piece in _replay(service, session, wanted, caller):
            yield piece
    else:
        async for piece in _live(service, session, wanted.after, caller):
            yield piece


async def _replay(
    service: Sessions, session: str | None, wanted: Wanted, caller: Caller
) -> AsyncGenerator[bytes, None]:
    """Yield what there is by now, page by page."""
    last = await service.events.last()
    cursor, left = wanted.after, wanted.limit
    while last is not None:
        count = min(PAGE, left) if left is not None else PAGE
        found = await service.events.after(cursor, session, count)
        for event in found:
            if event.id > last:
                return
            yield event_frame(event, caller)
            cursor = event.id
        if left is not None:
            left -= len(found)
        if len(found) < count or left == 0:
            return


async def _live(
    service: Sessions, session: str | None, after: str | None, caller: Caller
) -> AsyncGenerator[bytes, None]:
    """Yield what comes after ``after``, or what was recently, and all that happens from now on; of
    one session until it is destroyed."""
    if after is None:
        recent = await service.events.before(None, session, RECENT)
        for event in recent:
            yield event_frame(event, caller)
        after = recent[-1].id if recent else None
    if session is not None and (await service.get(session)).status is Status.DESTROYED:
        rest = await service.events.after(after, session, LONGEST_PAGE)
        for event in rest:
            yield event_frame(event, caller)
        return
    following = service.events.follow(session, after)
    async with contextlib.aclosing(following):  # type: ignore[type-var]
        async for event in following:
            yield event_frame(event, caller)
            if session is not None and event.type == LAST:
                return


EventsWanted = Annotated[Wanted, Depends(wanted_events)]


async def _device(
    device_id: Annotated[
        str | None,
        Query(
            description="Which install of a client this is. It says the same as the header"
            " X-Device-UUID, and is believed rather than that. A live stream ends when the same"
            " device begins another one.",
        ),
    ] = None,
    said: Device = None,
) -> str | None:
    return device_of(device_id) or device_of(said)


EventsDevice = Annotated[str | None, Depends(_device)]


def session_stream(
    request: Request,
    server: Parts,
    session: str,
    asker: Caller,
    wanted: Wanted,
    device: str | None,
) -> Response:
    """Return the answer that is a session's events."""
    stream = frames(server.sessions, session, wanted, asker)
    if device is not None and not wanted.finite:
        stream = server.devices.only(stream, asker.actor.id, session, device)
    return event_stream(request, stream, server.closing)


@routes.get(
    SESSION + "/events",
    responses={**STREAM, **errors(400, 404)},
    response_class=Response,
    summary="Follow a session's events",
)
@needs(Permission.READ)
async def get_session_events(
    request: Request,
    server: Server,
    session_id: SessionId,
    asker: Asker,
    wanted: EventsWanted,
    device: EventsDevice,
) -> Response:
    """Follow what happens to a session.

    Each event is sent at least once; sort them and drop doubles by their ids. Without a place to go
    on from, the last 100 come first. A stream of a session that is destroyed ends.
    """
    return session_stream(request, server, session_id, asker, wanted, device)


@routes.get(
    SESSION + "/stream",
    responses={**STREAM, **errors(400, 404)},
    response_class=Response,
    summary="Follow a session's events, by an older path",
)
@needs(Permission.READ)
async def get_session_stream(
    request: Request,
    server: Server,
    session_id: SessionId,
    asker: Asker,
    wanted: EventsWanted,
    device: EventsDevice,
) -> Response:
    """The same as `/events`: the path that DigitalOcean's Python client uses."""
    return session_stream(request, server, session_id, asker, wanted, device)


@routes.get(
    "/events",
    responses={**STREAM, **errors(400)},
    response_class=Response,
    summary="Follow all events",
)
@needs(Permission.READ)
async def get_events(
    request: Request, server: Server, asker: Asker, wanted: EventsWanted
) -> Response:
    """Torpor: follow what happens to all sessions, and to the server: reconciliations, tokens."""
    stream = frames(server.sessions, None, wanted, asker)
    return event_stream(request, stream, server.closing)
