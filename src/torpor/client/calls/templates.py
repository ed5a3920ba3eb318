"""Templates and their builds. ``template`` is the id of a template, or its name."""

from urllib.parse import urlsplit

from torpor.client import fields
from torpor.client.call import LONG, Answer, Call, document, keyed, nothing, path, query
from torpor.client.fields import Said
from torpor.client.records import Page
from torpor.client.template_records import Build, Template, build, template

BASE = "sandbox"
"""What an image is put on if nobody says: a machine without an agent."""


def create_template(
    name: str, source: str, *, base: str = BASE, key: str | None = None
) -> Call[Template]:
    """Make a template of the image that is at ``source`` (``registry/repository:tag``, or with
    ``@sha256:`` and its digest), and begin to build it.

    Raises :exc:`ConflictError` if another template has the name.
    """
    return Call(
        "POST",
        path("templates"),
        _one,
        headers=keyed(key),
        content=document(name=name, base_template=base, source_oci_ref=source),
    )


def list_templates(*, limit: int | None = None, after: str | None = None) -> Call[Page[Template]]:
    """Return templates, the newest first; :attr:`Page.next` is the ``after`` of the following
    page."""
    return Call(
        "GET",
        path("templates"),
        lambda answer: _page(answer.json()),
        query=query(page_size=limit, page_token=after),
    )


def get_template(template: str) -> Call[Template]:
    """Return one template."""
    return Call("GET", path("templates", template), _one)


def update_template(
    template: str, *, source: str | None = None, base: str | None = None, key: str | None = None
) -> Call[Template]:
    """Change what a template is built of, and begin to build it; one of the two must be said. Until
    that has succeeded, sessions start from what was built last."""
    return Call(
        "PUT",
        path("templates", template),
        _one,
        headers=keyed(key),
        content=document(source_oci_ref=source, base_template=base),
    )


def delete_template(template: str) -> Call[None]:
    """Delete a template and its images. Sessions that were started from it live on."""
    where = path("templates", template)
    return Call("DELETE", where, nothing, seconds=LONG, gone_is_done=True)


def list_template_builds(
    template: str, *, limit: int | None = None, after: str | None = None
) -> Call[Page[Build]]:
    """Return the builds of a template, the newest first; :attr:`Page.next` is the ``after`` of the
    following page."""
    return Call(
        "GET",
        path("templates", template, "builds"),
        lambda answer: _builds(answer.json()),
        query=query(page_size=limit, page_token=after),
    )


def get_template_build(template: str, build: str) -> Call[Build]:
    """Return one build of a template."""
    return Call("GET", path("templates", template, "builds", build), _one_build)


def get_template_build_log_url(template: str, build: str) -> Call[str]:
    """Return a URL at which the log of a build can be read without a token, for 15 minutes."""
    return Call(
        "GET",
        path("templates", template, "builds", build, "logs"),
        lambda answer: fields.text(answer.json(), "signed_url"),
    )


def read_template_build_log(url: str) -> Call[str]:
    """Return the log that is at such a URL: of a build that is under way, as far as it is. It is
    asked for at the server's address that this client knows, whatever the one in the URL."""
    return Call("GET", urlsplit(url).path, lambda answer: answer.body.decode(errors="replace"))


def _one(answer: Answer) -> Template:
    return template(fields.part(answer.json(), "template"))


def _one_build(answer: Answer) -> Build:
    return build(fields.part(answer.json(), "build"))


def _page(said: Said) -> Page[Template]:
    return Page(
        fields.parts(said, "templates", template), fields.perhaps_text(said, "next_page_token")
    )


def _builds(said: Said) -> Page[Build]:
    return Page(fields.parts(said, "builds", build), fields.perhaps_text(said, "next_page_token"))
