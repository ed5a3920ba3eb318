"""What each role may do, and how a route says what it takes."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from torpor.store.records import Role

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class Permission(StrEnum):
    """What a request may need."""

    NONE = "none"
    """Nothing, not even a token: what is said is nobody's."""
    READ = "read"
    """See sessions, checkpoints, events, the host, and figures."""
    USE = "use"
    """Change sessions, and do things in their machines."""
    TOKENS = "tokens"
    """See, make and revoke tokens."""
    SECRETS = "secrets"
    """Set and remove secrets. To give them to sessions is to use those."""
    BACKUP = "backup"
    """Take everything away: sessions with their memory, images, and the hashes of tokens."""


_VIEWER = frozenset({Permission.READ})
_OPERATOR = _VIEWER | {Permission.USE}
GRANTED: dict[Role, frozenset[Permission]] = {
    "viewer": _VIEWER,
    "approver": _VIEWER,
    "operator": _OPERATOR,
    "admin": _OPERATOR | {Permission.TOKENS, Permission.SECRETS, Permission.BACKUP},
}


@dataclass(frozen=True)
class Needs:
    """What a route takes to be used.

    ``audit`` is the type of the event that tells of each use; None for what changes nothing, and
    for what the sessions themselves tell of. ``body_limit`` is how many bytes a request may bring;
    None if it is read as it comes and may be of any size.
    """

    permission: Permission
    audit: str | None = None
    body_limit: int | None = 1 << 20


def needs(
    permission: Permission, *, audit: str | None = None, body_limit: int | None = 1 << 20
) -> Callable[[Endpoint], Endpoint]:
    """Declare what a route takes; every route must be declared so."""

    def declare(endpoint: Endpoint) -> Endpoint:
        endpoint.torpor_needs = Needs(permission, audit, body_limit)  # type: ignore[attr-defined]
        return endpoint

    return declare


def needs_of(route: object) -> Needs | None:
    """Return what a route has declared, None if it has not."""
    return declared(getattr(route, "endpoint", None))


def declared(endpoint: object) -> Needs | None:
    """Return what the function of a route has declared, None if it has not."""
    found = getattr(endpoint, "torpor_needs", None)
    return found if isinstance(found, Needs) else None
