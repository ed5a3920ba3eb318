"""Commands."""

import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from torpor.api.schemas.body import Answered, Asked


def _decoded(said: object) -> object:
    if not isinstance(said, str):
        return said
    try:
        return base64.b64decode(said, validate=True)
    except binascii.Error:
        raise ValueError("it is not base64") from None


def encoded(data: bytes) -> str:
    """Return bytes as base64 (RFC 4648, section 4)."""
    return base64.b64encode(data).decode()


Base64 = Annotated[
    bytes,
    BeforeValidator(_decoded, json_schema_input_type=str),
    PlainSerializer(encoded, return_type=str),
]

_ARGV = "The program and its arguments; no shell looks at them."
_SHELL = "Torpor: a line for `/bin/sh -c`, in place of `argv`."
_ENV = "Torpor: variables, over those of the session and of its image."
_WORKDIR = "The directory to start in; the image's own if left out, or the user's home."
_USER = "Torpor: the user to run as, a name or a number; the image's own if left out."


class CommandBody(Asked):
    """What to run."""

    argv: list[str] | None = Field(None, description=_ARGV, examples=[["uname", "-a"]])
    shell: str | None = Field(None, description=_SHELL, examples=["make test | tail -n 3"])
    env: dict[str, str] = Field({}, description=_ENV, examples=[{"CI": "1"}])
    workdir: str | None = Field(None, description=_WORKDIR, examples=["/srv"])
    user: str | None = Field(None, description=_USER, examples=["nobody"])

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.argv is None) == (self.shell is None):
            raise ValueError("there must be either 'argv' or 'shell'")
        if self.argv == [] or any("\0" in word for word in self.words):
            raise ValueError("'argv' needs a program, and no NUL in it")
        return self

    @property
    def words(self) -> Sequence[str]:
        """The program and its arguments."""
        return ["/bin/sh", "-c", self.shell] if self.shell is not None else self.argv or []


class RunBody(CommandBody):
    """A command that is waited for."""

    stdin: Base64 | None = Field(
        None, description="Its input, in base64; then it ends.", examples=["aGVsbG8K"]
    )
    workdir: str | None = Field(
        None,
        description="The directory to start in; if left out or empty `/workspace` where there is"
        " one, else the image's own, or the user's home.",
        examples=["/srv"],
    )
    timeout_seconds: int = Field(
        60,
        description="After how many seconds of running it is ended; what is less than 1 counts as"
        " 60, and what is more than 240 as 240.",
        examples=[60],
    )


class RanBody(Answered):
    """A command that has ended."""

    exit_code: int = Field(
        description="Its exit status; 128 and the signal's number if a signal ended it.",
        examples=[0],
    )
    stdout: str = Field(
        description="What it wrote to standard output, up to 1 MiB; what is not UTF-8 is replaced.",
        examples=["Linux build-7 6.1.0-40-cloud-amd64 x86_64\n"],
    )
    stderr: str = Field(description="What it wrote to standard error.", examples=[""])
    duration_ms: int = Field(description="How long it took.", examples=[41])
    exec_id: str = Field(description="Torpor: the command's id.", examples=["8f14e45fceea167a"])
    signal: int | None = Field(None, description="Torpor: the signal that ended it.")
    timed_out: bool = Field(description="Torpor: whether it reached its time limit.")
    stdout_base64: str | None = Field(
        None, description="Torpor: standard output as it was, if it was not UTF-8."
    )
    stderr_base64: str | None = Field(None, description="Torpor: standard error, likewise.")


class TerminalBody(Asked):
    """The size of a terminal in characters."""

    rows: int = Field(24, ge=1, le=65535, examples=[24])
    columns: int = Field(80, ge=1, le=65535, examples=[80])


class StartBody(CommandBody):
    """A command that is started, and followed or not."""

    stdin: bool = Field(False, description="Whether it has an input that can be written to.")
    terminal: TerminalBody | None = Field(
        None,
        description="Run it on a terminal of this size; it has an input then, and all that it"
        " writes is standard output.",
    )
    limit_seconds: float | None = Field(
        None,
        gt=0,
        le=10_000_000,
        description="After how many seconds of running it is ended; never if left out.",
    )
    keep_bytes: int | None = Field(
        None,
        ge=1,
        description="How much of its output is kept for those who follow later; the oldest is"
        " dropped.",
        examples=[1048576],
    )


class ExecBody(Answered):
    """A command that runs in a session, or has run."""

    exec_id: str = Field(examples=["8f14e45fceea167a"])
    argv: list[str] = Field(description="Beyond 256 characters it is cut.", examples=[["sh"]])
    pid: int | None = Field(default=None, examples=[412])
    running: bool
    output_start: int = Field(description="The first byte of its output that is kept.")
    output_end: int = Field(description="How many bytes it has written.")
    exit_code: int | None = Field(default=None, description="How it ended, where that is known.")
    signal: int | None = Field(default=None, description="The signal that ended it.")
    timed_out: bool | None = Field(default=None, description="Whether it reached its time limit.")


class OneExec(Answered):
    """A command."""

    exec: ExecBody


class ExecList(Answered):
    """The commands that a session knows, those that have ended too."""

    execs: list[ExecBody]


class SignalBody(Asked):
    """Which signal."""

    signal: int = Field(15, ge=1, le=64, description="Its number.", examples=[15])
