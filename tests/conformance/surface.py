"""What DigitalOcean's Python client offers for agents: every public method, found in the client.

The name of a method is the group that it belongs to and its own: ``agents.sessions.get``. Two
groups are objects that methods return, ``events`` and ``download``; ``session`` is the handle of a
session. What only a run of an agent returns (``RunStream``) is not reached without one, and left
out.
"""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pydo.agents.custom_sessions
import pydo.agents.session
import pydo.aio.agents.custom_sessions
import pydo.aio.agents.session


@dataclass(frozen=True)
class Method:
    """A public method, and in which of the two clients it is."""

    name: str
    waits: bool
    """In the one that blocks."""
    awaits: bool
    """In the one for coroutines."""


def surface(client: Any, async_client: Any) -> dict[str, Method]:
    """Return all methods by name, in the order of the groups and of their definition."""
    waits = dict.fromkeys(_methods(_groups(client, pydo.agents, "")))
    awaits = dict.fromkeys(_methods(_groups(async_client, pydo.aio.agents, "Async")))
    return {name: Method(name, name in waits, name in awaits) for name in {**waits, **awaits}}


def _groups(client: Any, package: Any, prefix: str) -> Iterator[tuple[str, type]]:
    yield "agents", type(client.agents)
    for name, value in vars(client.agents).items():
        if not name.startswith("_"):
            yield f"agents.{name}", type(value)
    yield "session", getattr(package.session, f"{prefix}AgentSession")
    yield "events", getattr(package.custom_sessions, f"{prefix}HarnessEventStream")
    yield "download", getattr(package.custom_sessions, f"{prefix}WorkspaceDownload")
    yield "harness", type(client.harness)


def _methods(groups: Iterator[tuple[str, type]]) -> Iterator[str]:
    for group, its_class in groups:
        for name, value in vars(its_class).items():
            if inspect.isfunction(value) and not name.startswith("_"):
                yield f"{group}.{name}"
