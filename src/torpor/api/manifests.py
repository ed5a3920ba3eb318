"""Manifests in requests: read from YAML or JSON, in either format."""

from typing import Any

from starlette.requests import Request

from torpor.api.bodies import (
    JSON_TYPES,
    YAML_TYPES,
    Document,
    check_body,
    media_type,
    read_json,
    unsupported,
    wrong,
)
from torpor.api.schemas.manifests import EnvelopeBody, NewSessionBody
from torpor.sessions.model import NewSession

_EXAMPLE = "name: build-7\nsize: mars-2vcpu-1gb\nenv:\n  LANG: C.UTF-8\nidle_timeout: 15m\n"


def described_body(*schemas: str) -> dict[str, Any]:
    """Return how the OpenAPI document describes a body that may be YAML, by the names of the
    schemas that it may have."""
    either = [{"$ref": f"#/components/schemas/{each}"} for each in schemas]
    content = {
        "application/json": {
            "schema": {"anyOf": either},
            "example": {"name": "build-7", "labels": {"team": "search"}},
        },
        **{each: {"schema": {"type": "string"}, "example": _EXAMPLE} for each in YAML_TYPES},
    }
    return {"requestBody": {"required": False, "content": content}}


async def read_document(request: Request) -> Document:
    """Return what the body of a request says; an empty one says nothing. Raises
    :exc:`RefusedError`."""
    data = await request.body()
    said = request.headers.get("content-type")
    kind = media_type(said)
    if kind in YAML_TYPES:
        from torpor.api.yaml_bodies import read_yaml

        document = read_yaml(data)
    elif kind in JSON_TYPES:
        document = Document(read_json(data) if data else {})
        if document.value is None:  # what is left out in YAML has no value; here it was said
            raise wrong("the body is null, and not an object")
    elif not data:
        document = Document({})
    else:
        raise unsupported(said or "", (*JSON_TYPES, YAML_TYPES[0]))
    return document


def is_older(document: Document) -> bool:
    """Return whether a manifest is in the older format, with ``apiVersion``."""
    return isinstance(document.value, dict) and "apiVersion" in document.value


def read_manifest(document: Document) -> NewSession:
    """Return what a manifest asks for: in the older format if it has the key ``apiVersion``.
    Raises :exc:`RefusedError`, which names the line."""
    said = document if document.value is not None else Document({})
    body = check_body(EnvelopeBody if is_older(said) else NewSessionBody, said)
    asked = body.new()
    assert isinstance(asked, NewSession)
    return asked
