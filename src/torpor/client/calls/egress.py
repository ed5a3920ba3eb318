"""Egress: what sessions may reach, what was decided about it, and where their data went."""

from collections.abc import Mapping, Sequence
from typing import Any

from torpor.client import fields
from torpor.client.call import JSON, Answer, Call, document, path, query
from torpor.client.egress_records import (
    Decision,
    Egress,
    Flow,
    Policy,
    decision,
    egress,
    flow,
    written,
)
from torpor.client.records import Page


def get_egress(session: str) -> Call[Egress]:
    """Return what a session may reach."""
    return Call("GET", path("sessions", session, "egress"), _egress)


def set_egress(session: str, policy: Policy | Sequence[str]) -> Call[Egress]:
    """Have a session have another policy: ``unrestricted``, ``none``, a list of rules, or an object
    with ``allow``, ``presets``, ``deny``. It holds at once; what it does not allow is cut. Raises
    :exc:`InvalidError` for what would not be honoured."""
    return _changing(session, policy=written(policy))


def change_egress(
    session: str, *, add: Sequence[str | Mapping[str, Any]] = (), remove: Sequence[str] = ()
) -> Call[Egress]:
    """Add rules to the policy of a session, and remove some. Raises :exc:`InvalidError`, also where
    everything public may be reached, so that there is nothing to be added to."""
    return _changing(session, add=list(add) or None, remove=list(remove) or None)


def _changing(session: str, **said: Any) -> Call[Egress]:
    return Call(
        "PATCH",
        path("sessions", session, "egress"),
        _egress,
        headers=JSON,
        content=document(**said),
    )


def _egress(answer: Answer) -> Egress:
    return egress(fields.part(answer.json(), "egress"))


def list_decisions(
    session: str,
    *,
    allowed: bool | None = None,
    host: str | None = None,
    limit: int = 50,
    after: str | None = None,
) -> Call[Page[Decision]]:
    """Return decisions about connections of a session, the newest first: only what was ``allowed``,
    or was not, and only of one ``host``. ``after`` is ``next`` of the page before."""

    def read(answer: Answer) -> Page[Decision]:
        said = answer.json()
        found = fields.parts(said, "decisions", decision)
        return Page(found, fields.perhaps_text(said, "next_page_token"))

    return Call(
        "GET",
        path("sessions", session, "egress", "decisions"),
        read,
        query=query(
            allowed=None if allowed is None else str(allowed).lower(),
            host=host,
            page_size=limit,
            page_token=after,
        ),
    )


def list_flows(session: str, *, everything: bool = False) -> Call[tuple[Flow, ...]]:
    """Return every host that has received data of a session, what has received most first; with
    ``everything`` also those that were only denied."""
    return Call(
        "GET",
        path("sessions", session, "flows"),
        lambda answer: fields.parts(answer.json(), "flows", flow),
        query=query(all=everything),
    )
