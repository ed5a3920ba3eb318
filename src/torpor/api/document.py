"""The OpenAPI document of this API, and a page to read it."""

import html
from typing import Any

from fastapi import FastAPI, Response
from fastapi.dependencies.utils import get_flat_params
from fastapi.openapi.utils import get_openapi
from fastapi.params import Query
from fastapi.routing import APIWebSocketRoute
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse

from torpor.api.permissions import GRANTED, Permission, needs, needs_of
from torpor.api.requests import SIGNED
from torpor.api.routes import errors, open_router
from torpor.api.schemas.body import Error
from torpor.api.schemas.events import EventBody
from torpor.api.schemas.files import WatchEvent
from torpor.api.schemas.manifests import EnvelopeBody, NewSessionBody
from torpor.api.schemas.sessions import FromConfigBody

routes = open_router("server")

ABOUT = """\
Sessions are machines that can be frozen, thawed and forked with everything in mind.

The paths and bodies of sessions, checkpoints, forks, exec, sizes and events are those of
DigitalOcean's Managed Agents, so its clients work here by changing the endpoint. What begins with
`Torpor:` is Torpor's own. Whatever is not known, a key, a parameter or a path, is refused.
"""
APART: tuple[type, ...] = (
    NewSessionBody,
    FromConfigBody,
    EnvelopeBody,
    EventBody,
    WatchEvent,
)
"""Bodies that no route names by itself: read from YAML too, or the data of events."""


_FOREIGN = {"$ref": "#/components/schemas/HTTPValidationError"}
_TYPES: dict[object, str] = {int: "integer", bool: "boolean"}


def document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of ``app``; made once."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title,
            version=app.version,
            summary=app.summary,
            description=app.description,
            routes=app.routes,
            tags=app.openapi_tags,
            separate_input_output_schemas=False,
        )
        _add_schemas(made)
        _add_sockets(made, app)
        _add_security(made, app)
        app.openapi_schema = made
    return app.openapi_schema


def _add_schemas(made: dict[str, Any]) -> None:
    template = "#/components/schemas/{model}"
    _, found = models_json_schema(
        [(each, "validation") for each in (*APART, Error)], ref_template=template
    )
    schemas = made.setdefault("components", {}).setdefault("schemas", {})
    for name, schema in found["$defs"].items():
        schemas.setdefault(name, schema)
    # FastAPI's own way to say what is wrong, which is not ours.
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for path in made["paths"].values():
        for operation in path.values():
            said = operation["responses"].get("422", {}).get("content", {})
            if said.get("application/json", {}).get("schema") == _FOREIGN:
                del operation["responses"]["422"]


def _add_sockets(made: dict[str, Any], app: FastAPI) -> None:
    """Describe the WebSockets by the request that opens them: OpenAPI has no other way."""
    for route in app.routes:
        if not isinstance(route, APIWebSocketRoute):
            continue
        parameters = [
            {
                "name": each.alias,
                "in": "query" if isinstance(each.field_info, Query) else "path",
                "required": each.field_info.is_required(),
                "description": each.field_info.description or each.alias,
                "schema": {"type": _TYPES.get(each.field_info.annotation, "string")},
            }
            for each in get_flat_params(route.dependant)
        ]
        responses: dict[str, Any] = {"101": {"description": "The WebSocket is open."}}
        for status, described in errors(400, 401, 403, 404, 409, 429, 502, 503).items():
            responses[str(status)] = described
        text = (route.endpoint.__doc__ or "").strip()
        made["paths"].setdefault(route.path, {})["get"] = {
            "tags": ["websockets"],
            "summary": text.splitlines()[0],
            "description": text,
            "operationId": route.name,
            "parameters": parameters,
            "responses": responses,
        }


def _add_security(made: dict[str, Any], app: FastAPI) -> None:
    made["components"]["securitySchemes"] = {
        "bearer": {
            "type": "http",
            "scheme": "bearer",
            "bearerFormat": "torpor_<id>_<secret>",
            "description": "A token. A WebSocket may show it as the subprotocol"
            " `bearer.<token>` instead.",
        }
    }
    for route in app.routes:
        wanted = needs_of(route)
        if wanted is None:
            continue
        path = made["paths"][route.path]  # type: ignore[attr-defined]
        for method in getattr(route, "methods", None) or {"GET"}:
            operation = path[method.lower()]
            if wanted.permission is Permission.NONE or route.path.startswith(SIGNED):  # type: ignore[attr-defined]
                # What is signed is in the path: OpenAPI knows no such scheme.
                operation["security"] = []
                continue
            operation["security"] = [{"bearer": []}]
            roles = [role for role, may in GRANTED.items() if wanted.permission in may]
            operation["x-torpor-roles"] = roles


@routes.get("/openapi.json", summary="Read this document")
@needs(Permission.NONE)
async def get_document(request: Request) -> JSONResponse:
    """Torpor: read the OpenAPI document. Needs no token."""
    return JSONResponse(document(request.app))


@routes.get("/docs", response_class=Response, summary="Read about the routes")
@needs(Permission.NONE)
async def get_docs(request: Request) -> Response:
    """Torpor: read the OpenAPI document as a page: no script, and nothing from elsewhere. Needs no
    token."""
    return Response(
        page(document(request.app)),
        media_type="text/html",
        headers={"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"},
    )


_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "code,pre{font-family:ui-monospace,monospace}h3{margin-bottom:0}"
    ".method{display:inline-block;min-width:4.5em;font-weight:bold}table{border-spacing:1em 0}"
    "td{vertical-align:top}"
)


def page(made: dict[str, Any]) -> str:
    """Return the OpenAPI document as HTML."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        f"<title>{_text(made['info']['title'])}</title><style>{_STYLE}</style>",
        f"<h1>{_text(made['info']['title'])} {_text(made['info']['version'])}</h1>",
        _paragraphs(made["info"].get("description", "")),
        "<p>For programs: <a href=/openapi.json>openapi.json</a>.</p>",
    ]
    for path, methods in made["paths"].items():
        for method, operation in methods.items():
            parts.append(_operation(path, method, operation))
    return "\n".join(parts) + "</html>\n"


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    roles = ", ".join(operation.get("x-torpor-roles", ())) or "anybody"
    rows = [
        f"<tr><td><code>{_text(each['name'])}</code><td>{_text(each['in'])}"
        f"<td>{_text(each.get('description', ''))}</tr>"
        for each in operation.get("parameters", ())
    ]
    answers = ", ".join(operation["responses"])
    return (
        f"<h3 id={_text(operation['operationId'])}><span class=method>{_text(method.upper())}"
        f"</span><code>{_text(path)}</code></h3>"
        + _paragraphs(operation.get("description", ""))
        + (f"<table>{''.join(rows)}</table>" if rows else "")
        + f"<p>For: {_text(roles)}. Answers: {_text(answers)}.</p>"
    )


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{_text(each)}</p>" for each in text.split("\n\n") if each.strip())


def _text(text: str) -> str:
    return html.escape(text)
