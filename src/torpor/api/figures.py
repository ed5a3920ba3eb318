"""The page that Prometheus reads."""

from fastapi import Response
from prometheus_client import CONTENT_TYPE_LATEST

from torpor.api.permissions import Permission, needs
from torpor.api.routes import router
from torpor.api.wiring import Server

routes = router("server", prefix="")


@routes.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {
            "description": "Prometheus's text format.",
            "content": {
                "text/plain": {
                    "schema": {"type": "string"},
                    "example": 'torpor_sessions{status="READY"} 2.0\n',
                }
            },
        }
    },
    summary="Read figures for Prometheus",
)
@needs(Permission.READ)
async def get_metrics(server: Server) -> Response:
    """Torpor: read what is counted and measured of this server."""
    facts = await server.sessions.host()
    server.metrics.state(
        await server.sessions.counts(),
        free_memory=facts.free_memory,
        promised_free=server.sessions.free_memory(),
        free_disk=facts.free_disk,
        stored=facts.stored,
    )
    return Response(server.metrics.page(), headers={"content-type": CONTENT_TYPE_LATEST})
