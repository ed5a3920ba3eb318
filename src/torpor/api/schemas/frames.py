"""What goes over WebSockets besides bytes: text frames of JSON."""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from torpor.api.schemas.body import Asked


class EofFrame(Asked):
    """The command's input ends here."""

    type: Literal["eof"]


class ResizeFrame(Asked):
    """The terminal has another size."""

    type: Literal["resize"]
    rows: int = Field(ge=1, le=65535)
    columns: int = Field(ge=1, le=65535)


class SignalFrame(Asked):
    """A signal for the command."""

    type: Literal["signal"]
    signal: int = Field(ge=1, le=64)


FromClient: TypeAdapter[EofFrame | ResizeFrame | SignalFrame] = TypeAdapter(
    Annotated[EofFrame | ResizeFrame | SignalFrame, Field(discriminator="type")]
)
"""What a client may say in a text frame."""
