"""Sessions."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from torpor.api.schemas.body import Answered, Asked, Time
from torpor.sessions.model import Changes, NewSession

SESSION_ID = "2f1a9c1e-7f0b-4c55-9a8e-0d6a3c1b7e42"
LATER = {
    "apiVersion": "is of DigitalOcean's older format; write the flat one",
    "budget": "needs the ledger, which this version does not have",
    "config_id": "needs stored configurations, which this version does not have",
    "egress": "needs machines with a network, which this version does not have",
    "interactive": "needs an agent, and this version runs none",
    "max_lifetime": "is not kept by this version",
    "memory": "needs an agent, and this version runs none; size says how much memory there is",
    "model": "needs an agent, and this version runs none",
    "mounts": "needs shared directories, which this version does not have",
    "permissions": "needs an agent, and this version runs none",
    "persistent_workspace": "needs workspaces of their own, which this version does not have",
    "repos": "needs machines with a network, which this version does not have",
    "resume_on_topoff": "needs a balance that can be topped up, which Torpor does not have",
    "secrets": "needs the gateway, which this version does not have",
    "skills": "needs an agent, and this version runs none",
    "tools": "needs the gateway, which this version does not have",
}
"""Keys that others know, and why they are refused here."""
_DURATION = re.compile(r"(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,8})s)?")


def _seconds(said: object) -> object:
    """Take `1h30m` for 5400."""
    form = _DURATION.fullmatch(said) if isinstance(said, str) and said else None
    if form is None:
        return said
    hours, minutes, seconds = (int(part or 0) for part in form.groups())
    return hours * 3600 + minutes * 60 + seconds


Seconds = Annotated[int, BeforeValidator(_seconds, json_schema_input_type=int | str)]
Texts = Annotated[dict[str, str], Field(examples=[{"team": "search"}])]

_NAME = "1 to 63 letters, digits, '.', '_' and '-'; no other living session has it."
_LABELS = "Torpor: marks by which sessions can be listed, at most 64."
_METADATA = "Torpor: anything that is to be kept with the session, and is given back as it was."
_IDLE = (
    "After how many seconds without use the session pauses by itself (5 s to 30 days; 0 never); a"
    " duration such as `1h30m` is read too."
)


class NewSessionBody(Asked):
    """A session that is to be."""

    name: str | None = Field(
        None, description=_NAME + " Made up if it is left out.", examples=["build-7"]
    )
    image: str | None = Field(
        None,
        description="Torpor: the image to start from; the server's default if left out.",
        examples=["default"],
    )
    template: str | None = Field(
        None,
        description="The template to start from, by its id or its name, in place of an image.",
        examples=["tools"],
    )
    size: str | None = Field(
        None,
        description="The size of the machine; the server's default if left out.",
        examples=["mars-2vcpu-1gb"],
    )
    env: Texts = Field(
        {},
        description="Variables that every command in the session gets.",
        examples=[{"LANG": "C.UTF-8"}],
    )
    labels: Texts = Field({}, description=_LABELS)
    metadata: dict[str, Any] = Field({}, description=_METADATA, examples=[{"ticket": 7742}])
    idle_timeout: Seconds | None = Field(None, description=_IDLE, examples=[900])
    keep_warm: bool = Field(False, description="Never pause by itself.")
    agent: Literal["none"] = Field(
        "none", description="What runs in the machine: this version runs no agents."
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_later(cls, said: object) -> object:
        if isinstance(said, dict):
            refuse_later(said)
        return said

    def new(self) -> NewSession:
        """Return what is asked for."""
        return NewSession(**self.model_dump(exclude={"agent"}))


class SessionChanges(Asked):
    """What is to be different from now on. What is left out stays as it is; at least one key must
    be there."""

    name: str | None = Field(None, description=_NAME, examples=["build-8"])
    labels: Texts | None = Field(None, description=_LABELS + " All of them are replaced.")
    metadata: dict[str, Any] | None = Field(None, description=_METADATA)
    idle_timeout: Seconds | None = Field(None, description=_IDLE, examples=[3600])
    keep_warm: bool | None = Field(None, description="Never pause by itself.")
    resume_on_topoff: Literal[False] | None = Field(
        None,
        description="Only false: Torpor has no balance that could be topped up, so no session is"
        " ever resumed for that.",
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_later(cls, said: object) -> object:
        if isinstance(said, dict):
            if not said:
                raise ValueError("at least one key must be there")
            refuse_later({k: v for k, v in said.items() if (k, v) != ("resume_on_topoff", False)})
        return said

    def changes(self) -> Changes:
        """Return what is asked for."""
        return Changes(**self.model_dump(exclude={"resume_on_topoff"}))


def refuse_later(said: dict[str, Any]) -> None:
    """Raise ValueError for keys that are known, and cannot be had."""
    later = [f"key {key!r} {LATER[key]}" for key in said if key in LATER]
    if later:
        raise ValueError("; ".join(later))


class Recoverable(Answered):
    """A snapshot that the session can be resumed from."""

    snapshot_id: str = Field(description="What to name in a resume.")
    kind: str = Field(
        description="Why it was made: pause, checkpoint, fork, or files (a disk without memory).",
        examples=["pause"],
    )
    generation: int = Field(description="The generation of the session that it holds.")
    created_at: Time
    durable: bool = Field(description="Whether it survives a power cut.")
    checkpoint_id: str | None = Field(None, description="The checkpoint that it is, if it is one.")


class SessionBody(Answered):
    """A session: a machine of its own, and all that was snapshotted of it."""

    session_id: str = Field(description="Its id.", examples=[SESSION_ID])
    name: str = Field(description="Its name, unique among those that live.", examples=["build-7"])
    status: str = Field(
        description="`SESSION_STATUS_` and PROVISIONING, READY, DETACHED, PAUSED, DESTROYING,"
        " DESTROYED or FAILED.",
        examples=["SESSION_STATUS_READY"],
    )
    agent_kind: str = Field(
        "AGENT_KIND_NONE", description="What runs in it.", examples=["AGENT_KIND_NONE"]
    )
    created_at: Time
    last_event_at: Time | None = Field(None, description="When the newest of its events happened.")
    parent_session_id: str | None = Field(None, description="The session that it was forked from.")
    fork_id: str | None = Field(
        None, description="Marks all that were made by the same fork.", examples=["fork_8c1d"]
    )
    fork_from_checkpoint_id: str | None = Field(
        None, description="The checkpoint that it was forked from.", examples=["cp_9f2c1a4b"]
    )
    idle_timeout_seconds: int | None = Field(
        None, description="Its own idle timeout; left out if it uses the server's."
    )
    keep_warm: bool | None = Field(None, description="Left out when false.")
    pause_reason: str | None = Field(
        None, description="Why it is paused: manual, idle or another word.", examples=["manual"]
    )
    sandbox_id: str | None = Field(None, description="Its machine, while there is one.")
    warnings: list[str] | None = Field(None, description="On creation only: what is odd about it.")
    updated_at: Time = Field(description="Torpor: when anything of it changed last.")
    generation: int = Field(
        description="Torpor: grows by one with each snapshot and each roll back, and never goes"
        " back.",
        examples=[3],
    )
    image: str = Field(description="Torpor: the image that it was made from.", examples=["default"])
    template: str | None = Field(
        None, description="Torpor: the id of the template whose image that is, if it is one's."
    )
    size: str = Field(description="Torpor: its size.", examples=["mars-2vcpu-1gb"])
    env: dict[str, str] | None = Field(
        None, description="Torpor: variables of its commands; shown to operators only."
    )
    labels: dict[str, str] = Field(description="Torpor: its labels.")
    metadata: dict[str, Any] = Field(description="Torpor: what is kept with it.")
    boot_id: str | None = Field(None, description="Torpor: the boot of its kernel.")
    failure: str | None = Field(
        None, description="Torpor: why it is FAILED, for those who may use it."
    )
    recoverable: list[Recoverable] | None = Field(
        None,
        description="Torpor: what a FAILED or PAUSED session can be resumed from, newest first.",
    )
    operation: str | None = Field(
        None, description="Torpor: what is being done with it at the moment.", examples=["pause"]
    )


class OneSession(Answered):
    """A session."""

    session: SessionBody


class SessionPage(Answered):
    """Some sessions, the newest first."""

    sessions: list[SessionBody]
    next_page_token: str = Field(
        description="Names the next page as `page_token`; empty when there are no more.",
        examples=[""],
    )


class SizeBody(Answered):
    """A size that a machine can have."""

    slug: str = Field(description="Its name.", examples=["mars-2vcpu-1gb"])
    vcpus: int = Field(description="Virtual CPUs.", examples=[2])
    memory_mb: int = Field(description="Memory, in MiB.", examples=[1024])
    price_per_hour_usd: float = Field(
        description="What an hour costs with its CPUs always busy and all of its memory in use.",
        examples=[0.0975],
    )
    price_per_month_usd: float = Field(description="730 such hours.", examples=[71.175])


class Sizes(Answered):
    """The sizes that a machine can have, the smallest first."""

    sizes: list[SizeBody]


class ResumeBody(Asked):
    """From what to resume."""

    snapshot_id: str | None = Field(
        None,
        description="Torpor: an older snapshot (`recoverable` of the session has them). Left out:"
        " the newest.",
    )
