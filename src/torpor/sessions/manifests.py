"""Manifests in their canonical form: what a stored configuration holds, and its hash is of.

The form is DigitalOcean's envelope, in which its API answers, however the manifest was written. A
default is not written down, so that two manifests that ask for the same have the same hash. It can
be read as a manifest itself. What only Torpor has stands below ``spec`` in ``x-torpor``.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from torpor.sessions.egress_policy import Plain, normal
from torpor.sessions.errors import InvalidError
from torpor.sessions.model import ENVELOPE, NewSession

KIND = "Agent"
NO_AGENT = "none"
OWN = "x-torpor"
CREDENTIAL = re.compile(
    r"(?<![A-Za-z0-9])(?:dop_v1_[0-9a-f]{8}|gh[pousr]_[A-Za-z0-9]{8}|github_pat_[A-Za-z0-9_]{8}"
    r"|sk-[A-Za-z0-9_-]{16}|AKIA[0-9A-Z]{16}|xox[abprs]-[A-Za-z0-9-]{8})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
"""How values begin that let whoever has them in somewhere: tokens of DigitalOcean, GitHub, OpenAI
and Slack, keys of Amazon, private keys."""


def canonical(new: NewSession) -> dict[str, Any]:
    """Return the canonical form of a manifest. The name is not part of it, nor is the workspace:
    only one session can have it."""
    metadata = _said(labels=dict(new.labels), description=new.description)
    egress = normal(new.egress)
    known = _is_known(egress)
    sandbox = _said(
        sizeSlug=new.size,
        template=new.template,
        idleTimeoutSeconds=new.idle_timeout,
        persistentWorkspace=new.persistent_workspace,
        egress=egress if known else None,
    )
    own = _said(
        image=new.image,
        keepWarm=new.keep_warm,
        metadata=dict(new.metadata),
        egress=None if known else egress,
    )
    if new.idle_timeout == 0:  # there 0 is the server's own, here it is never
        own["idleTimeoutSeconds"] = 0
    spec = {
        "runtime": {"adapter": NO_AGENT},
        **_said(sandbox=sandbox, env=dict(new.env)),
        **({OWN: own} if own else {}),
    }
    return {
        "apiVersion": ENVELOPE,
        "kind": KIND,
        **({"metadata": metadata} if metadata else {}),
        "spec": spec,
    }


def _is_known(egress: Plain) -> bool:
    """Return whether DigitalOcean's manifests can say a policy."""
    if not isinstance(egress, dict):
        return egress is None
    return egress.keys() == {"allow"} and all(each.keys() == {"host"} for each in egress["allow"])


def _said(**members: Any) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value}


def of_canonical(document: Mapping[str, Any], name: str | None, config: str) -> NewSession:
    """Return the session called ``name`` that the manifest of a configuration asks for."""
    spec = document["spec"]
    metadata, sandbox = document.get("metadata", {}), spec.get("sandbox", {})
    own = spec.get(OWN, {})
    return NewSession(
        name=name,
        image=own.get("image"),
        template=sandbox.get("template"),
        size=sandbox.get("sizeSlug"),
        env=spec.get("env", {}),
        labels=metadata.get("labels", {}),
        metadata=own.get("metadata", {}),
        idle_timeout=own.get("idleTimeoutSeconds", sandbox.get("idleTimeoutSeconds")),
        keep_warm=own.get("keepWarm", False),
        persistent_workspace=sandbox.get("persistentWorkspace", False),
        egress=own.get("egress", sandbox.get("egress")),
        description=metadata.get("description", ""),
        config=config,
    )


def content_hash(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a canonical manifest, in hexadecimal digits: of its JSON in UTF-8 with
    sorted keys and nothing between them."""
    said = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(said.encode()).hexdigest()


def credentials(new: NewSession) -> list[str]:
    """Return the variables of a manifest whose values look like credentials."""
    return sorted(name for name, value in new.env.items() if CREDENTIAL.search(value))


def check_kept(new: NewSession) -> None:
    """Raise :exc:`InvalidError` if a manifest has what is not to be kept in a configuration."""
    if new.workspace is not None:
        raise InvalidError(
            "workspace_id: only one session at a time can have a workspace, and of a configuration"
            " there may be many.",
            state="Nothing was stored.",
            todo="Name the workspace when a session is made; or write persistent_workspace, for"
            " each to get one of its own.",
        )
    found = credentials(new)
    if found:
        raise InvalidError(
            f"env: the value of {', '.join(found)} looks like a credential, and a configuration is"
            " shown to everybody who may use sessions.",
            state="Nothing was stored.",
            todo="Leave it out, and give it to the commands that need it.",
        )


def warnings_of(new: NewSession) -> list[str]:
    """Return what is odd about a manifest, and no reason to refuse it."""
    found = [
        f"env: the value of {name} looks like a credential; everything in the machine can read it,"
        " and so can everybody who may use the session."
        for name in credentials(new)
    ]
    if new.version == ENVELOPE:
        found.insert(0, "The format with apiVersion is deprecated; write the flat one.")
    return found
