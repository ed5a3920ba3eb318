"""A backup of a server that serves: it goes on, and what is saved is one moment of it."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from torpor.backup.alone import DIRECTORY, about, wanted_in
from torpor.backup.contents import Missing, Wanted
from torpor.backup.piped import piped
from torpor.backup.writing import Source, write_backup
from torpor.images.names import Names
from torpor.sessions import SessionError, Sessions
from torpor.sessions.model import Actor
from torpor.sessions.standing import RUNS
from torpor.store.database import Database
from torpor.store.errors import StoreError
from torpor.store.records import Session, Snapshot
from torpor.store.sessions import SessionQuery
from torpor.vm.store import Store

AT_ONCE = 4
"""Machines that are frozen at the same time; more would only wait for each other."""


@dataclass(frozen=True)
class Backups:
    """Makes backups of one server. ``store`` and ``home`` are those of its host, ``settings`` what
    is not a default."""

    sessions: Sessions
    database: Database
    store: Store
    home: Path
    settings: Mapping[str, Any]

    async def pieces(self, by: Actor, *, freeze_running: bool) -> AsyncGenerator[bytes, None]:
        """Yield a backup. With ``freeze_running`` each machine that runs is frozen for it, and runs
        on; else what is newest of it is taken. Raises what :mod:`torpor.store` raises, OSError."""
        missing: list[Missing] = []
        made: list[Snapshot] = []
        try:
            if freeze_running:
                await self._checkpoints(by, made, missing)
            async with self._held() as (file, wanted):
                for row in wanted.snapshots:
                    if not row.durable:
                        missing += await self._durable(row)
                source = Source(
                    about(self.settings), file, wanted, self.store, Names(self.home),
                    tuple(missing),
                )  # fmt: skip
                pieces = piped(lambda out, check: write_backup(source, out, check=check))
                async with aclosing(pieces):
                    async for piece in pieces:
                        yield piece
        finally:
            for each in made:  # they were made for the backup, and are in it
                with contextlib.suppress(SessionError, StoreError):
                    await self.sessions.delete_checkpoint(each.session, each.checkpoint or "", by)

    async def _checkpoints(self, by: Actor, made: list[Snapshot], missing: list[Missing]) -> None:
        """Freeze all machines that run, which run on; say of which that was not possible. What is
        in ``made`` is made, also if this is cut off."""
        running = await self._running()
        at_once = asyncio.Semaphore(AT_ONCE)

        async def freeze(session: str, name: str) -> None:
            async with at_once:
                # One that was begun is made, whoever goes away; it must not be forgotten.
                making = asyncio.ensure_future(
                    self.sessions.checkpoint(session, by, label="backup")
                )
                try:
                    await asyncio.shield(making)
                except SessionError as error:
                    missing.append(Missing("checkpoint", name, str(error), session))
                finally:
                    await asyncio.wait({making})
                    if not making.cancelled() and making.exception() is None:
                        made.append(making.result())

        async with asyncio.TaskGroup() as group:
            for each in running:
                group.create_task(freeze(each.id, each.name), name=f"backup of {each.id}")

    async def _running(self) -> list[Session]:
        found: list[Session] = []
        after: str | None = None
        while True:
            page = await self.sessions.page(
                SessionQuery(200, after, statuses=frozenset(RUNS), host=self.sessions.me)
            )
            found += page.items
            if page.next_cursor is None:
                return found
            after = page.next_cursor

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[tuple[BinaryIO, Wanted]]:
        """Copy the database; give the copy, open, and what is to be in the backup. No snapshot that
        it names is removed until the block ends."""
        with tempfile.TemporaryDirectory(prefix=DIRECTORY, dir=self.home) as directory:
            copy = Path(directory, "torpor.db")
            async with self.sessions.snapshots_held(lambda: self.database.backup(copy)):
                wanted = await wanted_in(copy, self.sessions.me)
                with open(copy, "rb") as file:
                    yield file, wanted

    async def _durable(self, row: Snapshot) -> list[Missing]:
        """Wait until a snapshot is durable; say if it cannot be."""
        try:
            await self.sessions.durable(row.id)
        except SessionError as error:
            return [Missing("snapshot", row.id, str(error), row.session)]
        return []
