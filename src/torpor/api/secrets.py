"""Secrets, which the wall puts into requests of sessions and no machine ever has."""

from typing import Annotated

from fastapi import Path, Response

from torpor.api.permissions import Permission, needs
from torpor.api.routes import SESSION, errors, router
from torpor.api.schemas.secrets import (
    GrantAsked,
    OneSecret,
    SecretAsked,
    SecretBody,
    SecretsAnswer,
)
from torpor.api.wiring import By, Service, SessionId
from torpor.sessions import NewSecret
from torpor.sessions.secrets import Secrets
from torpor.store.records import Secret

routes = router("secrets")

SECRET = "/secrets/{name}"  # noqa: S105 - a path
Name = Annotated[str, Path(max_length=64, description="The secret's name.")]


def _body(secrets: Secrets, secret: Secret) -> SecretBody:
    return SecretBody.of(secret, usable=secrets.usable(secret))


async def _one(secrets: Secrets, secret: Secret) -> OneSecret:
    sessions = await secrets.sessions_of(secret.name)
    return OneSecret(secret=_body(secrets, secret), session_ids=sessions)


@routes.put(SECRET, responses=errors(400, 409, 413, 415), summary="Set a secret")
@needs(Permission.SECRETS)
async def set_secret(service: Service, by: By, name: Name, body: SecretAsked) -> OneSecret:
    """Torpor: set a secret, or set it anew. Sessions that have it use the new value with their next
    request, also those that are paused now."""
    bindings = None
    if body.bindings is not None:
        bindings = [each.model_dump(exclude_none=True) for each in body.bindings]
    new = NewSecret(body.value.get_secret_value(), bindings)
    return await _one(service.secrets, await service.secrets.put(name, new, by))


@routes.get("/secrets", summary="List secrets")
@needs(Permission.READ)
async def list_secrets(service: Service) -> SecretsAnswer:
    """Torpor: list the secrets, by their names, without their values."""
    found = await service.secrets.all()
    return SecretsAnswer(secrets=[_body(service.secrets, each) for each in found])


@routes.get(SECRET, responses=errors(404), summary="Show a secret")
@needs(Permission.READ)
async def get_secret(service: Service, name: Name) -> OneSecret:
    """Torpor: show what a secret is for, and which sessions have it; not its value."""
    return await _one(service.secrets, await service.secrets.get(name))


@routes.delete(SECRET, status_code=204, responses=errors(404), summary="Remove a secret")
@needs(Permission.SECRETS)
async def remove_secret(service: Service, by: By, name: Name) -> Response:
    """Torpor: remove a secret, from all sessions that have it too."""
    await service.secrets.remove(name, by)
    return Response(status_code=204)


@routes.get(SESSION + "/secrets", responses=errors(404, 409), summary="List a session's secrets")
@needs(Permission.READ)
async def list_session_secrets(service: Service, session_id: SessionId) -> SecretsAnswer:
    """Torpor: list the secrets that requests of a session get."""
    found = await service.secrets.of_session(session_id)
    return SecretsAnswer(secrets=[_body(service.secrets, each) for each in found])


@routes.put(
    SESSION + SECRET,
    responses=errors(400, 404, 409, 413, 415),
    summary="Give a session a secret",
)
@needs(Permission.USE)
async def grant_secret(
    service: Service, by: By, session_id: SessionId, name: Name, body: GrantAsked
) -> SecretBody:
    """Torpor: have requests of a session get a secret, from the next one on. Its forks have it too.

    A session that may talk to every public host gets it only if that is said (`although_open`)."""
    granted = await service.secrets.grant(session_id, name, by, although_open=body.although_open)
    return _body(service.secrets, granted)


@routes.delete(
    SESSION + SECRET,
    status_code=204,
    responses=errors(404, 409),
    summary="Take a secret from a session",
)
@needs(Permission.USE)
async def revoke_secret(service: Service, by: By, session_id: SessionId, name: Name) -> Response:
    """Torpor: have requests of a session get a secret no more, from the next one on."""
    await service.secrets.revoke(session_id, name, by)
    return Response(status_code=204)
