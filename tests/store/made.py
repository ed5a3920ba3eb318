"""Records to fill a database with; each has what a test does not care about."""

from datetime import UTC, datetime, timedelta
from typing import Any

from torpor.store.records import (
    Build,
    Config,
    EgressEntry,
    Event,
    Flow,
    Operation,
    Sample,
    Session,
    Snapshot,
    Status,
    Template,
    Token,
    Traffic,
    Workspace,
)

START = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)


def later(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def session(name: str, **rest: Any) -> Session:
    filled = {
        "id": f"id-of-{name}",
        "name": name,
        "status": Status.READY,
        "image": "default",
        "size": "mars-2vcpu-1gb",
        "created_at": START,
        "updated_at": START,
        "used_at": START,
        "created_by": "someone",
    }
    return Session(**filled | rest)


def config(name: str, **rest: Any) -> Config:
    filled = {
        "id": f"id-of-{name}",
        "name": name,
        "created_at": START,
        "updated_at": START,
        "created_by": "someone",
        "content_hash": f"hash-of-{name}",
        "schema_version": "flat",
        "manifest": {},
    }
    return Config(**filled | rest)


def snapshot(name: str, of: str, **rest: Any) -> Snapshot:
    filled = {
        "id": name,
        "session": of,
        "kind": "checkpoint",
        "generation": 1,
        "created_at": START,
        "checkpoint": f"checkpoint-{name}",
    }
    return Snapshot(**filled | rest)


def event(name: str, **rest: Any) -> Event:
    return Event(**{"id": name, "type": "session.paused", "at": START} | rest)


def operation(name: str, **rest: Any) -> Operation:
    filled = {"id": name, "kind": "pause", "actor": "someone", "started_at": START}
    return Operation(**filled | rest)


def token(name: str, **rest: Any) -> Token:
    filled = {"id": name, "name": name, "role": "viewer", "sha256": "0" * 64, "created_at": START}
    return Token(**filled | rest)


def sample(of: str, **rest: Any) -> Sample:
    filled: dict[str, Any] = {
        "session": of,
        "at": START,
        "machine": "m1",
        "vcpu": 1.25,
        "waited": 0.1,
        "emulator": 1e-9,
        "resident": 1 << 40,
        "private": 3,
        "stored": 0,
    }
    return Sample(**filled | rest)


def template(name: str, **rest: Any) -> Template:
    filled = {
        "id": f"id-of-{name}",
        "name": name,
        "created_at": START,
        "updated_at": START,
        "created_by": "someone",
        "status": "PENDING",
        "base": "sandbox",
        "source": "registry.test/team/tools:1",
    }
    return Template(**filled | rest)


def build(name: str, of: str, **rest: Any) -> Build:
    filled = {
        "id": name,
        "template": of,
        "created_at": START,
        "updated_at": START,
        "status": "PENDING",
        "base": "sandbox",
        "source": "registry.test/team/tools:1",
    }
    return Build(**filled | rest)


def workspace(name: str | None, **rest: Any) -> Workspace:
    filled = {
        "id": f"id-of-{name}",
        "name": name,
        "created_at": START,
        "updated_at": START,
        "created_by": "someone",
        "updated_by": "someone",
        "state": "AVAILABLE",
        "size_bytes": 1 << 30,
    }
    return Workspace(**filled | rest)


def entry(name: str, of: str, **rest: Any) -> EgressEntry:
    filled: dict[str, Any] = {
        "id": name,
        "session": of,
        "at": START,
        "until": START,
        "count": 1,
        "transport": "tcp",
        "host": "a.test",
        "port": 443,
        "allowed": True,
        "rule": "a.test",
    }
    return EgressEntry(**filled | rest)


def flow(of: str, **rest: Any) -> Flow:
    filled: dict[str, Any] = {
        "session": of,
        "kind": "host",
        "name": "a.test",
        "first_at": START,
        "last_at": START,
    }
    return Flow(**filled | rest)


def traffic(of: str, **rest: Any) -> Traffic:
    filled: dict[str, Any] = {
        "session": of,
        "at": START,
        "host": "a.test",
        "sent_bytes": 1,
        "received_bytes": 2,
    }
    return Traffic(**filled | rest)
