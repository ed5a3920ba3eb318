"""Previews: where the ports of a session are reached in a browser, and links to them."""

from typing import Annotated

from fastapi import Path, Query, Response
from starlette.requests import Request

from torpor.api.errors import Problem, RefusedError
from torpor.api.permissions import Permission, needs
from torpor.api.preview.addresses import Addresses
from torpor.api.preview.links import link_token
from torpor.api.routes import SESSION, errors, router
from torpor.api.schemas.previews import (
    IngressAnswer,
    IngressUrl,
    NewPreview,
    PreviewAnswer,
    PreviewBody,
    PreviewsAnswer,
)
from torpor.api.wiring import Asker, Found, Idempotency, Server, SessionId, note
from torpor.sessions.standing import check_there

routes = router("previews")


def _addresses(server: Server) -> Addresses:
    if server.previews is None:
        raise RefusedError(
            Problem(
                501,
                "previews_off",
                "This server has no previews.",
                state="Nothing was done.",
                todo="Start it without `preview_listen` set to `off`; or forward the port.",
            )
        )
    return server.previews


@routes.get(
    SESSION + "/ingress", responses=errors(400, 404, 501), summary="Show where a port is reached"
)
@needs(Permission.READ)
async def get_ingress(
    server: Server,
    session: Found,
    port: Annotated[
        int, Query(ge=1, le=65535, description="Torpor: a port of the machine's loopback.")
    ] = 8000,
) -> IngressAnswer:
    """Show the URL at which a browser reaches a port of a session. Who opens it shows a token, or
    comes by a link; that wakes the session, and asking for it here does not."""
    addresses = _addresses(server)
    check_there(session)
    return IngressAnswer(
        ingress_url=IngressUrl(
            ingress_url_id=f"{session.id}-{port}",
            session_id=session.id,
            port=port,
            state="INGRESS_URL_STATE_READY",
            url=addresses.url(session.id, port),
            path_url=addresses.path_url(session.id, port),
            created_at=session.created_at,
        )
    )


@routes.post(
    SESSION + "/previews",
    status_code=201,
    responses=errors(400, 404, 409, 415, 501, 507),
    summary="Share a port by a link",
)
@needs(Permission.USE)
async def create_preview(
    request: Request,
    server: Server,
    session_id: SessionId,
    caller: Asker,
    key: Idempotency,
    body: NewPreview,
) -> PreviewAnswer:
    """Torpor: make a link to a port of a session. Whoever has it may use what listens there, until
    it is over or revoked, or the token that made it is."""
    addresses = _addresses(server)
    note(request, port=body.port)
    link = await server.sessions.previews.share(
        session_id,
        body.port,
        caller.actor,
        seconds=body.expires_in_seconds,
        label=body.label,
        key=key,
    )
    url = addresses.link_url(link.session, link.port, link_token(server.signer, link, caller))
    return PreviewAnswer(preview=PreviewBody.of(link, addresses, url))


@routes.get(SESSION + "/previews", responses=errors(404, 501), summary="List links")
@needs(Permission.READ)
async def list_previews(server: Server, session_id: SessionId) -> PreviewsAnswer:
    """Torpor: list the links to ports of a session, those that are over too, without what would
    let one use them."""
    addresses = _addresses(server)
    found = await server.sessions.previews.of_session(session_id)
    return PreviewsAnswer(previews=[PreviewBody.of(each, addresses) for each in found])


@routes.delete(
    SESSION + "/previews/{preview_id}",
    status_code=204,
    responses=errors(404, 507),
    summary="Revoke a link",
)
@needs(Permission.USE)
async def revoke_preview(
    request: Request,
    server: Server,
    session_id: SessionId,
    caller: Asker,
    preview_id: Annotated[str, Path(description="The link's id.", max_length=64)],
) -> Response:
    """Torpor: make a link worthless from now on, and end what it has under way."""
    note(request, preview=preview_id)
    await server.sessions.previews.revoke(session_id, preview_id, caller.actor)
    return Response(status_code=204)
