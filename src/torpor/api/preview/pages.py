"""What is answered in place of a session: plain words, and nothing of what was asked."""

import json
from dataclasses import dataclass
from http import HTTPStatus

from torpor.api.errors import Problem

Headers = list[tuple[bytes, bytes]]

NOBODY = Problem(
    401,
    "unauthorized",
    "This preview needs a valid token, or a link that is good.",
    todo="Send `Torpor-Authorization: Bearer <token>`, or open a link that `torpor preview` makes.",
    headers={"WWW-Authenticate": "Bearer"},
)
FORBIDDEN = Problem(
    403,
    "forbidden",
    "The role of this token may not use sessions.",
    todo="Use a token of an operator.",
)
NOTHING = Problem(
    404,
    "not_found",
    "There is no preview at this address.",
    todo="`torpor preview SESSION PORT` says where it is.",
)
MISDIRECTED = Problem(
    421, "misdirected_request", "This name is not the one that the connection was made for."
)


@dataclass(frozen=True)
class Page:
    """An answer of our own."""

    status: int
    headers: Headers
    body: bytes


def page(problem: Problem, accept: str) -> Page:
    """Return a problem as an answer: JSON for who asks for it, else text."""
    if "json" in accept:
        said = {"id": problem.id, "message": problem.message}
        said |= {
            name: getattr(problem, name) for name in ("state", "todo") if getattr(problem, name)
        }
        kind, body = "application/json", json.dumps(said).encode()
    else:
        words = " ".join(filter(None, (problem.message, problem.state, problem.todo)))
        title = f"{problem.status} {HTTPStatus(problem.status).phrase}"
        kind, body = "text/plain; charset=utf-8", f"{title}\n\n{words}\n".encode(errors="replace")
    more = [(name.encode(), value.encode()) for name, value in problem.headers.items()]
    return Page(problem.status, [*_own(kind), *more], body)


def redirect(status: int, target: str, *more: tuple[bytes, bytes]) -> Page:
    """Return an answer that leads to a path of the same origin, whatever ``target`` is."""
    # What begins with two slashes, or with a slash and a backslash, is another host to a browser.
    path = "/" + target.lstrip("/\\")
    return Page(status, [*_own("text/plain"), (b"location", path.encode("ascii")), *more], b"")


def _own(kind: str) -> Headers:
    return [
        (b"content-type", kind.encode()),
        (b"cache-control", b"no-store"),
        (b"content-security-policy", b"default-src 'none'; sandbox"),
        (b"referrer-policy", b"no-referrer"),
        (b"x-content-type-options", b"nosniff"),
    ]
