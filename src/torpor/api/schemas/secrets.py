"""Secrets: what is said of them. What they are is in no answer."""

from typing import Any

from pydantic import Field, SecretStr

from torpor.api.schemas.body import Answered, Asked, Time
from torpor.store.records import Secret

EXAMPLE: dict[str, Any] = {
    "host": "api.example.com",
    "path": "/v1/**",
    "header": "authorization",
    "template": "Bearer {}",
}


class BindingAsked(Asked):
    """Which requests a secret is for, and how it is used: as a `header`, as the password of
    `basic` credentials, as a `query` parameter, or in the place of a `placeholder`. A bearer token
    if none of these is there."""

    host: str = Field(
        description="A host, or `*.` and a name for all below it.",
        examples=["api.example.com"],
        max_length=256,
    )
    port: int | None = Field(None, description="Its port; 443 if left out.", examples=[443])
    schemes: list[str] | None = Field(
        None, description="`https`, `wss`; both if left out.", examples=[["https"]]
    )
    methods: list[str] | None = Field(
        None, description="Methods; all if left out or empty.", examples=[["GET"]]
    )
    path: str | None = Field(
        None,
        description="A pattern: `*` is any one segment or part of it, `**` any number of them.",
        examples=["/v1/**"],
        max_length=1024,
    )
    header: str | None = Field(None, description="The header that is set.", max_length=128)
    template: str | None = Field(
        None,
        description="What it is set to; `{}` is the value.",
        examples=["Bearer {}"],
        max_length=1024,
    )
    basic: str | None = Field(
        None, description="The user of Basic credentials.", examples=["git"], max_length=256
    )
    query: str | None = Field(None, description="The parameter that is set.", max_length=128)
    placeholder: bool | str | None = Field(
        None,
        description="The text that stands for the value in the machine; true: one is made up.",
        examples=[True],
    )
    variable: str | None = Field(
        None,
        description="The variable that has the placeholder; the secret's name in capitals if left"
        " out.",
        max_length=128,
    )
    in_body: bool | None = Field(
        None,
        description="Whether it is swapped in bodies of JSON and of forms too, of 64 KiB at most.",
    )


class SecretAsked(Asked):
    """What a secret is to be. Without `bindings` they stay as they are; they are changed only
    together with the value."""

    value: SecretStr = Field(
        description="Its value: 8 to 8192 printable characters of ASCII. It is never shown again.",
        examples=["0123456789abcdef"],
    )
    bindings: list[BindingAsked] | None = Field(
        None, description="What it is used for: 1 to 32 bindings.", examples=[[EXAMPLE]]
    )


class SecretBody(Answered):
    """A secret, without its value."""

    name: str = Field(examples=["EXAMPLE_KEY"])
    bindings: list[dict[str, Any]] = Field(
        description="Which requests it is used for, and how.", examples=[[EXAMPLE]]
    )
    version: int = Field(description="How often it was set.", examples=[1])
    usable: bool = Field(description="Whether this server has the key that it is sealed with.")
    created_at: Time
    updated_at: Time
    created_by: str
    updated_by: str

    @classmethod
    def of(cls, secret: Secret, *, usable: bool) -> "SecretBody":
        """Return a secret as it is shown."""
        return cls(
            name=secret.name,
            bindings=list(secret.bindings),
            version=secret.version,
            usable=usable,
            created_at=secret.created_at,
            updated_at=secret.updated_at,
            created_by=secret.created_by,
            updated_by=secret.updated_by,
        )


class OneSecret(Answered):
    """A secret, and the ids of the sessions that have it."""

    secret: SecretBody
    session_ids: list[str]


class SecretsAnswer(Answered):
    """Secrets, by their names."""

    secrets: list[SecretBody]


class GrantAsked(Asked):
    """How a session is to get a secret."""

    although_open: bool = Field(
        False,
        description="That it is to have it although its policy lets it talk to every public host.",
    )
