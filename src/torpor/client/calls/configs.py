"""Configurations, and the sessions that were made of them."""

from torpor.client import fields
from torpor.client.call import Answer, Call, document, keyed, nothing, path, query
from torpor.client.calls.sessions import page_of_sessions
from torpor.client.config_records import Config, config
from torpor.client.fields import Said
from torpor.client.records import STATUS_PREFIX, Page, Session


def create_config(name: str, manifest: str | bytes, *, key: str | None = None) -> Call[Config]:
    """Keep a manifest in YAML, the one that sessions are made of, under a name. It never changes.

    Raises :exc:`ConflictError` if another configuration has the name, :exc:`InvalidError` if the
    manifest asks for what cannot be had.
    """
    text = manifest if isinstance(manifest, str) else manifest.decode()
    return Call(
        "POST",
        path("configs"),
        _one,
        headers=keyed(key),
        content=document(name=name, manifest_yaml=text),
    )


def list_configs(
    *, search: str | None = None, limit: int | None = None, after: str | None = None
) -> Call[Page[Config]]:
    """Return configurations, the newest first, without their manifests, at most 200 at once:
    :attr:`Page.next` is the ``after`` of the following page. ``search`` is looked for in names."""
    return Call(
        "GET",
        path("configs"),
        lambda answer: _page(answer.json()),
        query=query(search=search, page_size=limit, page_token=after),
    )


def get_config(config: str) -> Call[Config]:
    """Return one configuration, by its id or its name."""
    return Call("GET", path("configs", config), _one)


def clone_config(config: str, name: str, *, key: str | None = None) -> Call[Config]:
    """Keep the manifest of a configuration under another name too. Raises :exc:`ConflictError` if
    that is taken."""
    return Call(
        "POST",
        path("configs", config, "clone"),
        _one,
        headers=keyed(key),
        content=document(name=name),
    )


def delete_config(config: str) -> Call[None]:
    """Delete a configuration. Raises :exc:`ConflictError` while a session that was made of it is
    neither destroyed nor failed."""
    return Call("DELETE", path("configs", config), nothing, gone_is_done=True)


def list_config_sessions(
    config: str,
    *,
    status: str | None = None,
    limit: int | None = None,
    after: str | None = None,
) -> Call[Page[Session]]:
    """Return the sessions that were made of a configuration, as :func:`list_sessions` does."""
    return Call(
        "GET",
        path("configs", config, "sessions"),
        lambda answer: page_of_sessions(answer.json()),
        query=query(
            status=None if status is None else STATUS_PREFIX + status.upper(),
            page_size=limit,
            page_token=after,
        ),
    )


def _one(answer: Answer) -> Config:
    return config(fields.part(answer.json(), "config"))


def _page(said: Said) -> Page[Config]:
    return Page(fields.parts(said, "configs", config), fields.perhaps_text(said, "next_page_token"))
