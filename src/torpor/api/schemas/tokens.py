"""Tokens."""

from typing import Literal

from pydantic import Field

from torpor.api.schemas.body import Answered, Asked, Time
from torpor.store.records import Token

RoleName = Literal["viewer", "approver", "operator", "admin"]
_ROLE = (
    "viewer: may see; approver: may see, and decide on what waits for a person; operator: may also"
    " do everything with sessions; admin: may also do everything with tokens."
)


class NewToken(Asked):
    """A token that is to be."""

    name: str = Field(
        description="What it is for.", min_length=1, max_length=64, examples=["build server"]
    )
    role: RoleName = Field(description=_ROLE, examples=["operator"])
    lifetime_seconds: int | None = Field(
        None,
        ge=1,
        le=10 * 366 * 86400,
        description="After which it is worthless; never if left out.",
        examples=[2592000],
    )


class TokenBody(Answered):
    """A token, without its secret."""

    id: str = Field(description="Its public part.", examples=["0f3c9a7e5b1d2846"])
    name: str
    role: RoleName
    created_at: Time
    expires_at: Time | None = None
    used_at: Time | None = Field(None, description="When it was last used, to the minute.")
    revoked_at: Time | None = None

    @classmethod
    def of(cls, token: Token) -> "TokenBody":
        """Return a token as it is shown."""
        return cls(
            id=token.id,
            name=token.name,
            role=token.role,
            created_at=token.created_at,
            expires_at=token.expires_at,
            used_at=token.used_at,
            revoked_at=token.revoked_at,
        )


class MadeToken(Answered):
    """A new token. What to show as a bearer is here, and never again."""

    token: TokenBody
    bearer: str = Field(examples=["torpor_0f3c9a7e5b1d2846_3d1b…"])


class Tokens(Answered):
    """All tokens, the oldest first."""

    tokens: list[TokenBody]


class WhoAmI(Answered):
    """Who makes this request."""

    id: str = Field(description="The token's id; `local` where no token is asked for.")
    name: str
    role: RoleName
    permissions: list[str]
