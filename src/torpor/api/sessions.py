"""Sessions: made, listed, changed, paused, resumed, destroyed."""

from dataclasses import replace
from typing import Annotated, Literal

from fastapi import Query, Response
from starlette.requests import Request

from torpor.api.bearers import Caller
from torpor.api.bodies import check_body
from torpor.api.errors import RefusedError, invalid
from torpor.api.manifests import described_body, read_document, read_manifest
from torpor.api.permissions import Permission, needs
from torpor.api.routes import SESSION, errors, router
from torpor.api.schemas.manifests import LATER
from torpor.api.schemas.sessions import (
    FromConfigBody,
    OneSession,
    Recoverable,
    ResumeBody,
    SessionBody,
    SessionChanges,
    SessionPage,
    SizeBody,
    Sizes,
)
from torpor.api.wiring import Asker, ByDevice, Found, Idempotency, Service, SessionId
from torpor.sessions import FailedError, NewSession, Sessions
from torpor.sessions.egress_policy import shown as shown_egress
from torpor.sessions.manifests import warnings_of
from torpor.store import Page, SessionQuery
from torpor.store.records import Session, Status
from torpor.vm import SIZES

routes = router("sessions")

PAGE, LARGEST_PAGE = 50, 200
READY_LIMIT = 570.0
"""Seconds for which a request waits for a session to be ready; a client waits 600 s at most."""
PREFIX = "SESSION_STATUS_"
HIDDEN = frozenset({Status.DESTROYED, Status.FAILED})
"""What a list has only when it is asked for."""
VCPU_HOUR, GIB_HOUR, HOURS_OF_MONTH = 0.044, 0.0095, 730
"""Dollars that a vCPU, and a GiB of memory, cost for an hour."""

PageSize = Annotated[
    int,
    Query(description="How many there may be at most: 50 if left out, and never more than 200."),
]
PageToken = Annotated[
    str, Query(description="`next_page_token` of the page before.", max_length=512)
]


def session_body(
    record: Session,
    caller: Caller,
    *,
    warnings: list[str] | None = None,
    recoverable: list[Recoverable] | None = None,
    operation: str | None = None,
) -> SessionBody:
    """Return a session as it is shown to ``caller``."""
    shown = caller.may(Permission.USE)
    return SessionBody(
        session_id=record.id,
        name=record.name,
        status=PREFIX + record.status,
        agent_kind="AGENT_KIND_" + record.agent.upper(),
        created_at=record.created_at,
        last_event_at=record.last_event_at,
        config_id=record.config,
        workspace_id=record.workspace,
        parent_session_id=record.parent,
        fork_id=record.fork_id,
        fork_from_checkpoint_id=record.forked_from,
        idle_timeout_seconds=record.idle_timeout,
        keep_warm=record.keep_warm or None,
        pause_reason=record.pause_reason if record.status is Status.PAUSED else None,
        sandbox_id=record.machine,
        warnings=warnings or None,
        updated_at=record.updated_at,
        generation=record.generation,
        image=record.image,
        template=record.template,
        size=record.size,
        env=record.env if shown else None,
        labels=record.labels,
        metadata=record.metadata,
        egress=shown_egress(record.egress),
        boot_id=record.boot_id,
        failure=record.failure if shown else None,
        recoverable=recoverable,
        operation=operation,
    )


async def full_body(service: Service, record: Session, caller: Caller) -> SessionBody:
    """Return a session with all that is known of it."""
    recoverable = None
    if record.status in (Status.PAUSED, Status.FAILED):
        recoverable = [
            Recoverable(
                snapshot_id=each.id,
                kind=each.kind,
                generation=each.generation,
                created_at=each.created_at,
                durable=each.durable,
                checkpoint_id=each.checkpoint,
            )
            for each in await service.recoverable(record.id)
        ]
    return session_body(record, caller, recoverable=recoverable, operation=service.doing(record.id))


async def _read_new(
    request: Request, service: Sessions, top_off: str | None
) -> tuple[NewSession, list[str]]:
    """Return the session that a body asks for, and what is odd about that."""
    document = await read_document(request)
    if isinstance(document.value, dict) and "config_id" in document.value:
        body = check_body(FromConfigBody, document)
        assert isinstance(body, FromConfigBody)
        _check_top_off(top_off, body.resume_on_topoff)
        new = await service.configs.new_session(body.config_id, body.name)
        return replace(new, workspace=body.workspace_id or None), []
    _check_top_off(top_off, None)
    new = read_manifest(document)
    return new, warnings_of(new)


def _check_top_off(parameter: str | None, key: bool | None) -> None:
    """Refuse that a session is to be resumed for a balance; the parameter is believed rather than
    the key of the body."""
    if parameter in ("true", "1") or (parameter is None and key):
        where = "key" if parameter is None else "query parameter"
        raise RefusedError(invalid([f"{where} 'resume_on_topoff' {LATER['resume_on_topoff']}"]))


@routes.post(
    "/sessions",
    responses=errors(400, 404, 409, 413, 415, 503, 507),
    openapi_extra=described_body("NewSessionBody", "FromConfigBody", "EnvelopeBody"),
    summary="Make a session",
)
@needs(Permission.USE)
async def create_session(
    request: Request,
    service: Service,
    caller: Asker,
    by: ByDevice,
    key: Idempotency,
    wait: Annotated[
        Literal["ready"] | None,
        Query(description="Torpor: `ready` answers only when the session is ready to be used."),
    ] = None,
    resume_on_topoff: Annotated[
        Literal["true", "false", "1", "0"] | None,
        Query(description="Only false, since Torpor has no balance that could be topped up."),
    ] = None,
    openai_session_id: Annotated[
        Literal[""] | None,
        Query(description="Only empty: this version runs no agent of OpenAI's."),
    ] = None,
) -> OneSession:
    """Make a session: a machine of its own, started from an image.

    The answer comes at once, with the status PROVISIONING; commands that are sent to it wait until
    it is READY. With a body of YAML, the same keys as of JSON are read; one with `apiVersion` is
    read as the older format, whose use is deprecated. A body with `config_id` and `name` makes it
    of a configuration. With `workspace_id` it has that workspace, which must be AVAILABLE, else it
    is 409; with `persistent_workspace` one is made for it. A new image, or a new size of it, is
    prepared first, which takes a minute; `session.progress` events tell of it.
    """
    new, warnings = await _read_new(request, service, resume_on_topoff)
    made = await service.create(new, by, key=key)
    request.state.session = made.id
    if wait is not None:
        made = await _ready(service, made)
    warnings += service.egress.notes(made)
    shown = session_body(made, caller, warnings=warnings, operation=service.doing(made.id))
    return OneSession(session=shown)


async def _ready(service: Sessions, made: Session) -> Session:
    try:
        made = await service.ready(made.id, READY_LIMIT)
    except TimeoutError:
        pass  # its status says how far it is
    if made.status is Status.FAILED:
        raise FailedError(
            f"Session {made.name} did not come to run: {made.failure}",
            state="It is there, and FAILED.",
            todo="Destroy it, and make another.",
            session_id=made.id,
        )
    return made


@routes.get(
    "/sessions",
    responses=errors(400),
    summary="List sessions",
)
@needs(Permission.READ)
async def list_sessions(
    service: Service,
    caller: Asker,
    page_size: PageSize = PAGE,
    page_token: PageToken = "",
    status: Annotated[
        str,
        Query(
            description="Only sessions of this status, such as `SESSION_STATUS_PAUSED`."
            " `SESSION_STATUS_ALL`: of every status; left out: all but DESTROYED and FAILED. None"
            " is ever LOCKED."
        ),
    ] = "",
    name: Annotated[
        str | None,
        Query(
            description="Only the living session of exactly this name; no other parameter decides"
            " then.",
            max_length=64,
        ),
    ] = None,
    search: Annotated[
        str | None, Query(description="Only sessions with this in their names.", max_length=64)
    ] = None,
    label: Annotated[
        list[str] | None,
        Query(description="Torpor: only sessions with this label, `name=value`; may be repeated."),
    ] = None,
) -> SessionPage:
    """List sessions, the newest first, a page at a time."""
    query = SessionQuery(
        limit=PAGE if page_size < 1 else min(page_size, LARGEST_PAGE),
        after=page_token or None,
        statuses=statuses_of(status),
        search=search or None,
        labels=_labels(label or []),
    )
    if name:
        query = SessionQuery(name=name)
    return page_body(await service.page(query), caller)


def page_body(page: Page[Session], caller: Caller) -> SessionPage:
    """Return a page of sessions as it is shown to ``caller``."""
    return SessionPage(
        sessions=[session_body(each, caller) for each in page.items],
        next_page_token=page.next_cursor or "",
    )


def statuses_of(said: str) -> frozenset[Status] | None:
    """Return the statuses that a parameter asks for, None for all. Raises :exc:`RefusedError`."""
    wanted = said.removeprefix(PREFIX)
    if wanted == "LOCKED":
        return frozenset()
    if wanted == "ALL":
        return None
    if wanted in ("", "UNSPECIFIED"):
        return frozenset(Status) - HIDDEN
    try:
        return frozenset({Status(wanted)})
    except ValueError:
        known = ", ".join(PREFIX + each for each in [*Status, "LOCKED", "ALL"])
        raise RefusedError(
            invalid([f"query parameter 'status': {said!r} is none of {known}"])
        ) from None


def _labels(said: list[str]) -> dict[str, str]:
    found = {}
    for each in said:
        name, equals, value = each.partition("=")
        if not name or not equals or name in found:
            raise RefusedError(
                invalid([f"query parameter 'label': {each!r} is not a new `name=value`"])
            )
        found[name] = value
    return found


@routes.get("/sessions/sandbox/sizes", summary="List the sizes of machines")
@needs(Permission.READ)
async def list_sizes() -> Sizes:
    """List the sizes that a session can have, the smallest first."""
    sizes = []
    for slug, shape in SIZES.items():
        gib = shape.memory_mib / 1024
        hour = round(shape.vcpus * VCPU_HOUR + gib * GIB_HOUR, 4)
        sizes.append(
            SizeBody(
                slug=slug,
                vcpus=shape.vcpus,
                memory_mb=shape.memory_mib,
                price_per_hour_usd=hour,
                price_per_month_usd=round(hour * HOURS_OF_MONTH, 2),
            )
        )
    return Sizes(sizes=sizes)


@routes.get(SESSION, responses=errors(404, 409), summary="Show a session")
@needs(Permission.READ)
async def get_session(service: Service, record: Found, caller: Asker) -> OneSession:
    """Show a session. It is not woken by that."""
    return OneSession(session=await full_body(service, record, caller))


@routes.patch(
    SESSION,
    responses=errors(400, 404, 409, 415, 503),
    summary="Change a session",
)
@needs(Permission.USE)
async def update_session(
    service: Service, session_id: SessionId, caller: Asker, body: SessionChanges
) -> OneSession:
    """Change what a session is called, carries, may reach, or when it pauses by itself."""
    record = await service.update(session_id, caller.actor, body.changes())
    shown = await full_body(service, record, caller)
    if body.egress is not None:
        shown.warnings = list(service.egress.notes(record)) or None
    return OneSession(session=shown)


@routes.delete(SESSION, status_code=204, responses=errors(404, 409), summary="Destroy a session")
@needs(Permission.USE)
async def delete_session(service: Service, session_id: SessionId, by: ByDevice) -> Response:
    """Destroy a session, its machine and its snapshots; its events stay. Needs no living machine.

    Sessions that were forked from it live on.
    """
    await service.destroy(session_id, by)
    return Response(status_code=204)


@routes.post(
    SESSION + "/pause",
    status_code=204,
    responses=errors(404, 409, 503, 507),
    summary="Pause a session",
)
@needs(Permission.USE)
async def pause_session(
    service: Service,
    session_id: SessionId,
    by: ByDevice,
    key: Idempotency,
    durable: Annotated[
        bool,
        Query(description="Torpor: answer only when the snapshot survives a power cut."),
    ] = False,
) -> Response:
    """Freeze a session into a snapshot and end its machine: processes, memory and files stand
    still.

    One that is paused already stays so, and that is no error.
    """
    await service.pause(session_id, by, durable=durable, key=key)
    return Response(status_code=204)


@routes.post(
    SESSION + "/resume",
    status_code=204,
    responses=errors(400, 404, 409, 415, 503, 507),
    summary="Resume a session",
)
@needs(Permission.USE)
async def resume_session(
    service: Service,
    session_id: SessionId,
    by: ByDevice,
    key: Idempotency,
    body: ResumeBody | None = None,
) -> Response:
    """Thaw a session from its newest snapshot; its processes go on where they stood.

    Any use wakes a paused session as well, so this is seldom needed. It answers when the machine
    is ready. An older snapshot is resumed only if it is named.
    """
    wanted = body.snapshot_id if body else None
    await service.resume(session_id, by, snapshot=wanted, key=key)
    return Response(status_code=204)
