"""Whether the server is there, and whether it can serve."""

import asyncio

from torpor.api.errors import refused
from torpor.api.permissions import Permission, needs
from torpor.api.routes import errors, open_router
from torpor.api.schemas.health import Health
from torpor.api.wiring import Server

routes = open_router("server")

READY_SECONDS = 5.0


@routes.get("/healthz", summary="Ask whether the server is there")
@needs(Permission.NONE)
async def healthz() -> Health:
    """Torpor: answer if the server is there. Needs no token."""
    return Health(status="ok")


@routes.get("/readyz", responses=errors(503), summary="Ask whether the server can serve")
@needs(Permission.NONE)
async def readyz(server: Server) -> Health:
    """Torpor: answer if the server can serve: it is not about to stop, and its database answers.
    Needs no token."""
    if server.closing.is_set():
        raise refused(503, "stopping", "The server is about to stop.")
    try:
        async with asyncio.timeout(READY_SECONDS):
            await server.sessions.counts()
    except TimeoutError:
        raise refused(
            503, "database_unable", f"The database did not answer within {READY_SECONDS:.0f} s."
        ) from None
    return Health(status="ok")
