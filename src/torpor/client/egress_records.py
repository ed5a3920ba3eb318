"""What sessions may reach, what was decided about it, and where their data went, as plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from torpor.client import fields
from torpor.client.errors import AnswerError
from torpor.client.fields import Said

Policy = str | Mapping[str, Any]
"""``unrestricted``, ``none``, or an object with what is allowed."""


@dataclass(frozen=True)
class Egress:
    """What a session may reach. ``mode`` is open, list or none; ``notes`` is what should be known
    of it. ``cut`` is how many connections a change has cut, None if this is no answer to one."""

    session: str
    policy: Policy
    mode: str
    notes: tuple[str, ...] = ()
    cut: int | None = None


def egress(said: Said) -> Egress:
    """Read what a session may reach."""
    return Egress(
        session=fields.text(said, "session_id"),
        policy=policy(said, "policy"),
        mode=fields.text(said, "mode"),
        notes=fields.texts(said, "notes"),
        cut=fields.perhaps_number(said, "connections_cut"),
    )


def policy(said: Said, name: str) -> Policy:
    """Read a policy; one that is missing lets everything public through."""
    found = said.get(name, "unrestricted")
    if not isinstance(found, str | dict):
        raise AnswerError(f"The server's answer has a {name!r} that is no policy.")
    return found


def written(policy: Policy | Sequence[str]) -> object:
    """Return a policy, or a list of rules, as it is sent."""
    return policy if isinstance(policy, (str, Mapping)) else list(policy)


@dataclass(frozen=True)
class Decision:
    """What the wall decided once, or ``count`` times alike between ``at`` and ``until``. ``add`` is
    the rule that would allow what was denied; ``host`` is empty for many that stand together."""

    id: str
    session: str
    at: datetime
    until: datetime
    count: int
    host: str
    port: int
    transport: str
    allowed: bool
    rule: str
    why: str = ""
    add: str = ""
    ended: bool = False
    seconds: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    address: str | None = None
    spoken: str | None = None
    inspected: bool = False
    secrets: tuple[str, ...] = field(default=())


def decision(said: Said) -> Decision:
    """Read a decision."""
    return Decision(
        id=fields.text(said, "decision_id"),
        session=fields.text(said, "session_id"),
        at=fields.moment(said, "at"),
        until=fields.moment(said, "until"),
        count=fields.number(said, "count", 1),
        host=fields.text(said, "host", ""),
        port=fields.number(said, "port", 0),
        transport=fields.text(said, "transport", "tcp"),
        allowed=fields.flag(said, "allowed"),
        rule=fields.text(said, "rule", ""),
        why=fields.text(said, "why", ""),
        add=fields.text(said, "add", ""),
        ended=fields.flag(said, "ended", False),
        seconds=fields.real(said, "seconds", 0.0),
        sent_bytes=fields.number(said, "sent_bytes", 0),
        received_bytes=fields.number(said, "received_bytes", 0),
        address=fields.perhaps_text(said, "address"),
        spoken=fields.perhaps_text(said, "spoken"),
        inspected=fields.flag(said, "inspected", False),
        secrets=fields.texts(said, "secrets"),
    )


@dataclass(frozen=True)
class Flow:
    """What went from a session to one place, and back. ``name`` is empty for the places beyond
    those that are kept apart, together."""

    kind: str
    name: str
    first_at: datetime
    last_at: datetime
    connections: int
    denied: int
    sent_bytes: int
    received_bytes: int
    inspected: bool = False
    secrets: tuple[str, ...] = ()


def flow(said: Said) -> Flow:
    """Read what went to one place."""
    return Flow(
        kind=fields.text(said, "kind", "host"),
        name=fields.text(said, "name", ""),
        first_at=fields.moment(said, "first_at"),
        last_at=fields.moment(said, "last_at"),
        connections=fields.number(said, "connections", 0),
        denied=fields.number(said, "denied", 0),
        sent_bytes=fields.number(said, "sent_bytes", 0),
        received_bytes=fields.number(said, "received_bytes", 0),
        inspected=fields.flag(said, "inspected", False),
        secrets=fields.texts(said, "secrets"),
    )
