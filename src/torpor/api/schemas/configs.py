"""Configurations."""

from typing import Any

from pydantic import Field, model_validator

from torpor.api.schemas.body import Answered, Asked, Time

CONFIG_ID = "5b7c1f3e-3d8a-4f0e-9a55-7d2f6f0c1e11"
_NAME = (
    "1 to 64 letters, digits, '.', '_' and '-', the first and the last a letter or a digit; no"
    " other configuration has it."
)
_EXAMPLE = "size: mars-2vcpu-1gb\nenv:\n  LANG: C.UTF-8\nidle_timeout: 15m\n"
_MANIFEST = {
    "apiVersion": "agents.digitalocean.com/v1alpha1",
    "kind": "Agent",
    "spec": {
        "runtime": {"adapter": "none"},
        "sandbox": {"sizeSlug": "mars-2vcpu-1gb", "idleTimeoutSeconds": 900},
        "env": {"LANG": "C.UTF-8"},
    },
}


class InsightsBody(Asked):
    """What is sent to DigitalOcean's Insights: nothing."""

    logs: bool = Field(False, description="Only false.")
    metrics: bool = Field(False, description="Only false.")
    traces: bool = Field(False, description="Only false.")

    @model_validator(mode="after")
    def _nothing_is_sent(self) -> "InsightsBody":
        if self.logs or self.metrics or self.traces:
            raise ValueError(
                "nothing is sent to Insights, which is DigitalOcean's; events and /metrics tell of"
                " sessions here"
            )
        return self


class NewConfigBody(Asked):
    """A configuration that is to be."""

    name: str = Field(description=_NAME, examples=["build"])
    manifest_yaml: str = Field(
        description="The manifest, as it is sent to make a session, at most 512 KiB; a name in it"
        " is left out.",
        examples=[_EXAMPLE],
    )
    insights: InsightsBody | None = Field(None, description="Only with nothing chosen.")


class CloneBody(Asked):
    """What is to be different about a clone."""

    name: str = Field(description=_NAME, examples=["build-2"])
    secrets: dict[str, str] | None = Field(
        None, description="Only empty: no configuration asks for secrets in this version."
    )
    oauth_assignments: dict[str, str] | None = Field(None, description="Likewise.")

    @model_validator(mode="after")
    def _no_slots(self) -> "CloneBody":
        for name in ("secrets", "oauth_assignments"):
            if getattr(self, name):
                raise ValueError(f"key {name!r}: the configuration has no slots for any")
        return self


class ConfigSummary(Answered):
    """A configuration, without its manifest."""

    id: str = Field(description="Its id.", examples=[CONFIG_ID])
    name: str = Field(description="Its name.", examples=["build"])
    content_hash: str = Field(
        description="SHA-256 of the canonical manifest's JSON with sorted keys, in hexadecimal"
        " digits.",
        examples=["1f" * 32],
    )
    agentspec_schema_version: str = Field(
        description="The format in which the manifest was written.",
        examples=["agents.digitalocean.com/flat.v1"],
    )
    created_by: str = Field(description="The id of the token that made it.", examples=["tok_5f1c"])
    created_at: Time
    updated_at: Time


class ConfigBody(ConfigSummary):
    """A configuration."""

    manifest: dict[str, Any] = Field(
        description="The manifest in its canonical form; its variables are for those who may use"
        " sessions.",
        examples=[_MANIFEST],
    )
    credentials: list[dict[str, str]] = Field(
        [], description="The slots for secrets that it has: none in this version."
    )
    insights: dict[str, bool] | None = Field(
        None, description="As it was given.", examples=[{"logs": False}]
    )


class OneConfig(Answered):
    """A configuration."""

    config: ConfigBody


class ConfigPage(Answered):
    """Some configurations, the newest first."""

    configs: list[ConfigSummary]
    next_page_token: str = Field(
        description="Names the next page as `page_token`; empty when there are no more.",
        examples=[""],
    )
