"""Templates: images of one's own, built of what a registry has, for sessions to start from."""

from typing import Annotated

from fastapi import Path
from starlette.requests import Request

from torpor.api.bearers import Caller
from torpor.api.permissions import Permission, needs
from torpor.api.public import absolute
from torpor.api.routes import errors, router
from torpor.api.schemas.templates import (
    BuildBody,
    BuildPage,
    ImageBody,
    LogUrl,
    NewTemplateBody,
    OneBuild,
    OneTemplate,
    SpecBody,
    TemplateBody,
    TemplateChangesBody,
    TemplateDeleted,
    TemplatePage,
)
from torpor.api.sessions import LARGEST_PAGE, PAGE, PageSize, PageToken
from torpor.api.template_logs import LOG, LOG_ENDING
from torpor.api.wiring import Asker, By, Idempotency, Server, Service
from torpor.images.references import read_reference
from torpor.sessions.template_model import NewTemplate, TemplateChanges
from torpor.store.records import Build, Template

routes = router("templates")

TEMPLATE = "/templates/{template_id}"
BUILD = TEMPLATE + "/builds/{build_id}"
PREFIX = "TEMPLATE_STATUS_"
LOG_SECONDS = 900.0
"""How long the URL of a log is good for."""

TemplateId = Annotated[
    str, Path(max_length=64, description="The template's id. Torpor: its name will do.")
]
BuildId = Annotated[str, Path(max_length=64, description="The build's id.")]


def template_body(row: Template) -> TemplateBody:
    """Return a template as it is shown."""
    return TemplateBody(
        template_id=row.id,
        name=row.name,
        status=PREFIX + row.status,
        created_at=row.created_at,
        updated_at=row.updated_at,
        spec=_spec(row.base, row.source, None),
        current_build_id=row.current_build,
    )


def build_body(row: Build, template: Template, caller: Caller) -> BuildBody:
    """Return a build as it is shown to ``caller``."""
    return BuildBody(
        build_id=row.id,
        template_id=row.template,
        name=template.name,
        status=row.status,
        error=row.error if caller.may(Permission.USE) else None,
        created_at=row.created_at,
        updated_at=row.updated_at,
        spec=_spec(row.base, row.source, row.manifest),
        image=row.image if row.status == "SUCCEEDED" else None,
    )


def _spec(base: str, source: str, manifest: str | None) -> SpecBody:
    reference = read_reference(source)
    return SpecBody(
        base_template=base,
        image=ImageBody(
            registry=reference.registry,
            repository=reference.repository,
            tag=reference.tag,
            digest=manifest or reference.digest,
        ),
    )


@routes.get("/templates", responses=errors(400), summary="List templates")
@needs(Permission.READ)
async def list_templates(
    service: Service, page_size: PageSize = PAGE, page_token: PageToken = ""
) -> TemplatePage:
    """List the templates, the newest first, a page at a time."""
    page = await service.templates.page(_limit(page_size), page_token or None)
    return TemplatePage(
        templates=[template_body(each) for each in page.items],
        next_page_token=page.next_cursor or "",
    )


@routes.post(
    "/templates",
    status_code=201,
    responses=errors(400, 404, 409, 413, 415, 507),
    summary="Make a template",
)
@needs(Permission.USE)
async def create_template(
    service: Service, by: By, key: Idempotency, body: NewTemplateBody
) -> OneTemplate:
    """Make a template, and begin to build it: its image is fetched, made a disk of, and booted
    once. Builds are made one after the other; `template.build_...` events tell of them."""
    new = NewTemplate(body.name, body.base_template, body.source_oci_ref)
    return OneTemplate(template=template_body(await service.templates.create(new, by, key=key)))


@routes.get(TEMPLATE, responses=errors(404), summary="Show a template")
@needs(Permission.READ)
async def get_template(service: Service, template_id: TemplateId) -> OneTemplate:
    """Show a template: what it is built of, and how far that is."""
    return OneTemplate(template=template_body(await service.templates.get(template_id)))


@routes.put(TEMPLATE, responses=errors(400, 404, 409, 413, 415, 507), summary="Update a template")
@needs(Permission.USE)
async def update_template(
    service: Service, by: By, key: Idempotency, template_id: TemplateId, body: TemplateChangesBody
) -> OneTemplate:
    """Change what a template is built of, and build it. Until that has succeeded, sessions start
    from what was built last; those that there are stay as they are."""
    changes = TemplateChanges(body.base_template, body.source_oci_ref)
    row = await service.templates.update(template_id, changes, by, key=key)
    return OneTemplate(template=template_body(row))


@routes.delete(TEMPLATE, responses=errors(404, 507), summary="Delete a template")
@needs(Permission.USE)
async def delete_template(service: Service, by: By, template_id: TemplateId) -> TemplateDeleted:
    """Delete a template, with its images; what is being built of it is left off. Sessions that
    were started from it live on."""
    row = await service.templates.delete(template_id, by)
    return TemplateDeleted(template_id=row.id, deleted=True)


@routes.get(TEMPLATE + "/builds", responses=errors(400, 404), summary="List builds of a template")
@needs(Permission.READ)
async def list_template_builds(
    service: Service,
    caller: Asker,
    template_id: TemplateId,
    page_size: PageSize = PAGE,
    page_token: PageToken = "",
) -> BuildPage:
    """List the builds of a template, the newest first, a page at a time."""
    limit = _limit(page_size)
    template, page = await service.templates.builds(template_id, limit, page_token or None)
    return BuildPage(
        builds=[build_body(each, template, caller) for each in page.items],
        next_page_token=page.next_cursor or "",
    )


@routes.get(BUILD, responses=errors(404), summary="Show a build of a template")
@needs(Permission.READ)
async def get_template_build(
    service: Service, caller: Asker, template_id: TemplateId, build_id: BuildId
) -> OneBuild:
    """Show one build of a template."""
    template, row = await service.templates.get_build(template_id, build_id)
    return OneBuild(build=build_body(row, template, caller))


@routes.get(BUILD + "/logs", responses=errors(404), summary="Get the URL of a build's log")
@needs(Permission.USE)
async def get_template_build_logs(
    request: Request, server: Server, caller: Asker, template_id: TemplateId, build_id: BuildId
) -> LogUrl:
    """Return a URL at which the log of a build is read without a token, for 15 minutes. The log of
    a build that is under way ends where it is now."""
    template, row = await server.sessions.templates.get_build(template_id, build_id)
    claims = {"template": template.id, "build": row.id}
    path = server.signer.path(LOG, caller, claims, seconds=LOG_SECONDS, ending=LOG_ENDING)
    return LogUrl(signed_url=absolute(request, path))


def _limit(page_size: int) -> int:
    return PAGE if page_size < 1 else min(page_size, LARGEST_PAGE)
