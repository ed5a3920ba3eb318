"""Sessions and their states: create, list, change, pause, resume, destroy."""

from collections.abc import Mapping, Sequence
from typing import Any

from torpor.client import fields
from torpor.client.call import (
    JSON,
    LONG,
    Answer,
    Call,
    document,
    keyed,
    nothing,
    path,
    query,
)
from torpor.client.egress_records import Policy, written
from torpor.client.fields import Said
from torpor.client.records import STATUS_PREFIX, Page, Session, session


def create_session(
    name: str | None = None,
    *,
    image: str | None = None,
    template: str | None = None,
    size: str | None = None,
    env: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    idle_timeout: int | None = None,
    keep_warm: bool | None = None,
    workspace: str | None = None,
    persistent_workspace: bool | None = None,
    egress: Policy | Sequence[str] | None = None,
    wait: bool = False,
    key: str | None = None,
) -> Call[Session]:
    """Create a session. It is PROVISIONING at first; ``wait`` returns once it is READY.

    It starts from an ``image``, or from a ``template``: its id or its name. ``env`` is in the
    environment of all its commands; ``idle_timeout`` is in seconds, 0 never. ``workspace`` is one
    that it is to have: its id or its name; with ``persistent_workspace`` one is made for it, which
    outlives it. ``egress`` is what its machine may reach: ``unrestricted``, ``none``, a list of
    rules, or an object with more. Raises :exc:`ConflictError` if a live session has the name,
    nothing of the template was built, another session has the workspace, or the host cannot keep a
    machine to the policy, :exc:`UnavailableError` if there is no room for its machine.
    """
    return _created(
        document(
            name=name,
            image=image,
            template=template,
            size=size,
            env=None if env is None else dict(env),
            labels=None if labels is None else dict(labels),
            metadata=None if metadata is None else dict(metadata),
            idle_timeout=idle_timeout,
            keep_warm=keep_warm,
            workspace_id=workspace,
            persistent_workspace=persistent_workspace,
            egress=None if egress is None else written(egress),
        ),
        keyed(key),
        wait,
    )


def create_session_from_manifest(
    manifest: str | bytes, *, wait: bool = False, key: str | None = None
) -> Call[Session]:
    """Create a session from a manifest in YAML, which has the same names as
    :func:`create_session`."""
    content = manifest.encode() if isinstance(manifest, str) else manifest
    return _created(content, keyed(key) | {"content-type": "application/yaml"}, wait)


def create_session_from_config(
    name: str,
    config: str,
    *,
    workspace: str | None = None,
    wait: bool = False,
    key: str | None = None,
) -> Call[Session]:
    """Create a session as a configuration says, which is named by its id or its name; else as
    :func:`create_session`."""
    content = document(name=name, config_id=config, workspace_id=workspace)
    return _created(content, keyed(key), wait)


def _created(content: bytes, headers: dict[str, str], wait: bool) -> Call[Session]:
    return Call(
        "POST",
        path("sessions"),
        _created_session,
        query=query(wait="ready" if wait else None),
        headers=headers,
        content=content,
        seconds=LONG,
    )


def _created_session(answer: Answer) -> Session:
    said = answer.json()
    found = dict(fields.part(said, "session"))
    if "warnings" in said:  # beside the session in the answer
        found["warnings"] = said["warnings"]
    return session(found)


def list_sessions(
    *,
    status: str | None = None,
    name: str | None = None,
    search: str | None = None,
    labels: Mapping[str, str] | None = None,
    limit: int | None = None,
    after: str | None = None,
) -> Call[Page[Session]]:
    """Return sessions, the newest first, at most 200 at once: :attr:`Page.next` is the ``after`` of
    the following page.

    Those that are DESTROYED or FAILED are left out unless ``status`` asks for them: one state, or
    ``ALL``. ``search`` is looked for in names; ``labels`` must all be there.
    """
    return Call(
        "GET",
        path("sessions"),
        lambda answer: page_of_sessions(answer.json()),
        query=(
            *query(
                status=None if status is None else STATUS_PREFIX + status.upper(),
                name=name,
                search=search,
                page_size=limit,
                page_token=after,
            ),
            *(("label", f"{label}={value}") for label, value in (labels or {}).items()),
        ),
    )


def page_of_sessions(said: Said) -> Page[Session]:
    """Read a page of sessions."""
    return Page(
        fields.parts(said, "sessions", session), fields.perhaps_text(said, "next_page_token")
    )


def get_session(session: str) -> Call[Session]:
    """Return one session, by its id, the name of a live one, or a beginning of the id (4 or more
    characters) that no other has."""
    return Call("GET", path("sessions", session), _one)


def update_session(
    session: str,
    *,
    name: str | None = None,
    idle_timeout: int | None = None,
    keep_warm: bool | None = None,
    labels: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    egress: Policy | Sequence[str] | None = None,
) -> Call[Session]:
    """Change what is given of a session; labels, metadata and ``egress`` are replaced as a whole.
    That holds at once, and what it does not allow is cut."""
    return Call(
        "PATCH",
        path("sessions", session),
        _one,
        headers=JSON,
        content=document(
            name=name,
            idle_timeout=idle_timeout,
            keep_warm=keep_warm,
            labels=None if labels is None else dict(labels),
            metadata=None if metadata is None else dict(metadata),
            egress=None if egress is None else written(egress),
        ),
    )


def destroy_session(session: str) -> Call[None]:
    """Remove a session, its machine and its snapshots, for good. It needs no living machine."""
    return Call("DELETE", path("sessions", session), nothing, seconds=LONG, gone_is_done=True)


def pause_session(session: str, *, durable: bool = False, key: str | None = None) -> Call[None]:
    """Freeze a session and stop its machine; one that is paused stays so. ``durable`` returns only
    when a power cut could not undo it."""
    return Call(
        "POST",
        path("sessions", session, "pause"),
        nothing,
        query=query(durable=durable),
        headers=keyed(key),
        seconds=LONG,
    )


def resume_session(
    session: str, *, snapshot: str | None = None, key: str | None = None
) -> Call[None]:
    """Thaw a session where it stood; one that runs runs on. ``snapshot`` is the explicit word for
    an older one than the newest: what came after it is given up."""
    return Call(
        "POST",
        path("sessions", session, "resume"),
        nothing,
        headers=keyed(key),
        content=document(snapshot_id=snapshot),
        seconds=LONG,
    )


def _one(answer: Answer) -> Session:
    return session(fields.part(answer.json(), "session"))
