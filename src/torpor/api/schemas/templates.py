"""Templates and their builds."""

from pydantic import Field, model_validator

from torpor.api.schemas.body import Answered, Asked, Time

TEMPLATE_ID = "6c1f0f6e-3c1b-4c55-9a8e-7f0b2f1a9c1e"
BUILD_ID = "b7e49a8e-0d6a-4c1b-8c1d-2f1a9c1e7f0b"
_NAME = "1 to 63 letters, digits, '.', '_' and '-'; no other template has it."
_BASE = (
    "What the image is put on: `sandbox` or `coding-base`, which both mean a machine without an"
    " agent, and the image as it is."
)
_SOURCE = (
    "Where the image is: `registry/repository:tag`, or with `@sha256:` and its digest. The server"
    " asks that registry with its own log-ins and certificates."
)
_REFERENCE = "registry.example.com/team/tools:1.4"


class NewTemplateBody(Asked):
    """A template that is to be."""

    name: str = Field(description=_NAME, examples=["tools"], max_length=256)
    base_template: str = Field(description=_BASE, examples=["sandbox"], max_length=256)
    source_oci_ref: str = Field(description=_SOURCE, examples=[_REFERENCE], max_length=1024)


class TemplateChangesBody(Asked):
    """What a template is built of from now on. At least one key must be there; the same reference
    as before is asked for again, so a tag that has moved is followed."""

    base_template: str | None = Field(None, description=_BASE, examples=["sandbox"], max_length=256)
    source_oci_ref: str | None = Field(
        None, description=_SOURCE, examples=[_REFERENCE], max_length=1024
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_nothing(cls, said: object) -> object:
        if isinstance(said, dict) and not {k for k, v in said.items() if v is not None}:
            raise ValueError("at least one key must be there")
        return said


class ImageBody(Answered):
    """Where an image is."""

    registry: str = Field(description="The registry's host.", examples=["registry.example.com"])
    repository: str = Field(description="The repository there.", examples=["team/tools"])
    tag: str | None = Field(None, description="Its tag.", examples=["1.4"])
    digest: str | None = Field(
        None,
        description="The digest of its manifest: the one that was asked for; of a build also the"
        " one that was found.",
        examples=["sha256:" + "0f" * 32],
    )


class SpecBody(Answered):
    """What a template is built of."""

    base_template: str = Field(description="What the image is put on.", examples=["sandbox"])
    image: ImageBody


class TemplateBody(Answered):
    """An image of one's own, by name."""

    template_id: str = Field(description="Its id.", examples=[TEMPLATE_ID])
    name: str = Field(description="Its name.", examples=["tools"])
    status: str = Field(
        description="`TEMPLATE_STATUS_` and PENDING, BUILDING, READY or FAILED. One that has been"
        " built once is never FAILED: sessions start from what was built last.",
        examples=["TEMPLATE_STATUS_READY"],
    )
    created_at: Time
    updated_at: Time
    spec: SpecBody
    current_build_id: str | None = Field(
        None, description="Torpor: the build that sessions start from.", examples=[BUILD_ID]
    )


class OneTemplate(Answered):
    """A template."""

    template: TemplateBody


class TemplatePage(Answered):
    """Some templates, the newest first."""

    templates: list[TemplateBody]
    next_page_token: str = Field(
        description="Names the next page as `page_token`; empty when there are no more.",
        examples=[""],
    )


class TemplateDeleted(Answered):
    """A template that is gone."""

    template_id: str = Field(description="Its id.", examples=[TEMPLATE_ID])
    deleted: bool = Field(description="Always true.", examples=[True])


class BuildBody(Answered):
    """One making of a template's image."""

    build_id: str = Field(description="Its id.", examples=[BUILD_ID])
    template_id: str = Field(description="Whose it is.", examples=[TEMPLATE_ID])
    name: str = Field(description="The template's name.", examples=["tools"])
    status: str = Field(
        description="PENDING, BUILDING, SUCCEEDED or FAILED.", examples=["SUCCEEDED"]
    )
    error: str | None = Field(None, description="Why it is FAILED, for those who may use sessions.")
    created_at: Time
    updated_at: Time
    spec: SpecBody
    image: str | None = Field(
        None,
        description="Torpor: the host's name of the image, while it is kept.",
        examples=["t-" + BUILD_ID],
    )


class OneBuild(Answered):
    """A build."""

    build: BuildBody


class BuildPage(Answered):
    """Some builds of a template, the newest first."""

    builds: list[BuildBody]
    next_page_token: str = Field(
        description="Names the next page as `page_token`; empty when there are no more.",
        examples=[""],
    )


class LogUrl(Answered):
    """Where the log of a build can be read."""

    signed_url: str = Field(
        description="A URL that needs no token, for 15 minutes.",
        examples=["http://127.0.0.1:8470/v2/agents/signed/WyJ0ZW1wbGF0ZS5sb2ciXQ.Zx"],
    )
