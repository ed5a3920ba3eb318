"""Secrets, which the wall puts into requests of sessions."""

from collections.abc import Iterable, Mapping
from typing import Any

from torpor.client import fields
from torpor.client.call import JSON, Answer, Call, document, nothing, path
from torpor.client.secret_records import Secret, secret


def set_secret(
    name: str, value: str, *, bindings: Iterable[Mapping[str, Any]] | None = None
) -> Call[Secret]:
    """Set a secret, or set it anew; without ``bindings`` it is used for what it was before. For
    admins."""
    said = None if bindings is None else [dict(each) for each in bindings]
    content = document(value=value, bindings=said)
    return Call("PUT", path("secrets", name), _one, headers=JSON, content=content)


def list_secrets() -> Call[list[Secret]]:
    """Return all secrets, by their names, without their values."""
    return Call("GET", path("secrets"), _all)


def get_secret(name: str) -> Call[Secret]:
    """Return a secret, without its value, and which sessions have it."""
    return Call("GET", path("secrets", name), _one)


def remove_secret(name: str) -> Call[None]:
    """Remove a secret, from all sessions that have it too. For admins."""
    return Call("DELETE", path("secrets", name), nothing, gone_is_done=True)


def list_session_secrets(session: str) -> Call[list[Secret]]:
    """Return the secrets that requests of a session get."""
    return Call("GET", path("sessions", session, "secrets"), _all)


def grant_secret(session: str, name: str, *, although_open: bool = False) -> Call[Secret]:
    """Have requests of a session get a secret; ``although_open``: also if it may talk to every
    public host."""
    content = document(although_open=although_open)
    return Call(
        "PUT", path("sessions", session, "secrets", name), _bare, headers=JSON, content=content
    )


def revoke_secret(session: str, name: str) -> Call[None]:
    """Have requests of a session get a secret no more."""
    where = path("sessions", session, "secrets", name)
    return Call("DELETE", where, nothing, gone_is_done=True)


def _one(answer: Answer) -> Secret:
    said = answer.json()
    sessions = tuple(str(each) for each in said.get("session_ids", ()))
    return secret(fields.part(said, "secret"), sessions)


def _bare(answer: Answer) -> Secret:
    return secret(answer.json())


def _all(answer: Answer) -> list[Secret]:
    return list(fields.parts(answer.json(), "secrets", secret))
