"""Previews: where ports of sessions are reached in a browser, and links to them."""

from torpor.client import fields
from torpor.client.call import Call, document, keyed, nothing, path, query
from torpor.client.preview_records import Ingress, Preview, ingress, preview


def get_ingress(session: str, port: int = 8000) -> Call[Ingress]:
    """Return where a port of a session is reached. That wakes nothing."""
    return Call(
        "GET",
        path("sessions", session, "ingress"),
        lambda answer: ingress(fields.part(answer.json(), "ingress_url")),
        query=query(port=port),
    )


def create_preview(
    session: str,
    port: int,
    *,
    lifetime_seconds: int | None = None,
    label: str | None = None,
    key: str | None = None,
) -> Call[Preview]:
    """Make a link to a port of a session, good for ``lifetime_seconds`` (a day); return it, with
    what to give to somebody."""
    return Call(
        "POST",
        path("sessions", session, "previews"),
        lambda answer: preview(fields.part(answer.json(), "preview")),
        headers=keyed(key),
        content=document(port=port, expires_in_seconds=lifetime_seconds, label=label),
    )


def list_previews(session: str) -> Call[tuple[Preview, ...]]:
    """Return the links to ports of a session, the oldest first, those that are over too."""
    return Call(
        "GET",
        path("sessions", session, "previews"),
        lambda answer: fields.parts(answer.json(), "previews", preview),
    )


def revoke_preview(session: str, preview_id: str) -> Call[None]:
    """Make a link worthless from now on, and end what it has under way."""
    return Call("DELETE", path("sessions", session, "previews", preview_id), nothing)
