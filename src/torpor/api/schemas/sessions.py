"""Sessions."""

from typing import Any

from pydantic import Field, model_validator

from torpor.api.schemas.body import Answered, Asked, No, Time
from torpor.api.schemas.egress import EGRESS, Policy
from torpor.api.schemas.manifests import (
    IDLE,
    LABELS,
    LATER,
    METADATA,
    NAMES,
    WORKSPACES,
    NewSessionBody,
    Seconds,
    Texts,
    refuse_later,
)
from torpor.api.schemas.workspaces import WORKSPACE_ID
from torpor.sessions.model import Changes

SESSION_ID = "2f1a9c1e-7f0b-4c55-9a8e-0d6a3c1b7e42"
_OWN = {"name", "workspace_id"}
"""What a session has of its own, and not of its configuration."""


class FromConfigBody(Asked):
    """A session that is to be, made of a configuration."""

    name: str = Field(description=NAMES, examples=["build-7"])
    config_id: str = Field(
        description="The id of the configuration. Torpor: its name will do.",
        examples=["5b7c1f3e-3d8a-4f0e-9a55-7d2f6f0c1e11"],
    )
    workspace_id: str | None = Field(
        None, description=WORKSPACES, examples=[WORKSPACE_ID], max_length=256
    )
    resume_on_topoff: bool | None = Field(
        None, description="Only false, since Torpor has no balance that could be topped up."
    )

    @model_validator(mode="before")
    @classmethod
    def _stand_alone(cls, said: object) -> object:
        if isinstance(said, dict):
            beside = sorted(said.keys() & NewSessionBody.model_fields.keys() - _OWN)
            if beside:
                raise ValueError(
                    f"key {beside[0]!r} cannot stand beside 'config_id': the configuration says"
                    " all but the name and the workspace"
                )
        return said


class SessionChanges(Asked):
    """What is to be different from now on. What is left out stays as it is; at least one key must
    be there."""

    name: str | None = Field(None, description=NAMES, examples=["build-8"])
    labels: Texts | None = Field(None, description=LABELS + " All of them are replaced.")
    metadata: dict[str, Any] | None = Field(None, description=METADATA)
    idle_timeout: Seconds | None = Field(None, description=IDLE, examples=[3600])
    keep_warm: bool | None = Field(None, description="Never pause by itself.")
    egress: Policy = Field(
        None, description=EGRESS + " It holds at once; connections that it does not allow are cut."
    )
    resume_on_topoff: No | None = Field(
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
            changes = {k: v for k, v in said.items() if (k, v) != ("resume_on_topoff", False)}
            refuse_later(changes, LATER)
        return said

    def changes(self) -> Changes:
        """Return what is asked for."""
        return Changes(**self.model_dump(exclude={"resume_on_topoff"}))


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
    config_id: str | None = Field(
        None,
        description="The configuration that it was made of; one that brought its own manifest has"
        " one too, which is in no list.",
    )
    workspace_id: str | None = Field(
        None, description="The workspace that it has as `/workspace`, if that outlives it."
    )
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
    egress: str | dict[str, Any] = Field(
        description="Torpor: what its machine may reach.", examples=["unrestricted"]
    )
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
