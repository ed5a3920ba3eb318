"""Policies over an agent's tools, and what is said of them."""

from typing import Literal

from pydantic import Field

from torpor.api.schemas.body import Answered, Asked
from torpor.api.schemas.manifests import Refusing

Action = Literal["allow", "ask", "deny"]
Enforcement = Literal["strict", "best-effort"]
LATER = {
    "filesystem": "needs an agent that keeps to it, and this version runs none",
    "network": "needs an agent, and this version runs none; 'egress' says what is reached",
}


class RuleBody(Asked):
    """What becomes of calls of a tool."""

    tool: str = Field(min_length=1, description="The tool.", examples=["bash"])
    action: Action = Field(description="What becomes of its calls.")
    match: dict[str, str] = Field(
        {}, description="Which calls of it.", examples=[{"command": "npm run deploy"}]
    )
    enforcement: Enforcement | None = Field(
        None,
        description="Whether a session in which the rule cannot be kept is refused (`strict`); left"
        " out: only if its action is `deny`.",
    )


class PermissionsBody(Refusing):
    """The policy of a manifest."""

    later = LATER
    default: Action = Field("ask", description="What becomes of calls that no rule is about.")
    rules: list[RuleBody] = Field([], description="The rules.")


class OlderPermissionsBody(PermissionsBody):
    """The policy of a manifest in the older format."""

    default: Action = Field("ask", alias="defaultAction", description="As in the other format.")


class RuleSaid(Answered):
    """A rule as it is understood."""

    id: str = Field(description="The same for the same rule.", examples=["rule-3f9a01c2"])
    tool: str
    action: Action
    match: dict[str, str]
    enforcement: Enforcement


class Verdict(Answered):
    """What is said of a rule."""

    rule: RuleSaid
    verdict: Literal["exact", "degraded", "unsupported", "unverified"] = Field(
        description="Whether the agent can keep to it."
    )
    reason: str | None = Field(None, description="Why not.")
    suggestion: str | None = Field(None, description="What to do about it.")


class PolicyVerdicts(Answered):
    """What is said of a policy."""

    ok: bool = Field(description="Whether a session with it could be made.")
    agent: str = Field(description="What would have to keep to it.", examples=["none"])
    default_action: Action = Field(alias="defaultAction", description="What no rule is about.")
    verdicts: list[Verdict] = Field(description="Of each rule, in their order.")
