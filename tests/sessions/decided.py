"""Decisions of the wall; each has what a test does not care about."""

from datetime import UTC, datetime, timedelta
from typing import Any

from torpor.network.decisions import Decision

START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def later(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def allowed(host: str | None = "a.test", **rest: Any) -> Decision:
    """A connection that was allowed, and has begun."""
    filled: dict[str, Any] = {
        "at": START,
        "transport": "tcp",
        "name": host,
        "address": "198.18.1.1",
        "port": 443,
        "spoken": "tls",
        "allowed": True,
        "rule": "a.test",
        "connected_to": "192.0.2.1",
    }
    return Decision(**filled | rest)


def ended(host: str = "a.test", sent: int = 10, received: int = 20, **rest: Any) -> Decision:
    """A connection that has ended."""
    filled: dict[str, Any] = {
        "ended": True, "seconds": 1.0, "sent_bytes": sent, "received_bytes": received,
    }  # fmt: skip
    return allowed(host, **filled | rest)


def denied(host: str | None = "evil.test", **rest: Any) -> Decision:
    """A connection that was denied."""
    filled: dict[str, Any] = {
        "allowed": False,
        "ended": True,
        "rule": "list",
        "why": f"no rule allows {host}",
        "add": f"{host}:443",
        "connected_to": None,
        "spoken": None,
    }
    return allowed(host, **filled | rest)
