"""Configurations: kept manifests that sessions are made of. They never change."""

import asyncio
from typing import Annotated

from fastapi import Depends, Path, Query, Response

from torpor.api.bearers import Caller
from torpor.api.manifests import read_manifest
from torpor.api.permissions import Permission, needs
from torpor.api.routes import errors, router
from torpor.api.schemas.configs import (
    CloneBody,
    ConfigBody,
    ConfigPage,
    ConfigSummary,
    NewConfigBody,
    OneConfig,
)
from torpor.api.schemas.sessions import SessionPage
from torpor.api.sessions import (
    LARGEST_PAGE,
    PAGE,
    PageSize,
    PageToken,
    page_body,
    statuses_of,
)
from torpor.api.wiring import Asker, By, Idempotency, Service
from torpor.store import ConfigQuery, SessionQuery
from torpor.store.records import Config

routes = router("configs")

CONFIG = "/configs/{config_id}"
MANIFEST_LIMIT = 512 << 10
"""Bytes of the manifest of a configuration."""


async def _found(
    service: Service,
    config_id: Annotated[
        str,
        Path(max_length=64, description="The configuration's id. Torpor: its name will do."),
    ],
) -> Config:
    return await service.configs.find(config_id)


Found = Annotated[Config, Depends(_found)]
"""The configuration that the path names. Raises NotFoundError."""


def summary(config: Config) -> ConfigSummary:
    """Return a configuration as a list shows it."""
    return ConfigSummary(
        id=config.id,
        name=config.name,
        content_hash=config.content_hash,
        agentspec_schema_version=config.schema_version,
        created_by=config.created_by,
        created_at=config.created_at,
        updated_at=config.updated_at,
    )


def config_body(config: Config, caller: Caller) -> ConfigBody:
    """Return a configuration as it is shown to ``caller``."""
    manifest = config.manifest
    if not caller.may(Permission.USE):
        spec = {name: value for name, value in manifest["spec"].items() if name != "env"}
        manifest = {**manifest, "spec": spec}
    return ConfigBody(**summary(config).model_dump(), manifest=manifest, insights=config.insights)


@routes.post(
    "/configs",
    status_code=201,
    responses=errors(400, 404, 409, 413, 415, 503, 507),
    summary="Make a configuration",
)
@needs(Permission.USE)
async def create_config(
    service: Service, caller: Asker, key: Idempotency, body: NewConfigBody
) -> OneConfig:
    """Keep a manifest, so that sessions can be made of it by its id. It never changes: make another
    one in its place, and delete it.

    Values of variables that look like credentials are refused. Whether the image is there is looked
    at when a session is made.
    """
    from torpor.api.yaml_bodies import read_yaml

    # Its reader is slow, and others are waiting.
    document = await asyncio.to_thread(read_yaml, body.manifest_yaml.encode(), MANIFEST_LIMIT)
    made = await service.configs.create(
        body.name,
        read_manifest(document),
        caller.actor,
        insights=body.insights.model_dump(exclude_unset=True) if body.insights else None,
        key=key,
    )
    return OneConfig(config=config_body(made, caller))


@routes.get("/configs", responses=errors(400), summary="List configurations")
@needs(Permission.READ)
async def list_configs(
    service: Service,
    page_size: Annotated[
        int, Query(ge=1, le=LARGEST_PAGE, description="How many there may be at most.")
    ] = PAGE,
    page_token: PageToken = "",
    search: Annotated[
        str, Query(description="Only those with this in their names.", max_length=64)
    ] = "",
) -> ConfigPage:
    """List the configurations, the newest first, a page at a time. Those of sessions that brought
    their own manifest are not among them."""
    page = await service.configs.page(
        ConfigQuery(limit=page_size, after=page_token or None, search=search or None)
    )
    return ConfigPage(
        configs=[summary(each) for each in page.items], next_page_token=page.next_cursor or ""
    )


@routes.get(CONFIG, responses=errors(400, 404), summary="Show a configuration")
@needs(Permission.READ)
async def get_config(found: Found, caller: Asker) -> OneConfig:
    """Show a configuration and its manifest."""
    return OneConfig(config=config_body(found, caller))


@routes.delete(
    CONFIG, status_code=204, responses=errors(400, 404, 409), summary="Delete a configuration"
)
@needs(Permission.USE)
async def delete_config(service: Service, found: Found, by: By) -> Response:
    """Delete a configuration. That cannot be while a session that was made of it is neither
    destroyed nor failed."""
    await service.configs.delete(found.id, by)
    return Response(status_code=204)


@routes.post(
    CONFIG + "/clone",
    status_code=201,
    responses=errors(400, 404, 409, 413, 415, 503, 507),
    summary="Clone a configuration",
)
@needs(Permission.USE)
async def create_config_clone(
    service: Service, found: Found, caller: Asker, key: Idempotency, body: CloneBody
) -> OneConfig:
    """Keep the manifest of a configuration under another name too. What a session brought itself
    gets a name this way."""
    made = await service.configs.clone(found.id, body.name, caller.actor, key=key)
    return OneConfig(config=config_body(made, caller))


@routes.get(
    CONFIG + "/sessions", responses=errors(400, 404), summary="List the sessions of a configuration"
)
@needs(Permission.READ)
async def list_config_sessions(
    service: Service,
    found: Found,
    caller: Asker,
    page_size: PageSize = PAGE,
    page_token: PageToken = "",
    status: Annotated[
        str, Query(description="Only sessions of this status, as in the list of all.")
    ] = "",
) -> SessionPage:
    """List the sessions that were made of a configuration, and those forked from them, the newest
    first, a page at a time."""
    page = await service.page(
        SessionQuery(
            limit=PAGE if page_size < 1 else min(page_size, LARGEST_PAGE),
            after=page_token or None,
            statuses=statuses_of(status),
            config=found.id,
        )
    )
    return page_body(page, caller)
