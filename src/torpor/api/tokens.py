"""Tokens: made, listed and revoked; and who one is."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Path, Response
from starlette.requests import Request

from torpor.api.bearers import Bearers
from torpor.api.errors import refused
from torpor.api.permissions import GRANTED, Permission, needs
from torpor.api.routes import errors, router
from torpor.api.schemas.tokens import MadeToken, NewToken, TokenBody, Tokens, WhoAmI
from torpor.api.wiring import Asker, Server, note

routes = router("tokens")


def _bearers(server: Server) -> Bearers:
    if server.bearers is None:
        raise refused(
            409,
            "no_authentication",
            "This server asks for no tokens.",
            todo='Start it with authentication = "tokens".',
        )
    return server.bearers


@routes.get("/whoami", summary="Show who one is")
@needs(Permission.READ)
async def whoami(caller: Asker) -> WhoAmI:
    """Torpor: show whose token this is, and what it may do."""
    return WhoAmI(
        id=caller.actor.id,
        name=caller.actor.name,
        role=caller.role,
        permissions=sorted(GRANTED[caller.role]),
    )


@routes.get("/tokens", responses=errors(409), summary="List tokens")
@needs(Permission.TOKENS)
async def list_tokens(server: Server) -> Tokens:
    """Torpor: list all tokens, those that are worthless too."""
    return Tokens(tokens=[TokenBody.of(each) for each in _bearers(server).list()])


@routes.post(
    "/tokens",
    responses=errors(400, 409, 415, 507),
    summary="Make a token",
)
@needs(Permission.TOKENS, audit="token.created")
async def create_token(request: Request, server: Server, body: NewToken) -> MadeToken:
    """Torpor: make a token. The answer has what its owner is to show, and nobody can read that
    again."""
    expires_at = None
    if body.lifetime_seconds is not None:
        expires_at = datetime.now(UTC) + timedelta(seconds=body.lifetime_seconds)
    token, bearer = await _bearers(server).make(body.name, body.role, expires_at)
    note(request, token_id=token.id, name=token.name, role=token.role)
    return MadeToken(token=TokenBody.of(token), bearer=bearer)


@routes.delete(
    "/tokens/{token_id}", status_code=204, responses=errors(404, 409), summary="Revoke a token"
)
@needs(Permission.TOKENS, audit="token.revoked")
async def revoke_token(
    request: Request,
    server: Server,
    token_id: Annotated[str, Path(description="The token's id.", max_length=64)],
) -> Response:
    """Torpor: make a token worthless from now on. It stays in the list."""
    note(request, token_id=token_id)
    if await _bearers(server).revoke(token_id) is None:
        raise refused(404, "not_found", f"There is no token {token_id!r}.")
    return Response(status_code=204)
