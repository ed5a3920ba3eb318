"""Previews: what listens inside a session, and links to it."""

from typing import Literal

from pydantic import Field

from torpor.api.preview.addresses import Addresses
from torpor.api.schemas.body import Answered, Asked, Time
from torpor.sessions.previews import LONGEST
from torpor.store.records import PreviewLink

_PORT = "A port of the machine's loopback."


class IngressUrl(Answered):
    """Where what listens on a port of a session is reached."""

    ingress_url_id: str = Field(examples=["2f1a9c1e-7f0b-4c55-9a8e-0d6a3c1b7e42-8000"])
    session_id: str
    port: int = Field(description=_PORT, examples=[8000])
    state: Literal["INGRESS_URL_STATE_READY"] = Field(
        description="The URL can be used. It does not say whether somebody listens."
    )
    url: str = Field(
        description="Stays over pauses, restarts and rollbacks. Who opens it shows a token, or"
        " comes by a link.",
        examples=["http://8000-2f1a9c1e-7f0b-4c55-9a8e-0d6a3c1b7e42.localhost:8471/"],
    )
    path_url: str = Field(description="Torpor: the same, for programs that show a token.")
    created_at: Time = Field(description="When the session was made.")


class IngressAnswer(Answered):
    """An ingress URL."""

    ingress_url: IngressUrl


class NewPreview(Asked):
    """A link that is to be."""

    port: int = Field(ge=1, le=65535, description=_PORT, examples=[8000])
    expires_in_seconds: int = Field(
        24 * 3600, ge=1, le=LONGEST, description="For how long it is good.", examples=[3600]
    )
    label: str = Field("", max_length=64, description="What it is for.", examples=["for Ana"])


class PreviewBody(Answered):
    """A link to a port of a session."""

    preview_id: str = Field(examples=["pv_0f3c9a7e5b1d2846"])
    session_id: str
    port: int = Field(description=_PORT, examples=[8000])
    label: str
    url: str = Field(description="Where the link leads.")
    path_url: str = Field(description="The same, for programs that show a token.")
    link_url: str | None = Field(
        None,
        description="What to give to somebody: whoever has it may use the port. Said to who makes"
        " the link, and not again.",
    )
    created_at: Time
    created_by: str = Field(description="The id of the token that made it.")
    expires_at: Time
    revoked_at: Time | None = None

    @classmethod
    def of(
        cls, link: PreviewLink, addresses: Addresses, link_url: str | None = None
    ) -> "PreviewBody":
        """Return a link as it is shown."""
        return cls(
            preview_id=link.id,
            session_id=link.session,
            port=link.port,
            label=link.label,
            url=addresses.url(link.session, link.port),
            path_url=addresses.path_url(link.session, link.port),
            link_url=link_url,
            created_at=link.created_at,
            created_by=link.created_by,
            expires_at=link.expires_at,
            revoked_at=link.revoked_at,
        )


class PreviewAnswer(Answered):
    """One link."""

    preview: PreviewBody


class PreviewsAnswer(Answered):
    """The links of a session, the oldest first, those that are over too."""

    previews: list[PreviewBody]
