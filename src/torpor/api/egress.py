"""What sessions may reach, what was decided about it, and where their data went."""

import contextlib
from collections.abc import AsyncGenerator
from typing import Annotated, Any

from fastapi import Header, Query
from starlette.requests import Request
from starlette.responses import Response

from torpor.api.errors import RefusedError, invalid
from torpor.api.events import ULID
from torpor.api.permissions import Permission, needs
from torpor.api.processes import Moment, check_zones
from torpor.api.routes import SESSION, errors, router
from torpor.api.schemas.body import rfc3339
from torpor.api.schemas.egress import (
    DecisionBody,
    DecisionPage,
    EgressAnswer,
    EgressBody,
    EgressChanges,
    FlowBody,
    FlowsAnswer,
)
from torpor.api.sessions import LARGEST_PAGE, PAGE
from torpor.api.streaming import EVENT_STREAM, event_stream, frame
from torpor.api.wiring import ByDevice, Found, Server, Service, SessionId
from torpor.sessions import Sessions
from torpor.sessions.model import now
from torpor.store.egress_log import EgressQuery
from torpor.store.records import EgressEntry

routes = router("egress")

DECISION = "egress.decision"
"""The type of the frames that are decisions."""
RECENT = 100
"""Decisions with which a live stream begins that has no place to go on from."""
AT_ONCE = 500

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A stream of decisions; the `data` of each is a DecisionBody. It begins with"
        " a frame `stream.state`, and comments (`: keepalive`) come every 15 s.",
        "content": {
            EVENT_STREAM: {
                "example": f"id: 01JT9Q0M7V3WZ2K4N8XG5B6C1D\nevent: {DECISION}\n"
                'data: {"decision_id":"01JT9Q0M7V3WZ2K4N8XG5B6C1D","host":"evil.example",'
                '"port":443,"allowed":false,"add":"evil.example:443"}\n\n',
            }
        },
    }
}

Allowed = Annotated[
    bool | None,
    Query(description="Only what was allowed (true), or only what was denied (false)."),
]
Host = Annotated[
    str | None,
    Query(description="Only decisions about this name, or address.", max_length=255),
]


@routes.get(SESSION + "/egress", responses=errors(404), summary="Show what a session may reach")
@needs(Permission.READ)
async def get_egress(service: Service, session: Found) -> EgressAnswer:
    """Torpor: show the policy of a session, and what should be known of it."""
    return EgressAnswer(egress=EgressBody.of(session, service.egress.notes(session)))


@routes.patch(
    SESSION + "/egress",
    responses=errors(400, 404, 409, 415),
    summary="Change what a session may reach",
)
@needs(Permission.USE)
async def update_egress(
    service: Service, session_id: SessionId, by: ByDevice, body: EgressChanges
) -> EgressAnswer:
    """Torpor: have a session have another policy, or rules more and fewer. It holds when this is
    answered, also if the machine is busy or hangs: connections that it does not allow are cut. It
    is kept over pauses, restarts and rollbacks, and forks have it too.

    Where everything public may be reached, only rules for what is not public can be added: any
    other would end all the rest. Without its last rule a list lets nothing through."""
    if body.policy is not None:
        changed = await service.egress.change(session_id, by, body.policy)
    else:
        add, remove = body.add or [], body.remove or []
        changed = await service.egress.change_rules(session_id, by, add, remove)
    notes = service.egress.notes(changed.session)
    return EgressAnswer(egress=EgressBody.of(changed.session, notes, changed.cut))


@routes.get(
    SESSION + "/egress/decisions",
    responses=errors(400, 404),
    summary="List what was decided",
)
@needs(Permission.READ)
async def list_decisions(
    service: Service,
    session_id: SessionId,
    page_size: Annotated[
        int, Query(ge=1, le=LARGEST_PAGE, description="How many there may be at most.")
    ] = PAGE,
    page_token: Annotated[
        str, Query(description="`next_page_token` of the page before.", max_length=64)
    ] = "",
    allowed: Allowed = None,
    host: Host = None,
    since: Moment = None,
    until: Moment = None,
) -> DecisionPage:
    """Torpor: list what was decided about connections of a session, the newest first, a page at a
    time. Decisions that are alike and come at one moment are one line. Kept are those of 30 days
    (the setting `egress_log_keep_days`), and of one session the newest 10,000 lines; `flows` counts
    all of them."""
    check_zones(since=since, until=until)
    query = _query(session_id, allowed, host, since, until)
    if page_token and not ULID.fullmatch(page_token):
        raise RefusedError(invalid(["query parameter 'page_token' is no page's"]))
    found = await service.egress_log.before(query, page_token or None, page_size + 1)
    shown = found[:page_size]
    return DecisionPage(
        decisions=[DecisionBody.of(each) for each in shown],
        next_page_token=shown[-1].id if len(found) > page_size else "",
    )


@routes.get(
    SESSION + "/egress/decisions/stream",
    responses={**_STREAM, **errors(400, 404)},
    response_class=Response,
    summary="Follow what is decided",
)
@needs(Permission.READ)
async def get_decision_stream(
    request: Request,
    server: Server,
    session_id: SessionId,
    allowed: Allowed = None,
    host: Host = None,
    cursor: Annotated[
        str | None,
        Query(
            description="Go on after this decision. It says the same as the header Last-Event-ID,"
            " and is believed rather than that."
        ),
    ] = None,
    replay_only: Annotated[
        bool, Query(description="End when all that there is has been sent.")
    ] = False,
    last_event_id: Annotated[
        str | None, Header(description="The last decision that was seen; go on after it.")
    ] = None,
) -> Response:
    """Torpor: follow what is decided about connections of a session. What is denied comes within a
    second, with the rule that would allow it.

    Each is sent at least once. Without a place to go on from, the last 100 come first. A stream of
    a session that is destroyed ends with a frame `stream.end`."""
    if cursor and not ULID.fullmatch(cursor):
        raise RefusedError(invalid([f"query parameter 'cursor': {cursor!r} is no decision's id"]))
    after = cursor
    if not after and last_event_id and ULID.fullmatch(last_event_id):
        after = last_event_id
    query = _query(session_id, allowed, host)
    frames = _frames(server.sessions, query, after.upper() if after else None, finite=replay_only)
    return event_stream(request, frames, server.closing)


async def _frames(
    service: Sessions, query: EgressQuery, after: str | None, *, finite: bool
) -> AsyncGenerator[bytes, None]:
    yield _told(query.session, "stream.state", {"mode": "replay" if finite else "live"})
    log = service.egress_log
    if after is None and not finite:
        for entry in reversed(await log.before(query, None, RECENT)):
            yield _decision(entry)
            after = entry.id
    if not finite:
        following = log.follow(query, after)
        async with contextlib.aclosing(following):  # type: ignore[type-var]
            async for entry in following:
                yield _decision(entry)
        yield _told(query.session, "stream.end", {"reason": "destroyed"})
        return
    while found := await log.after(query, after, AT_ONCE):
        for entry in found:
            yield _decision(entry)
            after = entry.id
        if len(found) < AT_ONCE:
            return


def _told(session: str, kind: str, data: dict[str, Any]) -> bytes:
    """Return a frame about the stream itself. It has no id: nobody is to go on after it."""
    moment = rfc3339(now())
    said = {"session_id": session, "type": kind, "created_at": moment, "data": data}
    return frame(kind, said)


def _decision(entry: EgressEntry) -> bytes:
    said = DecisionBody.of(entry).model_dump(mode="json", exclude_none=True)
    return frame(DECISION, said, entry.id)


def _query(
    session: str, allowed: bool | None, host: str | None, since: Moment = None, until: Moment = None
) -> EgressQuery:
    return EgressQuery(session, allowed, host.lower() if host else None, since, until)


@routes.get(
    SESSION + "/flows", responses=errors(400, 404), summary="Show where a session's data went"
)
@needs(Permission.READ)
async def list_flows(
    service: Service,
    session_id: SessionId,
    everything: Annotated[
        bool,
        Query(alias="all", description="Also places that never received anything: the denied."),
    ] = False,
) -> FlowsAnswer:
    """Torpor: show every host that has received data of a session: since when, how often, how many
    bytes, whether TLS to it was ended at the wall, and which secrets were put in. A destroyed
    session has it too. The first 2,000 places are kept apart, and those beyond them counted
    together."""
    found = await service.egress_log.flows(session_id)
    shown = [each for each in found if everything or each.connections or each.sent_bytes]
    return FlowsAnswer(
        session_id=session_id,
        flows=[FlowBody.of(each) for each in shown],
        denied=sum(each.denied for each in found),
    )
