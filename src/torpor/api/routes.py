"""How a route of this API behaves, beyond what FastAPI does: strict bodies and parameters."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from torpor.api.bodies import JSON_TYPES, StrictRequest, media_type, unsupported
from torpor.api.errors import RefusedError, invalid, refused
from torpor.api.permissions import declared
from torpor.api.schemas.body import Error

BASE = "/v2/agents"
IDEMPOTENCY = "Idempotency-Key"
"""The header with the key of a call that is done once, however often it is asked for."""
SESSION = "/sessions/{session_id}"

_SAID = {
    400: "Something in the request cannot be so.",
    401: "There is no valid token.",
    403: "The token's role, or the machine's user, may not do this.",
    404: "There is no such session, checkpoint, command or file.",
    408: "A body that has begun has stopped coming.",
    409: "It cannot be done in the state that things are in.",
    411: "The request does not say how large its body is.",
    413: "The body is too large.",
    415: "A body of this type is not read.",
    416: "The file has no such bytes.",
    422: "The idempotency key is that of another request.",
    429: "This token has made too many requests.",
    500: "It was tried and failed.",
    501: "This server has no previews.",
    502: "The machine gave no answer that could be used, or refuses the connection.",
    503: "There is no room for it now, or no answer.",
    504: "The machine took too long.",
    507: "A disk is full: the server's, or the machine's.",
}
_EXAMPLES: dict[int, tuple[str, str]] = {
    400: ("invalid_request", "Key 'sise' is not known."),
    401: ("unauthorized", "This request needs a valid token."),
    403: ("forbidden", "The role viewer does not have the permission 'use'."),
    404: ("not_found", "There is no session 'build-7'."),
    408: ("request_timeout", "No byte of the body has come for 120 s."),
    409: ("conflict", "Session build-7 is FAILED."),
    411: ("length_required", "This request needs the header Content-Length."),
    413: ("body_too_large", "The body of this request may have at most 1048576 bytes."),
    415: ("unsupported_media_type", "A body of the type 'text/plain' is not read here."),
    416: ("range_not_satisfiable", "The file has 12 bytes."),
    422: ("conflict", "The idempotency key 'notes-1' was used for another request."),
    429: ("too_many_requests", "This token has made too many requests."),
    500: ("internal_error", "Something went wrong that Torpor did not foresee."),
    501: ("previews_off", "This server has no previews."),
    502: ("guest_econnrefused", "nobody listens on port 8080"),
    503: ("no_room", "There is no room for one more machine."),
    504: ("guest_etimedout", "The machine took too long."),
    507: ("no_space", "The server's disk is full."),
}
ERROR = {"$ref": f"#/components/schemas/{Error.__name__}"}
"""The schema of what is answered when something is wrong."""
EVERYWHERE = (400, 401, 403, 429, 500, 503)
"""What every route may answer that needs a token: parameters that it does not know are refused, and
the database may be unable."""


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return how the OpenAPI document describes the errors of a route, besides those of all."""
    described: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        name, message = _EXAMPLES[status]
        example = {"id": name, "message": message, "request_id": "0f8fad5bd9cb469f"}
        described[status] = {
            "description": _SAID[status],
            # By its name: FastAPI would build the schema anew for each answer of each route.
            "content": {"application/json": {"schema": ERROR, "example": example}},
        }
    return described


class Route(APIRoute):
    """A route that refuses query parameters and keys that it does not know, and JSON that is not
    strict. What is None is left out of its answers."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **kwargs: Any) -> None:
        kwargs |= {"operation_id": endpoint.__name__, "response_model_exclude_none": True}
        if set(kwargs["methods"]) - {"GET", "HEAD"}:
            kwargs["responses"] = {**errors(*_of_changes(endpoint)), **(kwargs["responses"] or {})}
        super().__init__(path, endpoint, **kwargs)
        self._known = {
            each.alias
            for each in get_flat_params(self.dependant)
            if isinstance(each.field_info, Query)
        }
        self._takes_key = IDEMPOTENCY in {each.alias for each in get_flat_params(self.dependant)}

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what serves a request."""
        serve = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            self._check_parameters(request)
            self._check_key(request)
            if self.body_field is not None and _has_body(request):
                said = request.headers.get("content-type", "")
                if media_type(said) not in JSON_TYPES:
                    raise unsupported(said, JSON_TYPES)
            return await serve(StrictRequest(request.scope, request.receive))

        return strictly

    def _check_parameters(self, request: Request) -> None:
        wrong = [
            f"query parameter {name!r} is not known"
            for name in request.query_params
            if name not in self._known
        ]
        wrong += [
            f"query parameter {name!r} is there twice"
            for name in self._known - {"label", "exclude"}
            if len(request.query_params.getlist(name)) > 1
        ]
        if wrong:
            raise RefusedError(invalid(wrong))

    def _check_key(self, request: Request) -> None:
        """Refuse the key that a call does not keep: whoever sends one counts on it."""
        if request.method == "POST" and not self._takes_key and IDEMPOTENCY in request.headers:
            raise refused(
                400,
                "invalid_request",
                f"This call takes no {IDEMPOTENCY}: asked for twice, it is done twice.",
                todo="Leave the header out.",
            )


def _of_changes(endpoint: Callable[..., Any]) -> list[int]:
    """Return what a route may answer because it changes something: to tell of what is done takes
    room on a disk, and a body may be larger than what is taken."""
    wanted = declared(endpoint)
    return [507] if wanted is None or wanted.body_limit is None else [413, 507]


def _has_body(request: Request) -> bool:
    if "transfer-encoding" in request.headers:
        return True
    return request.headers.get("content-length", "0") not in ("", "0")


def router(tag: str, prefix: str = BASE) -> APIRouter:
    """Return a router for the routes of one resource."""
    return APIRouter(prefix=prefix, tags=[tag], route_class=Route, responses=errors(*EVERYWHERE))


def open_router(tag: str) -> APIRouter:
    """Return a router for routes that need no token, at the top."""
    return APIRouter(tags=[tag], route_class=Route, responses=errors(400, 500))
