"""What is asked of templates, as plain data, and what cannot be."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torpor.images.references import Reference, read_reference
from torpor.sessions.errors import ConflictError, InvalidError, NotFoundError
from torpor.sessions.model import NAME, NO_TEMPLATE, is_session_id
from torpor.store.records import Build, Template, TemplateStatus

BASES = ("sandbox", "coding-base")
"""What an image can be put on: a machine without an agent, which it is as it stands."""
WITH_AGENTS = (
    "codex-base", "claude-code-base", "opencode-base", "hermes-base", "langgraph-base",
    "coding-claude-code", "coding-codex", "coding-hermes", "coding-opencode", "langgraph", "crewai",
)  # fmt: skip
"""Bases that others know, and that bring an agent."""
PREFIX = "t-"


@dataclass(frozen=True)
class NewTemplate:
    """A template that is to be: its name, what it is put on, and where its image is."""

    name: str
    base: str
    source: str


@dataclass(frozen=True)
class TemplateChanges:
    """What a template is to be built of from now on; None leaves it as it is."""

    base: str | None = None
    source: str | None = None


def image_of(build: str) -> str:
    """Return the name that a host gives the image of a build."""
    return PREFIX + build


def build_of(image: str) -> str:
    """Return the build that made an image of such a name."""
    return image.removeprefix(PREFIX)


def images_of_builds(images: Iterable[str]) -> dict[str, str]:
    """Return those of the images of a host that were built, each with its build."""
    return {each: build_of(each) for each in images if each.startswith(PREFIX)}


def status_of(unfinished: Sequence[Build], current_build: str | None) -> TemplateStatus:
    """Return the status of a template: that of its builds which have not ended, else whether there
    is one that sessions start from."""
    statuses = {each.status for each in unfinished}
    if "BUILDING" in statuses:
        return "BUILDING"
    if statuses:
        return "PENDING"
    return "READY" if current_build is not None else "FAILED"


def check_template_name(name: str) -> None:
    """Raise :exc:`InvalidError` if no template can be called ``name``."""
    if not NAME.fullmatch(name) or is_session_id(name) or name.lower() == NO_TEMPLATE:
        raise InvalidError(
            f"A template cannot be called {name!r}.",
            todo="Use 1 to 64 letters, digits, '.', '_' and '-', the first and the last a letter or"
            f" a digit, and nothing that looks like an id; in manifests {NO_TEMPLATE!r} is none.",
        )


def check_base(base: str) -> None:
    """Raise :exc:`InvalidError` if no image can be put on ``base``."""
    if base in BASES:
        return
    why = "needs an agent's image, and this version runs no agents"
    raise InvalidError(
        f"base_template: {base!r} {why if base in WITH_AGENTS else 'is not known'}.",
        todo=f"Use {' or '.join(BASES)}.",
    )


def checked_source(source: str) -> Reference:
    """Return the reference of an image. Raises :exc:`InvalidError`."""
    try:
        return read_reference(source)
    except ValueError as error:
        raise InvalidError(
            f"source_oci_ref: {source[:512]!r} is no reference of an image: {error}.",
            todo="Write it as registry/repository:tag or registry/repository@sha256:... . An image"
            " in a file is imported on the server, by `torpor image import`.",
        ) from None


def no_template(called: str) -> NotFoundError:
    """Return the error of a template that is not known."""
    return NotFoundError(
        f"There is no template {called!r}.", todo="`torpor template list` shows them."
    )


def no_build(template: Template, build: str) -> NotFoundError:
    """Return the error of a build that is not known."""
    return NotFoundError(
        f"Template {template.name} has no build {build!r}.",
        todo=f"`torpor template builds {template.name}` shows them.",
    )


def name_taken(name: str) -> ConflictError:
    """Return the error of a name that another template has."""
    return ConflictError(
        f"There is a template {name} already.",
        state="Nothing was changed.",
        todo="Delete it first, update it, or use another name.",
        code="already_exists",
    )


def not_ready(template: Template) -> ConflictError:
    """Return the error of a template of which nothing has been built yet."""
    failed = template.status == "FAILED"
    return ConflictError(
        f"Template {template.name} is {template.status}: there is no image of it yet.",
        state="Nothing was created.",
        todo=f"See `torpor template logs {template.name}`, and update it."
        if failed
        else "Wait until it is READY.",
        code="not_ready",
    )
