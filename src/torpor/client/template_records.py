"""What the server tells of templates and their builds, as plain data."""

from dataclasses import dataclass
from datetime import datetime

from torpor.client import fields
from torpor.client.fields import Said

PREFIX = "TEMPLATE_STATUS_"
UNFINISHED = ("PENDING", "BUILDING")
"""The states of a build that has not ended."""


@dataclass(frozen=True)
class ImageReference:
    """Where an image is: the host of a registry, the repository there, a tag and a digest."""

    registry: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.registry}/{self.repository}{tag}" + (
            f"@{self.digest}" if self.digest else ""
        )


@dataclass(frozen=True)
class Template:
    """An image of one's own, by name. ``status`` is PENDING, BUILDING, READY or FAILED;
    ``current_build`` the build that sessions start from."""

    id: str
    name: str
    status: str
    created_at: datetime
    updated_at: datetime
    base: str
    source: ImageReference
    current_build: str | None = None


def template(said: Said) -> Template:
    """Read a template."""
    base, source = _spec(said)
    return Template(
        id=fields.text(said, "template_id"),
        name=fields.text(said, "name"),
        status=fields.text(said, "status").removeprefix(PREFIX),
        created_at=fields.moment(said, "created_at"),
        updated_at=fields.moment(said, "updated_at"),
        base=base,
        source=source,
        current_build=fields.perhaps_text(said, "current_build_id"),
    )


@dataclass(frozen=True)
class Build:
    """One making of a template's image. ``status`` is PENDING, BUILDING, SUCCEEDED or FAILED;
    ``error`` says why, to those who may use sessions. ``source`` has the digest that was found."""

    id: str
    template: str
    name: str
    status: str
    created_at: datetime
    updated_at: datetime
    base: str
    source: ImageReference
    image: str | None = None
    error: str | None = None


def build(said: Said) -> Build:
    """Read a build."""
    base, source = _spec(said)
    return Build(
        id=fields.text(said, "build_id"),
        template=fields.text(said, "template_id", ""),
        name=fields.text(said, "name", ""),
        status=fields.text(said, "status"),
        created_at=fields.moment(said, "created_at"),
        updated_at=fields.moment(said, "updated_at"),
        base=base,
        source=source,
        image=fields.perhaps_text(said, "image"),
        error=fields.perhaps_text(said, "error"),
    )


def _spec(said: Said) -> tuple[str, ImageReference]:
    spec = fields.perhaps_part(said, "spec")
    image = fields.perhaps_part(spec, "image")
    return fields.text(spec, "base_template", ""), ImageReference(
        registry=fields.text(image, "registry", ""),
        repository=fields.text(image, "repository", ""),
        tag=fields.perhaps_text(image, "tag"),
        digest=fields.perhaps_text(image, "digest"),
    )
