"""The application: the routes, and the layers that every request passes."""

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

import torpor
from torpor.api import (
    archives,
    backups,
    checkpoints,
    configs,
    document,
    egress,
    events,
    execs,
    figures,
    files,
    following,
    health,
    host,
    policy,
    ports,
    previews,
    processes,
    secrets,
    sessions,
    template_logs,
    templates,
    tokens,
    transfers,
    workspace,
    workspaces,
)
from torpor.api.answering import answer
from torpor.api.audit import Audit
from torpor.api.bearers import Bearers
from torpor.api.errors import UNFORESEEN, answer_body, problem_of
from torpor.api.gate import Gate
from torpor.api.metrics import Metrics
from torpor.api.preview.addresses import Addresses
from torpor.api.rates import Rates
from torpor.api.requests import Requests
from torpor.api.signing import Signer
from torpor.api.wiring import Parts
from torpor.backup import Backups
from torpor.images import ImageError
from torpor.sessions import SessionError, Sessions
from torpor.settings import Settings
from torpor.store.errors import StoreError
from torpor.vm import VmError

RESOURCES: Sequence[ModuleType] = (
    sessions,
    policy,
    configs,
    templates,
    template_logs,
    workspaces,
    secrets,
    checkpoints,
    execs,
    following,
    events,
    files,
    archives,
    workspace,
    transfers,
    ports,
    previews,
    egress,
    processes,
    host,
    backups,
    tokens,
    health,
    figures,
    document,
)
ERRORS: tuple[type[Exception], ...] = (
    SessionError,
    VmError,
    ImageError,
    StoreError,
    OSError,
    ExceptionGroup,
    RequestValidationError,
    WebSocketRequestValidationError,
    HTTPException,
)
"""What :func:`torpor.api.errors.problem_of` may know how to answer."""


def create_app(
    service: Sessions,
    bearers: Bearers | None,
    settings: Settings,
    signer: Signer,
    metrics: Metrics | None = None,
    copies: Backups | None = None,
    addresses: Addresses | None = None,
) -> FastAPI:
    """Return the application. ``bearers`` are the tokens that are asked for; None asks for none.
    ``copies`` makes backups, None where the files of the host cannot be read from here.
    ``addresses`` are those of previews, None where there are none."""
    app = FastAPI(
        title="Torpor",
        summary="Machines that can be frozen, thawed and forked with everything in mind.",
        description=document.ABOUT,
        version=torpor.__version__,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        openapi_tags=[
            {"name": each.routes.tags[0], "description": _first_line(each)}
            for each in RESOURCES
            if each not in (policy, template_logs, following, archives, figures, document)
        ],
    )
    parts = Parts(service, bearers, settings, signer, metrics or Metrics(), copies, addresses)
    app.state.parts = parts
    for resource in RESOURCES:
        # One flat list: the gate goes through it as the router does.
        app.router.routes.extend(resource.routes.routes)
    for kind in ERRORS:
        app.add_exception_handler(kind, _answer_error)
    service.measure(parts.metrics.operation, parts.metrics.samples)

    rates = Rates(settings.rate_limit_per_second, settings.rate_limit_burst)
    app.add_middleware(Gate, routes=app.router.routes, bearers=bearers, rates=rates, signer=signer)
    app.add_middleware(Audit, sessions=service)
    app.add_middleware(Requests, observe=parts.metrics.request, failed=_answer_unforeseen)
    return app


def _first_line(module: ModuleType) -> str:
    return (module.__doc__ or "").strip().splitlines()[0]


async def _answer_error(connection: HTTPConnection, error: Exception) -> Response:
    problem = problem_of(error)
    if problem is None:
        raise error
    if problem.status == 405:
        problem = replace(problem, headers={"Allow": ", ".join(_methods(connection))})
    connection.scope["state"]["problem"] = problem.id
    body = answer_body(problem, connection.scope)
    return JSONResponse(body, problem.status, dict(problem.headers))


def _methods(connection: HTTPConnection) -> list[str]:
    """Return the methods that a path knows: the router names those of its first route alone."""
    routes = connection.app.router.routes
    known = [each for each in routes if each.matches(connection.scope)[0] is not Match.NONE]
    return sorted({method for each in known for method in getattr(each, "methods", None) or ()})


async def _answer_unforeseen(scope: Scope, receive: Receive, send: Send) -> None:
    await answer(UNFORESEEN, scope, receive, send)
