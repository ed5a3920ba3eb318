"""Logs of builds of templates, at URLs that need no token."""

from typing import Annotated

from fastapi import Path, Response

from torpor.api.permissions import Permission, needs
from torpor.api.routes import errors, router
from torpor.api.schemas.body import rfc3339
from torpor.api.signing import Signed
from torpor.api.wiring import Service, signed
from torpor.store.records import Line

LOG = "template.log"
"""What the URL of a log is signed for; it claims a ``template`` and a ``build``."""
LOG_ENDING = "/log"

routes = router("templates")


@routes.get(
    "/signed/{text}" + LOG_ENDING,
    response_class=Response,
    responses={
        200: {
            "description": "The log: each line is a time and what was told then.",
            "content": {
                "text/plain": {
                    "schema": {"type": "string"},
                    "example": "2026-05-04T08:05:42Z begun: registry.example.com/team/tools:1.4\n",
                }
            },
        },
        **errors(404),
    },
    summary="Read the log of a build",
)
@needs(Permission.USE)
async def read_template_build_log(
    service: Service,
    allowed: Annotated[Signed, signed(LOG)],
    text: Annotated[str, Path(description="What was signed.", max_length=4096)],
) -> Response:
    """Read the log of a build of a template, at a URL that needs no token."""
    lines = await service.templates.log(allowed.claims["template"], allowed.claims["build"])
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
    return Response(_log(lines), media_type="text/plain; charset=utf-8", headers=headers)


def _log(lines: list[Line]) -> str:
    told = "".join(f"{rfc3339(each.at)} {each.text}\n" for each in lines)
    dropped = lines[0].number - 1 if lines else 0
    return f"({dropped} older lines are not kept)\n{told}" if dropped else told
