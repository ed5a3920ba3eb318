"""What can go wrong between a client and its server.

ClientError
├── TargetError              the address of the server is none
├── UnreachableError         no connection, or it was lost before an answer
│   ├── UntrustedError       its certificate is not one that is trusted here
│   └── TimedOutError        no answer in time
├── AnswerError              an answer that is not Torpor's
└── ApiError                 the server refused, or failed
    ├── InvalidError         400, 413, 415
    ├── UnauthorizedError    401
    ├── ForbiddenError       403
    ├── NotFoundError        404
    ├── ConflictError        409
    ├── RateLimitedError     429
    ├── UnavailableError     503, among them "no room"
    └── ServerError          any other 5xx
"""

import json
from collections.abc import Mapping
from typing import Any


class ClientError(Exception):
    """The root of all errors of this package. Its text says what happened and what to do."""


class UnreachableError(ClientError):
    """There is no server at ``url``, or the connection to it broke.

    ``sent`` says that the request may have arrived: what was asked for may have been done.
    """

    def __init__(self, url: str, why: str, *, sent: bool = False) -> None:
        self.url, self.why, self.sent = url, why, sent
        happened = f"The connection to {url} was lost" if sent else f"Cannot connect to {url}"
        state = " What was asked for may have been done, or not." if sent else ""
        super().__init__(f"{happened}: {why}.{state}")


class UntrustedError(UnreachableError):
    """The server's certificate is not one that is trusted here; nothing was sent."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(
            url,
            f"its certificate is not trusted here ({why}). Set TORPOR_CA to a file with the"
            " certificate of its authority, and call the server by a name that is in its own",
        )


class TimedOutError(UnreachableError):
    """The server did not answer in time; what was asked for may be done later."""


class TargetError(ClientError):
    """The address of the server is none, or the token is none."""


class AnswerError(ClientError):
    """The server answered with something that is not an answer of Torpor's API."""


class ApiError(ClientError):
    """The server's own word: ``message`` says what happened, ``state`` what state things are in,
    ``todo`` what to do about it.

    ``id`` is what programs go by, ``status`` HTTP's. ``request_id`` finds it in the server's log.
    ``retry_after`` is in seconds, if the server has named a time.
    """

    def __init__(
        self,
        status: int,
        id: str,  # noqa: A002 (the API's word)
        message: str,
        *,
        state: str = "",
        todo: str = "",
        request_id: str = "",
        retry_after: float | None = None,
    ) -> None:
        self.status, self.id, self.message = status, id, message
        self.state, self.todo, self.request_id = state, todo, request_id
        self.retry_after = retry_after
        super().__init__(" ".join(_sentence(part) for part in (message, state, todo) if part))


class InvalidError(ApiError):
    """What was asked for cannot be asked for in this way."""


class UnauthorizedError(ApiError):
    """There was no token, or none that is valid."""


class ForbiddenError(ApiError):
    """The token's role does not allow it."""


class NotFoundError(ApiError):
    """There is no such thing, or no longer."""


class ConflictError(ApiError):
    """It cannot be done in the state that things are in."""


class RateLimitedError(ApiError):
    """Too many requests with this token; ``retry_after`` says how long to wait."""


class UnavailableError(ApiError):
    """The server cannot do it now: no room, or it is starting or stopping."""


class ServerError(ApiError):
    """The server failed."""


BY_STATUS: Mapping[int, type[ApiError]] = {
    400: InvalidError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    413: InvalidError,
    415: InvalidError,
    422: InvalidError,
    429: RateLimitedError,
    503: UnavailableError,
}


def api_error(status: int, body: bytes, headers: Mapping[str, str]) -> ApiError:
    """Return the error that an answer with ``status`` (400 and above) tells of.

    A body that is not Torpor's (a proxy's page, say) is told of by its status alone.
    """
    try:
        said = json.loads(body)
    except ValueError:
        said = None
    if not isinstance(said, dict) or not isinstance(said.get("message"), str):
        said = {"id": "unknown", "message": f"The server answered with status {status}"}
    return told_error(said, status=status, retry_after=_seconds(headers.get("retry-after")))


def told_error(
    said: Mapping[str, Any], *, status: int = 500, retry_after: float | None = None
) -> ApiError:
    """Return the error that an error document of the API tells of: the body of an answer, or one
    in a stream, which has its status in it."""
    own = said.get("http_code", said.get("status"))
    status = own if type(own) is int else status
    kind = BY_STATUS.get(status, ServerError if status >= 500 else ApiError)
    return kind(
        status,
        _text(said, "id") or "unknown",
        _text(said, "message"),
        state=_text(said, "state"),
        todo=_text(said, "todo"),
        request_id=_text(said, "request_id"),
        retry_after=retry_after,
    )


def _text(said: Mapping[str, Any], name: str) -> str:
    value = said.get(name)
    return value if isinstance(value, str) else ""


def _seconds(value: str | None) -> float | None:
    # HTTP allows a date, too; Torpor sends seconds.
    try:
        return None if value is None else max(0.0, float(value))
    except ValueError:
        return None


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?", "`", ":")) else f"{text}."
