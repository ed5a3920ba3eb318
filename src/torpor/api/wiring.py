"""What the routes are given: the parts of the server, and what every request brings."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from fastapi import Depends, Header, Path
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request

from torpor.api.bearers import Bearers, Caller
from torpor.api.devices import Device, Devices, device_of
from torpor.api.metrics import Metrics
from torpor.api.preview.addresses import Addresses
from torpor.api.routes import IDEMPOTENCY
from torpor.api.signing import Signed, Signer
from torpor.backup import Backups
from torpor.sessions import Sessions
from torpor.sessions.model import Actor, Key
from torpor.settings import Settings
from torpor.store.records import Session
from torpor.vm import GuestAgent

STREAMING_AT_ONCE = 8
"""Requests that bring or fetch files of workspaces and are served at the same time."""


@dataclass(frozen=True)
class Parts:
    """The parts of one server. ``closing`` is set when it is about to stop: streams end then.
    ``bearers`` is None where no authentication is asked for, ``backups`` where none can be made,
    ``previews`` where there are none. ``streaming`` is the turn of those who bring or fetch files
    of workspaces."""

    sessions: Sessions
    bearers: Bearers | None
    settings: Settings
    signer: Signer
    metrics: Metrics
    backups: Backups | None = None
    previews: Addresses | None = None
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    devices: Devices = field(default_factory=Devices)
    streaming: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(STREAMING_AT_ONCE)
    )


def parts_of(connection: HTTPConnection) -> Parts:
    """Return the parts of the server that serves a request."""
    parts = connection.app.state.parts
    assert isinstance(parts, Parts)
    return parts


# FastAPI hands each dependency that is no coroutine to a thread; these have nothing to wait for.


async def _parts(connection: HTTPConnection) -> Parts:
    return parts_of(connection)


async def _sessions(connection: HTTPConnection) -> Sessions:
    return parts_of(connection).sessions


def caller_of(connection: HTTPConnection) -> Caller:
    """Return who makes a request; the gate has put it there."""
    caller = connection.state.caller
    assert isinstance(caller, Caller)
    return caller


async def _caller(connection: HTTPConnection) -> Caller:
    return caller_of(connection)


async def _actor(connection: HTTPConnection) -> Actor:
    return caller_of(connection).actor


Service = Annotated[Sessions, Depends(_sessions)]
By = Annotated[Actor, Depends(_actor)]
Asker = Annotated[Caller, Depends(_caller)]
Server = Annotated[Parts, Depends(_parts)]


async def _actor_with_device(by: By, said: Device = None) -> Actor:
    return replace(by, device=device_of(said))


ByDevice = Annotated[Actor, Depends(_actor_with_device)]
"""Who makes a request, and from which device: events of what it does tell of it."""


async def _key(
    request: Request,
    said: Annotated[
        str | None,
        Header(
            alias=IDEMPOTENCY,
            min_length=1,
            max_length=255,
            description="Torpor: what is asked for again with the same key is not done again; the"
            " answer is that of the first time.",
        ),
    ] = None,
) -> Key | None:
    if said is None:
        return None
    # What makes a request the same: method, path, parameters and body.
    what = hashlib.sha256()
    for part in (request.method, request.url.path, request.url.query):
        what.update(part.encode() + b"\0")
    what.update(await request.body())
    return Key(said, what.hexdigest())


Idempotency = Annotated[Key | None, Depends(_key)]


async def _found(
    connection: HTTPConnection,
    service: Service,
    session_id: Annotated[
        str,
        Path(
            max_length=64,
            description="The session's id. Torpor: its name will do, or the beginning of its id (4"
            " characters or more) if there is no other like it.",
        ),
    ],
) -> Session:
    found = await service.find(session_id)
    connection.state.session = found.id
    return found


Found = Annotated[Session, Depends(_found)]
"""The session that the path names. Raises NotFoundError."""


def signed(purpose: str) -> Any:
    """Return the dependency that is what the URL of a request allows (:class:`Signed`), for
    ``purpose`` and nothing else."""

    async def allowed(connection: HTTPConnection) -> Signed:
        found = connection.state.signed
        assert isinstance(found, Signed)
        if found.purpose != purpose:
            raise HTTPException(404)
        return found

    return Depends(allowed)


async def _id(found: Found) -> str:
    return found.id


SessionId = Annotated[str, Depends(_id)]
"""Its id."""


async def _used(service: Service, session_id: SessionId, by: By) -> AsyncIterator[GuestAgent]:
    # FastAPI leaves this when the answer has been sent, or could not be.
    async with service.use(session_id, by) as used:
        yield used.agent


Agent = Annotated[GuestAgent, Depends(_used)]
"""The agent of the session's machine, which is thawed for it and stays until the answer has been
sent."""


def note(connection: HTTPConnection, **facts: Any) -> None:
    """Add to what the event of this call will tell."""
    connection.scope["state"].setdefault("noted", {}).update(facts)
