"""Manifests in both formats: with all keys side by side, and the older envelope."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from torpor.api.schemas.body import Asked, Zero
from torpor.api.schemas.egress import EGRESS, Policy
from torpor.sessions.manifests import OWN
from torpor.sessions.model import NO_TEMPLATE, NewSession

LATER = {
    "budget": "needs the ledger, which this version does not have",
    "interactive": "needs an agent, and this version runs none",
    "max_lifetime": "is not kept by this version",
    "memory": "needs an agent, and this version runs none; size says how much memory there is",
    "model": "needs an agent, and this version runs none",
    "mounts": "needs shared directories, which this version does not have",
    "permissions": "needs an agent, and this version runs none",
    "repos": "is not fetched by this version",
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

NAMES = (
    "1 to 64 letters, digits, '.', '_' and '-', the first and the last a letter or a"
    " digit; no other living session has it."
)
LABELS = "Torpor: marks by which sessions can be listed, at most 64."
METADATA = "Torpor: anything that is to be kept with the session, and is given back as it was."
IDLE = (
    "After how many seconds without use the session pauses by itself (5 s to 30 days; 0 never); a"
    " duration such as `1h30m` is read too."
)


WORKSPACES = (
    "The workspace that it is to have as `/workspace`: its id. Torpor: its name will do, if no"
    " other one has it."
)
PERSISTENT = (
    "Make a workspace for it, which outlives it; `workspace_id` of the session says which. With a"
    " `workspace_id` it is that one, and none is made."
)


def refuse_later(said: Mapping[str, Any], later: Mapping[str, str]) -> None:
    """Raise ValueError for keys that are known, and cannot be had for the reasons ``later``."""
    found = [f"key {key!r} {later[key]}" for key in said if key in later]
    if found:
        raise ValueError("; ".join(found))


class Refusing(Asked):
    """A body of which some keys are known, and cannot be had: ``later`` says why."""

    later: ClassVar[Mapping[str, str]]

    @model_validator(mode="before")
    @classmethod
    def _refuse_later(cls, said: object) -> object:
        if isinstance(said, dict):
            refuse_later(said, cls.later)
        return said


class NewSessionBody(Refusing):
    """A session that is to be."""

    later = LATER
    name: str | None = Field(
        None, description=NAMES + " Made up if it is left out.", examples=["build-7"]
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
    labels: Texts = Field({}, description=LABELS)
    metadata: dict[str, Any] = Field({}, description=METADATA, examples=[{"ticket": 7742}])
    idle_timeout: Seconds | None = Field(None, description=IDLE, examples=[900])
    keep_warm: bool = Field(False, description="Never pause by itself.")
    persistent_workspace: bool = Field(False, description=PERSISTENT)
    workspace_id: str | None = Field(None, description=WORKSPACES, max_length=256)
    description: str = Field("", description="What it is for; kept with its configuration.")
    egress: Policy = Field(None, description=EGRESS)
    agent: Literal["none"] = Field(
        "none", description="What runs in the machine: this version runs no agents."
    )

    def new(self) -> NewSession:
        """Return what is asked for."""
        said = self.model_dump(exclude={"agent", "workspace_id"})
        return NewSession(**said, workspace=self.workspace_id or None)


_AGENT = "needs an agent, and this version runs none"
_FETCHED = "is not fetched by this version"
_GATEWAY = "needs the gateway, which this version does not have"
LATER_IN_SPEC = {
    "defaults": "needs the ledger, which this version does not have",
    "memory": _AGENT,
    "model": _AGENT,
    "permissions": _AGENT,
    "secrets": _GATEWAY,
    "serving": _AGENT,
    "skills": _AGENT,
    "tools": _GATEWAY,
    "workspace": _FETCHED,
}
LATER_IN_SANDBOX = {
    "maxLifetimeSeconds": "is not kept by this version",
    "mounts": "needs shared directories, which this version does not have",
}


class EnvelopeMetadata(Asked):
    """What an envelope says of a session besides what it is."""

    name: str | None = Field(default=None, description=NAMES, examples=["build-7"])
    labels: Texts = Field(default={}, description=LABELS)
    description: str = Field(default="", description="What it is for.")


class EnvelopeRuntime(Asked):
    """What runs in the machine."""

    adapter: str = Field(description="`none`: this version runs no agents.", examples=["none"])

    @model_validator(mode="before")
    @classmethod
    def _refuse_agents(cls, said: object) -> object:
        if isinstance(said, dict):
            refuse_later(said, {"config": _AGENT, "custom": _AGENT})
            if isinstance(adapter := said.get("adapter"), str) and adapter != "none":
                raise ValueError(f"adapter {adapter!r} {_AGENT}; write 'none'")
        return said


class EnvelopeSandbox(Refusing):
    """What machine it is."""

    later = LATER_IN_SANDBOX
    size: str = Field(
        default="", alias="sizeSlug", description="Its size; the server's default if empty."
    )
    idle_timeout: int = Field(
        default=0,
        alias="idleTimeoutSeconds",
        ge=0,
        description="After how many seconds without use it pauses; 0 is the server's default.",
    )
    template: str = Field(
        default="",
        description="The template to start from, by its id or its name. Empty, and `coding`, which"
        " is what others begin with, choose none.",
    )
    persistent_workspace: bool = Field(
        default=False,
        alias="persistentWorkspace",
        description="Make a workspace for it, which outlives it.",
    )
    egress: Policy = Field(default=None, description=EGRESS)


class EnvelopeOwn(Asked):
    """What only Torpor has."""

    egress: Policy = Field(
        default=None, description=EGRESS + " What others know too stands in `sandbox`."
    )
    image: str | None = Field(default=None, description="The image to start from.")
    keep_warm: bool = Field(default=False, alias="keepWarm", description="Never pause by itself.")
    never_idle: Zero | None = Field(
        default=None,
        alias="idleTimeoutSeconds",
        description="0: it is never paused for being idle.",
    )
    metadata: dict[str, Any] = Field(default={}, description=METADATA)


class EnvelopeSpec(Refusing):
    """What the session is."""

    later = LATER_IN_SPEC
    runtime: EnvelopeRuntime
    sandbox: EnvelopeSandbox = Field(EnvelopeSandbox(), description="What machine it is.")
    env: Texts = Field({}, description="Variables that every command in the session gets.")
    mode: Literal["interactive"] = Field("interactive", description="How it is used.")
    own: EnvelopeOwn = Field(EnvelopeOwn(), alias="x-torpor", description="What only Torpor has.")

    @model_validator(mode="after")
    def _one_idle_timeout(self) -> Self:
        if self.own.never_idle is not None and self.sandbox.idle_timeout:
            raise ValueError(f"there are two idle timeouts, in 'sandbox' and in {OWN!r}")
        if self.own.egress is not None and self.sandbox.egress is not None:
            raise ValueError(f"there are two policies of egress, in 'sandbox' and in {OWN!r}")
        return self


class EnvelopeBody(Asked):
    """A session that is to be, in the older format of manifests."""

    version: Literal["agents.digitalocean.com/v1alpha1"] = Field(alias="apiVersion")
    kind: Literal["Agent"]
    metadata: EnvelopeMetadata = Field(EnvelopeMetadata(), description="What it is called.")
    spec: EnvelopeSpec

    def new(self) -> NewSession:
        """Return what is asked for."""
        sandbox, own = self.spec.sandbox, self.spec.own
        return NewSession(
            name=self.metadata.name,
            image=own.image,
            template=None if sandbox.template == NO_TEMPLATE else sandbox.template or None,
            size=sandbox.size or None,
            env=self.spec.env,
            labels=self.metadata.labels,
            metadata=own.metadata,
            idle_timeout=sandbox.idle_timeout or own.never_idle,
            keep_warm=own.keep_warm,
            persistent_workspace=sandbox.persistent_workspace,
            egress=sandbox.egress if own.egress is None else own.egress,
            description=self.metadata.description,
            version=self.version,
        )
