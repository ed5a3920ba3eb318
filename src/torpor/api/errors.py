"""What went wrong, as HTTP says it: the one place where errors become a status and a body.

The body is DigitalOcean's, ``id``, ``message`` and ``request_id``, and besides what state things
are in (``state``) and what to do (``todo``).
"""

import errno
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from starlette.exceptions import HTTPException

from torpor.api.permissions import Permission
from torpor.api.requests import request_id_of
from torpor.images import ImageError
from torpor.sessions.errors import (
    ConflictError,
    FailedError,
    InvalidError,
    NoRoomError,
    NoSpaceError,
    NotFoundError,
    SessionError,
    TooLargeError,
)
from torpor.store.errors import (
    BusyError,
    CursorError,
    DiskError,
    DiskFullError,
    FencedError,
    KeyUsedError,
    NameTakenError,
    StoreError,
    UnreachableError,
)
from torpor.vm import (
    ChannelLostError,
    FreezeError,
    GuestError,
    HeldError,
    HostError,
    MachineDiedError,
    SnapshotError,
    VmError,
)

log = logging.getLogger("torpor.api")

RETRY_SECONDS = 5
"""After how many seconds it may be worth asking again for what had no room, or no answer."""


UNTOLD = "It failed on the server's side. Operators and admins are told why, and the log says it."
"""What those are told who are not to see the host's own words."""


@dataclass(frozen=True)
class Problem:
    """An error as it is answered. ``of_host`` says that its words may be the host's: paths, and
    what its programs or a machine's console have said."""

    status: int
    id: str
    message: str
    state: str = ""
    todo: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    of_host: bool = False

    def body(self, request_id: str) -> dict[str, Any]:
        """Return the answer's body; ``state``, ``todo`` and ``facts`` only if there is something to
        say."""
        said = {"id": self.id, "message": _written(self.message), "request_id": request_id}
        more = {
            "state": _written(self.state),
            "todo": _written(self.todo),
            "facts": dict(self.facts),
        }
        return said | {name: value for name, value in more.items() if value}


def _written(text: str) -> str:
    """Return a text as UTF-8 can say it: what a machine says may have half a surrogate pair in
    it."""
    return text.encode(errors="backslashreplace").decode()


class RefusedError(HTTPException):
    """A request that is refused here, before it reaches the sessions. (An HTTPException is what
    FastAPI lets pass that is raised while it reads a body.)"""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.status, problem.message)
        self.problem = problem


def refused(
    status: int,
    word: str,
    message: str,
    todo: str = "",
    **headers: str,
) -> RefusedError:
    """Return the error for a request that is not even looked into."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return RefusedError(Problem(status, word, message, todo=todo, headers=named))


_SESSION: tuple[tuple[type[SessionError], int], ...] = (
    (NotFoundError, 404),
    (TooLargeError, 413),
    (InvalidError, 400),
    (NoRoomError, 503),
    (NoSpaceError, 507),
    (FailedError, 409),
    (ConflictError, 409),
)
_VM: tuple[tuple[type[VmError], int, str], ...] = (
    (HeldError, 507, "no_space"),
    (HostError, 503, "host_unable"),
    (MachineDiedError, 409, "machine_ended"),
    (ChannelLostError, 503, "machine_silent"),
    (FreezeError, 500, "freeze_failed"),
    (SnapshotError, 409, "snapshot_unusable"),
)
_STORE: tuple[tuple[type[StoreError], int, str], ...] = (
    (CursorError, 400, "invalid_request"),
    (NameTakenError, 409, "name_taken"),
    (KeyUsedError, 409, "conflict"),
    (DiskFullError, 507, "no_space"),
    (DiskError, 503, "database_unable"),
    (BusyError, 503, "database_unable"),
    (UnreachableError, 503, "database_unable"),
    (FencedError, 503, "host_lost"),
)
_OWN_WORDS = (
    NotFoundError,
    InvalidError,
    ConflictError,
    CursorError,
    NameTakenError,
    KeyUsedError,
)
"""Errors whose words are all ours, of those that one can have who may only look."""
_GUEST = {
    "ENOENT": 404,
    "ESRCH": 404,
    "EACCES": 403,
    "EPERM": 403,
    "EEXIST": 409,
    "ENOTEMPTY": 409,
    "EBUSY": 409,
    "ETXTBSY": 409,
    "EXDEV": 409,
    "ESTALE": 409,
    "EPIPE": 409,
    "EROFS": 409,
    "EFBIG": 413,
    "E2BIG": 413,
    "ENOSPC": 507,
    "EDQUOT": 507,
    "EPROTO": 502,
    "EIO": 502,
    "ECONNREFUSED": 502,
    "ECONNRESET": 502,
    "ETIMEDOUT": 504,
}
"""What a machine refuses; every other code is the request's fault."""


def problem_of(error: BaseException) -> Problem | None:
    """Return how an error is answered, None if it is none that anybody foresaw."""
    if isinstance(error, RefusedError):
        return error.problem
    if isinstance(error, BaseExceptionGroup):
        known = [p for p in map(problem_of, error.exceptions) if p is not None]
        return known[0] if len(known) == len(error.exceptions) else None
    if isinstance(error, SessionError):
        return _of_session(error)
    if isinstance(error, GuestError):
        return Problem(
            _GUEST.get(error.code, 400), _guest_id(error.code), error.message, of_host=True
        )
    if isinstance(error, VmError):
        return _of_table(error, _VM, "machine_failed")
    if isinstance(error, StoreError):
        return _of_table(error, _STORE, "database_failed")
    if isinstance(error, ImageError):
        return Problem(500, "image_failed", str(error), of_host=True)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Problem(
            507,
            "no_space",
            "The server's disk is full.",
            state="What was half done has been removed.",
            todo="Free some space, then ask again.",
        )
    if isinstance(error, RequestValidationError | WebSocketRequestValidationError):
        return _of_validation(error)
    if isinstance(error, HTTPException):
        return _of_http(error)
    return None


UNFORESEEN = Problem(
    500,
    "internal_error",
    "Something went wrong that Torpor did not foresee.",
    todo="Look for the request's id in the server's log.",
)


def _of_session(error: SessionError) -> Problem:
    status = next((status for kind, status in _SESSION if isinstance(error, kind)), 500)
    later = status == 503 or error.code == "in_progress"
    headers = {"Retry-After": str(RETRY_SECONDS)} if later else {}
    return Problem(
        status,
        error.code,
        error.happened,
        error.state,
        error.todo,
        headers,
        error.facts,
        of_host=not isinstance(error, _OWN_WORDS),
    )


def _of_table(
    error: VmError | StoreError,
    table: Sequence[tuple[type[Exception], int, str]],
    otherwise: str,
) -> Problem:
    status, name = 500, otherwise
    for kind, its_status, its_name in table:
        if isinstance(error, kind):
            status, name = its_status, its_name
            break
    headers = {"Retry-After": str(RETRY_SECONDS)} if status == 503 else {}
    return Problem(
        status,
        name,
        error.happened,
        error.state,
        error.todo,
        headers,
        of_host=not isinstance(error, _OWN_WORDS),
    )


def _guest_id(code: str) -> str:
    plain = "".join(c for c in code.lower() if c.isascii() and c.isalnum())
    return f"guest_{plain or 'refused'}"


def _of_http(error: HTTPException) -> Problem:
    name = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_").replace("-", "_")
    message = str(error.detail)
    if error.status_code == 404:
        message = "There is no such path."
    elif error.status_code == 405:
        message = "This path knows other methods; the header Allow names them."
    return Problem(error.status_code, name, message, headers=error.headers or {})


def _of_validation(
    error: RequestValidationError | WebSocketRequestValidationError,
) -> Problem:
    return invalid([complaint(each) for each in error.errors()])


def invalid(complaints: Iterable[str]) -> Problem:
    """Return the problem with a request of which something cannot be so."""
    said = "; ".join(dict.fromkeys(complaints))
    return Problem(
        400, "invalid_request", f"{said[:1].upper()}{said[1:]}.", state="Nothing was done."
    )


def complaint(each: Mapping[str, Any]) -> str:
    """Say in words what pydantic finds wrong: where, and why."""
    place = [str(part) for part in each["loc"]]
    where = {
        "body": "",
        "query": "query parameter ",
        "path": "path parameter ",
        "header": "header ",
    }
    kind = where.get(place[0], "") if place else ""
    name = ".".join(place[1:] if place and place[0] in where else place)
    if each["type"] == "extra_forbidden":
        return f"{kind or 'key '}{name!r} is not known"
    if each["type"] == "missing":
        return f"{kind}{name!r} is missing" if name else "the body is missing"
    if each["type"] == "json_invalid":
        at = f" (at character {place[-1]})" if place else ""
        return f"it is not JSON: {each['ctx']['error']}{at}"
    why = str(each["msg"]).removeprefix("Value error, ").rstrip(".")
    return f"{kind}{name!r}: {why[:1].lower()}{why[1:]}" if name else why


def close_code(problem: Problem) -> int:
    """Return the code with which a WebSocket is closed after a problem."""
    return 4000 + problem.status


def answer_body(problem: Problem, scope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body with which a request is answered: the words that are for whoever asks."""
    caller = scope["state"].get("caller")  # a Caller, once the gate has found one
    if problem.of_host and not (caller and caller.may(Permission.USE)):
        log.warning("request %s: %s", request_id_of(scope), problem.message)
        problem = Problem(problem.status, problem.id, UNTOLD)
    return problem.body(request_id_of(scope))
