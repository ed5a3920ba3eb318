"""Backups: everything that the server keeps, as one file."""

from typing import Annotated

from fastapi import Query, Response

from torpor.api.errors import refused
from torpor.api.permissions import Permission, needs
from torpor.api.routes import errors, router
from torpor.api.streaming import Stream, begun
from torpor.api.wiring import By, Server

routes = router("backup")

BACKUP = "application/vnd.torpor.backup"


@routes.post(
    "/backup",
    response_class=Response,
    responses={
        200: {
            "description": "The backup, as it is made. It is whole only with its trailer.",
            "content": {BACKUP: {"schema": {"type": "string", "format": "binary"}}},
        },
        **errors(400, 409, 507),
    },
    summary="Back up everything",
)
@needs(Permission.BACKUP, audit="server.backed_up")
async def back_up(
    server: Server,
    by: By,
    freeze_running: Annotated[
        bool,
        Query(
            description="Freeze each machine that runs for it, and let it run on; else what is"
            " newest of it is in the backup."
        ),
    ] = False,
) -> Response:
    """Torpor: back up all sessions with their snapshots, the tokens' hashes, events, and the named
    images, as they are at one moment, while everything goes on. `docs/reference.md` describes the
    file; `torpor restore` reads it."""
    if server.backups is None:
        raise refused(
            409,
            "no_backup",
            "This server cannot read the snapshots of its host.",
            todo="Back up where the machines run.",
        )
    pieces = server.backups.pieces(by, freeze_running=freeze_running)
    return Stream(await begun(pieces), BACKUP, closing=server.closing)
