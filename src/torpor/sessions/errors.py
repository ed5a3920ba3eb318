"""What can go wrong with sessions.

Each error says what happened, what state things are in now, and what to do, in this order.
"""

from collections.abc import Mapping
from typing import Any

from torpor.store.records import HostRow
from torpor.vm import VmError, disk_is_full


class SessionError(Exception):
    """The root of this package's errors. ``code`` is a word for programs, ``facts`` plain data
    that says more of it."""

    code = "session_error"

    def __init__(
        self, happened: str, *, state: str = "", todo: str = "", code: str = "", **facts: Any
    ) -> None:
        super().__init__(" ".join(part for part in (happened, state, todo) if part))
        self.happened = happened
        self.state = state
        self.todo = todo
        self.code = code or type(self).code
        self.facts = facts

    def plain(self) -> dict[str, Any]:
        """Return it as plain data, of which :func:`error_of` makes it again."""
        return {
            "kind": type(self).__name__,
            "happened": self.happened,
            "state": self.state,
            "todo": self.todo,
            "code": self.code,
            "facts": self.facts,
        }


class NotFoundError(SessionError):
    """There is no such session, checkpoint or command."""

    code = "not_found"


class InvalidError(SessionError):
    """What was asked for cannot be."""

    code = "bad_request"


class TooLargeError(InvalidError):
    """It is larger than it may be."""

    code = "too_large"


class ConflictError(SessionError):
    """It cannot be in the state that the session is in."""

    code = "conflict"


class KeyReusedError(ConflictError):
    """An idempotency key belongs to another request."""


class NoRoomError(SessionError):
    """There is not enough memory or disk now. ``facts`` has what was needed and what is free, in
    bytes."""

    code = "no_room"


class FailedError(SessionError):
    """It was tried and did not come about; the state says what is left."""

    code = "failed"


class NoSpaceError(FailedError):
    """It was tried and did not come about because the host's disk is full."""

    code = "no_space"


class DestroyedError(NotFoundError):
    """The session has been destroyed, or is being."""

    code = "destroyed"


def _kinds(kind: type[SessionError]) -> dict[str, type[SessionError]]:
    """Return a kind of error and all below it, by their names."""
    found = {kind.__name__: kind}
    for each in kind.__subclasses__():
        found |= _kinds(each)
    return found


_KINDS: Mapping[str, type[SessionError]] = _kinds(SessionError)


def error_of(said: Mapping[str, Any]) -> SessionError:
    """Return the error that :meth:`SessionError.plain` has told of."""
    kind = _KINDS.get(said["kind"], SessionError)
    return kind(
        said["happened"],
        state=said["state"],
        todo=said["todo"],
        code=said["code"],
        **said["facts"],
    )


def failed(cause: Exception, what: str, *, state: str) -> FailedError:
    """Return the error for ``what`` did not come about because of ``cause``; without a ``state`` it
    is that which the cause tells."""
    kind = NoSpaceError if disk_is_full(cause) else FailedError
    if isinstance(cause, VmError):
        return kind(f"{what}: {cause.happened}", state=state or cause.state, todo=cause.todo)
    return kind(f"{what}: {cause}", state=state)


def elsewhere(what: str, of: str | None, host: HostRow | None) -> ConflictError:
    """Return the error for ``what`` is on the host of id ``of``, which another server has; ``host``
    is what is known of it."""
    name, url = (host.name, host.url) if host is not None else (of, None)
    return ConflictError(
        f"{what} is on the host {name}, which is another server's.",
        state="Nothing was changed.",
        todo=f"Ask that one, at {url}." if url else "Start a server on that host, and ask it.",
        code="on_another_host",
        host=of,
        url=url,
    )
