"""Waiting for a session to be ready, with what the server tells of it meanwhile."""

from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torpor.cli.progress import Shown

if TYPE_CHECKING:
    from torpor.client import Client, Event, Session

ENDS = frozenset({"session.ready", "session.failed", "session.destroyed", "session.paused"})
"""Types of events after which there is nothing to wait for."""


@dataclass(frozen=True)
class Told:
    """A step that the server has told of."""

    name: str
    done: int | None = None
    total: int | None = None
    unit: str = ""


def until_ready(client: "Client", session: "Session") -> "Session":
    """Return a session once it is no longer PROVISIONING; what it does until then is shown. The
    warnings with which it was made stay with it."""
    with Shown() as shown:
        if session.status == "PROVISIONING":
            shown.report(Told(f"starting {session.name}"))
        while session.status == "PROVISIONING":
            with closing(client.events(session.id)) as events:
                for event in events:
                    if event.type in ENDS:
                        break
                    step = step_of(event)
                    if step is not None:
                        shown.report(step)
            session = replace(client.get_session(session.id), warnings=session.warnings)
        if session.status == "FAILED":
            shown.abandon()
    return session


def step_of(event: "Event") -> Told | None:
    """Return the step of a start that an event tells of."""
    step = event.data.get("step") if event.type == "session.progress" else None
    return Told(step) if isinstance(step, str) else None
