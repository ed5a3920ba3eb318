"""Policies over an agent's tools, looked at before a session has one."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from torpor.api.bodies import Document, Place, check_body, wrong
from torpor.api.manifests import described_body, is_older, read_document, read_manifest
from torpor.api.permissions import Permission, needs
from torpor.api.routes import errors, router
from torpor.api.schemas.policy import (
    OlderPermissionsBody,
    PermissionsBody,
    PolicyVerdicts,
    RuleBody,
    RuleSaid,
    Verdict,
)
from torpor.sessions.manifests import NO_AGENT
from torpor.sessions.model import check_new

routes = router("sessions")

KEY = "permissions"


@routes.post(
    "/sessions/policy/validate",
    responses=errors(400, 413, 415),
    openapi_extra=described_body("NewSessionBody", "EnvelopeBody"),
    summary="Look at the policy of a manifest",
)
@needs(Permission.USE)
async def validate_policy(request: Request) -> PolicyVerdicts:
    """Say of each rule of a manifest's policy whether it could be kept. Nothing is made.

    The manifest is that of a session that is to be, and besides may have `permissions`. In a
    session without an agent nobody calls tools, so no rule can be kept there.
    """
    document = await read_document(request)
    if not document.value:
        raise wrong("the body is missing")
    manifest, permissions = _apart(document)
    check_new(read_manifest(manifest))
    model = OlderPermissionsBody if is_older(document) else PermissionsBody
    said = check_body(model, permissions)
    assert isinstance(said, PermissionsBody)
    verdicts = [_verdict(rule) for rule in said.rules]
    return PolicyVerdicts(
        ok=not any(each.rule.enforcement == "strict" for each in verdicts),
        agent=NO_AGENT,
        defaultAction=said.default,
        verdicts=verdicts,
    )


def _apart(document: Document) -> tuple[Document, Document]:
    """Return a manifest without its policy, and the policy."""
    place: Place = ("spec", KEY) if is_older(document) else (KEY,)
    manifest, permissions = _without(document.value, place)
    lines = {
        line_of[len(place) :]: line
        for line_of, line in document.lines.items()
        if line_of[: len(place)] == place
    }
    said = {} if permissions is None else permissions
    return Document(manifest, document.lines), Document(said, lines)


def _without(value: Any, place: Place) -> tuple[Any, Any]:
    if not isinstance(value, Mapping) or place[0] not in value:
        return value, None
    rest = {name: each for name, each in value.items() if name != place[0]}
    if len(place) == 1:
        return rest, value[place[0]]
    inner, found = _without(value[place[0]], place[1:])
    return {**rest, place[0]: inner}, found


def _verdict(rule: RuleBody) -> Verdict:
    enforcement = rule.enforcement or ("strict" if rule.action == "deny" else "best-effort")
    said = json.dumps([rule.tool, rule.action, rule.match, enforcement], sort_keys=True)
    return Verdict(
        rule=RuleSaid(
            id=f"rule-{hashlib.sha256(said.encode()).hexdigest()[:8]}",
            tool=rule.tool,
            action=rule.action,
            match=rule.match,
            enforcement=enforcement,
        ),
        verdict="unsupported",
        reason="No agent runs in the session that would call this tool.",
        suggestion="Leave the rule out.",
    )
