"""The server itself: its host, sizes, tokens, health; and what sessions have used."""

from datetime import UTC, datetime

from torpor.client import fields
from torpor.client.call import JSON, LONG, Answer, Call, document, nothing, path, query
from torpor.client.records import History, event
from torpor.client.service_records import (
    HostStatus,
    NewToken,
    Sample,
    Size,
    Token,
    Who,
    host_status,
    sample,
    size,
    token,
    who,
)
from torpor.client.sse import Frames

NEVER = "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"
"""The last ULID that there can be: whatever has happened, happened before."""


def list_sizes() -> Call[tuple[Size, ...]]:
    """Return the sizes that sessions can have."""
    return Call(
        "GET",
        path("sessions", "sandbox", "sizes"),
        lambda answer: fields.parts(answer.json(), "sizes", size),
    )


def get_host() -> Call[HostStatus]:
    """Return what the server says of itself and of the computer that runs the machines."""
    return Call("GET", path("host"), lambda answer: host_status(answer.json()))


def who_am_i() -> Call[Who]:
    """Return whom the server takes this client for."""
    return Call("GET", path("whoami"), lambda answer: who(answer.json()))


def list_samples(
    session: str, *, since: datetime | None = None, until: datetime | None = None
) -> Call[tuple[Sample, ...]]:
    """Return what a session used, the oldest sample first. Times must be aware."""
    return Call(
        "GET",
        path("sessions", session, "samples"),
        lambda answer: fields.parts(answer.json(), "samples", sample),
        query=query(since=_time(since), until=_time(until)),
    )


def get_history(
    session: str | None = None, *, before: str | None = None, limit: int = 100
) -> Call[History]:
    """Return the newest events of a session, or of all, the oldest of them first; ``before`` is the
    id of one that they are to be older than. To follow events: ``events``."""
    where = path("events") if session is None else path("sessions", session, "events")
    return Call(
        "GET",
        where,
        _history,
        query=query(before=before or NEVER, limit=limit),
        headers={"accept": "text/event-stream"},
    )


def list_tokens() -> Call[tuple[Token, ...]]:
    """Return all tokens, without their secrets. For admins."""
    return Call("GET", path("tokens"), lambda answer: fields.parts(answer.json(), "tokens", token))


def create_token(name: str, role: str, *, lifetime_seconds: int | None = None) -> Call[NewToken]:
    """Make a token with the role viewer, approver, operator or admin, which ends after
    ``lifetime_seconds``, or never. For admins."""
    return Call(
        "POST",
        path("tokens"),
        _new_token,
        headers=JSON,
        content=document(name=name, role=role, lifetime_seconds=lifetime_seconds),
        repeat="unsent",
    )


def revoke_token(token: str) -> Call[None]:
    """End a token; who uses it is refused from now on, in the middle of a stream too. For
    admins."""
    return Call("DELETE", path("tokens", token), nothing, gone_is_done=True)


def health() -> Call[str]:
    """Return the server's word on its own health; it needs no token."""
    return Call("GET", "/healthz", lambda answer: fields.text(answer.json(), "status"))


def readiness() -> Call[str]:
    """Return ``ok`` once the server serves; raises :exc:`UnavailableError` while it starts."""
    return Call("GET", "/readyz", lambda answer: fields.text(answer.json(), "status"))


def back_up(*, freeze_running: bool = False) -> Call[None]:
    """Yield a backup of everything that the server keeps, as it is made; it is whole only with its
    trailer. ``freeze_running``: machines that run are frozen for it, and run on. For admins."""
    return Call(
        "POST",
        path("backup"),
        nothing,
        query=query(freeze_running=freeze_running),
        seconds=LONG,
        repeat="unsent",
    )


def metrics() -> Call[str]:
    """Return the server's metrics, in the text form of Prometheus."""
    return Call("GET", "/metrics", lambda answer: answer.body.decode())


def _history(answer: Answer) -> History:
    frames = Frames()
    found = [*frames.feed(answer.body), *frames.end()]
    events = tuple(event(frame.document()) for frame in found if frame.id)
    return History(events, more="has_more=true" in frames.comments)


def _new_token(answer: Answer) -> NewToken:
    said = answer.json()
    return NewToken(token(fields.part(said, "token")), fields.text(said, "bearer"))


def _time(at: datetime | None) -> str | None:
    if at is None:
        return None
    if at.tzinfo is None:
        raise ValueError("a time must have its zone")
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")
