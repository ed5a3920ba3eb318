"""A service on a host of files, which can be stopped and started again."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.sessions.world import WorldHost
from tests.waiting import eventually
from torpor.sessions import Actor, NewSession, Sessions, TransferLimits
from torpor.store.database import Database
from torpor.store.errors import DiskFullError
from torpor.store.records import Session, Status

ANN = Actor("tok_ann", "ann")


class Service:
    """A service that is open, and what it stands on."""

    def __init__(self, root: Path, url: str) -> None:
        self.root = root
        self.url = url
        self.host = WorldHost(root / "world")
        self.options: dict[str, Any] = {"transfers": TransferLimits(root / "transfers")}
        self._opened: Database | None = None

    async def opened_database(self) -> Database:
        """Open the database before the service is, which takes it over."""
        self._opened = await Database.open(self.url)
        return self._opened

    async def open(self) -> "Service":
        """Start the service, on what the last one has left."""
        self.database = self._opened or await Database.open(self.url)
        self._opened = None
        self.sessions = await Sessions.open(self.database, self.host, **self.options)
        return self

    async def close(self, **how: bool) -> None:
        """Stop it in good order."""
        await self.sessions.close(**how)
        await self.database.close()

    async def again(self, host: WorldHost | None = None) -> None:
        """Stop it, and start the next one."""
        await self.close()
        self.host = host or WorldHost(self.root / "world", self.host.step)
        await self.open()

    async def ready(self, name: str = "one", **wanted: Any) -> Session:
        """Return a new session that runs."""
        made = await self.sessions.create(NewSession(name=name, **wanted), ANN)
        return await self.sessions.ready(made.id, 10)

    async def get(self, session: Session) -> Session:
        """Return a session as it stands now."""
        return await self.sessions.get(session.id)

    async def status(self, session: Session, wanted: Status) -> Session:
        """Return a session once it is in a state."""
        return await eventually(lambda: self.sessions.get(session.id), lambda s: s.status is wanted)

    async def types(self, session: Session | None = None) -> list[str]:
        """Return the types of the events so far."""
        found = await self.sessions.events.after(None, session.id if session else None)
        return [event.type for event in found]

    def machine(self, session: Session) -> str:
        """Return the machine of a session."""
        assert session.machine is not None
        return session.machine


@contextlib.contextmanager
def full_disk(database: Database, when: Callable[[str], bool]) -> Iterator[None]:
    """Have the commit of each transaction fail, while the block lasts, in whose statements there is
    one of which ``when`` says so. The database is then as before, as on a full disk."""
    real = database.write

    @contextlib.asynccontextmanager
    async def write() -> AsyncIterator[AsyncConnection]:
        said: list[str] = []
        async with real() as conn:
            engine = conn.sync_connection
            assert engine is not None

            def note(_c: Any, _u: Any, statement: str, values: Any, *_: Any) -> None:
                said.append(f"{statement} {values}")

            event.listen(engine, "before_cursor_execute", note)
            yield conn
            if any(map(when, said)):
                raise DiskFullError("The disk is full.")

    database.write = write  # type: ignore[method-assign]
    try:
        yield
    finally:
        database.write = real  # type: ignore[method-assign]


@pytest.fixture
async def service(tmp_path: Path, database_url: str) -> AsyncIterator[Service]:
    """A service without any session."""
    opened = await Service(tmp_path, database_url).open()
    yield opened
    await opened.close()
