"""What all bodies have in common."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer


def rfc3339(at: datetime) -> str:
    """Return a time as RFC 3339 has it, in UTC."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


Time = Annotated[
    datetime,
    PlainSerializer(rfc3339, return_type=str),
    Field(examples=["2026-05-04T08:05:42.120000Z"]),
]


def _only(kind: type) -> BeforeValidator:
    """Return what refuses values of another type: to Python 0, 0.0 and False are one."""

    def check(value: object) -> object:
        if type(value) is not kind:
            raise ValueError(f"this must be a {_SAID[kind]}")
        return value

    return BeforeValidator(check)


_SAID = {bool: "boolean", int: "whole number"}
No = Annotated[Literal[False], _only(bool)]
Zero = Annotated[Literal[0], _only(int)]


class Asked(BaseModel):
    """The body of a request. A key that it does not know is refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Answered(BaseModel):
    """The body of an answer."""

    model_config = ConfigDict(extra="forbid")


class Error(Answered):
    """What went wrong."""

    id: str = Field(description="A word for programs.", examples=["not_found"])
    message: str = Field(description="What happened.", examples=["There is no session 'build-7'."])
    request_id: str = Field(
        description="The id of this request, as it stands in the server's log.",
        examples=["0f8fad5bd9cb469fa16570867728950e"],
    )
    state: str | None = Field(
        None,
        description="Torpor: what state things are in now.",
        examples=["Nothing was done."],
    )
    todo: str | None = Field(
        None,
        description="Torpor: what to do about it.",
        examples=["`torpor list` shows the sessions that there are."],
    )
    facts: dict[str, Any] | None = Field(
        None,
        description="Torpor: more of it as plain data, such as what memory is free, in bytes.",
    )
