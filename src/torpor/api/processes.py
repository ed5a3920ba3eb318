"""What runs in a session's machine, and what it uses."""

import re
from datetime import datetime
from typing import Annotated

from fastapi import Path, Query, Response
from pydantic import BeforeValidator
from starlette.requests import Request

from torpor.api.errors import RefusedError, invalid
from torpor.api.permissions import Permission, needs
from torpor.api.routes import SESSION, errors, router
from torpor.api.schemas.execs import SignalBody
from torpor.api.schemas.machine import (
    ProcessBody,
    Processes,
    SampleBody,
    Samples,
    StatisticsBody,
)
from torpor.api.wiring import Agent, Service, SessionId, note

routes = router("machine")

RFC3339 = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)


def _is_written_so(said: object) -> object:
    # A number would be taken for the seconds since 1970.
    if isinstance(said, str) and not RFC3339.fullmatch(said):
        raise ValueError("this must be a time as RFC 3339 has it, with its zone")
    return said


Moment = Annotated[
    datetime | None,
    BeforeValidator(_is_written_so),
    Query(description="In RFC 3339, with its zone.", examples=["2026-05-04T08:00:00Z"]),
]


@routes.get(
    SESSION + "/processes",
    responses=errors(404, 409, 502, 503, 507),
    summary="List processes",
)
@needs(Permission.USE)
async def list_processes(agent: Agent) -> Processes:
    """Torpor: list the processes of a session's machine but the kernel's own. Wakes a paused
    session."""
    return Processes(processes=[ProcessBody.of(each) for each in await agent.processes()])


@routes.post(
    SESSION + "/processes/{pid}/signal",
    status_code=204,
    responses=errors(400, 404, 409, 415, 502, 503, 507),
    summary="Signal a process",
)
@needs(Permission.USE, audit="process.signalled")
async def signal_process(
    request: Request,
    agent: Agent,
    pid: Annotated[int, Path(ge=1, le=4194304)],
    body: SignalBody | None = None,
) -> Response:
    """Torpor: send a signal to one of the user's processes; SIGTERM if none is named."""
    signal = body.signal if body else 15
    note(request, pid=pid, signal=signal)
    await agent.kill(pid, signal)
    return Response(status_code=204)


@routes.get(
    SESSION + "/statistics",
    responses=errors(404, 409, 503),
    summary="Show what a machine uses",
)
@needs(Permission.READ)
async def get_statistics(service: Service, session_id: SessionId) -> StatisticsBody:
    """Torpor: show what the machine of a session uses at the moment. One that is paused has none,
    and is not woken."""
    return StatisticsBody.of(await service.statistics(session_id))


@routes.get(
    SESSION + "/samples",
    responses=errors(400, 404),
    summary="Show what a session used",
)
@needs(Permission.READ)
async def get_samples(
    service: Service, session_id: SessionId, since: Moment = None, until: Moment = None
) -> Samples:
    """Torpor: show what a session used, moment by moment; `since` and `until` bound the time."""
    check_zones(since=since, until=until)
    found = await service.samples(session_id, since, until)
    return Samples(samples=[SampleBody.of(each) for each in found])


def check_zones(**moments: datetime | None) -> None:
    """Raise :exc:`RefusedError` for a time of which nobody knows where it is meant."""
    for name, moment in moments.items():
        if moment is not None and moment.tzinfo is None:
            raise RefusedError(invalid([f"query parameter {name!r} has no zone; write a Z"]))
