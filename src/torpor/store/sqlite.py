"""SQLite: everything in one file, with a log beside it (WAL), so that those who read do not wait
for the one who writes. Each commit is on the disk when it returns (``synchronous=FULL``)."""

import asyncio
import os
from contextlib import AbstractContextManager
from pathlib import Path

from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from torpor.store import backup
from torpor.store.driver import connect, finished
from torpor.store.errors import UNCHANGED
from torpor.store.news import News
from torpor.store.trouble import told, told_of_system
from torpor.store.urls import Kind

READERS = 8
"""Connections that read at the same time; who comes when all are in use waits for one. To make one
takes longer than nearly all that is read with it, and each keeps pages in memory."""


class Sqlite:
    """A :class:`torpor.store.database.Engine` on a file."""

    kind: Kind = "sqlite"
    shared = False

    def __init__(self, file: Path) -> None:
        self.file = file
        self.words = str(file)
        self._readers = _engine(file, writes=False)
        self._writer = _engine(file, writes=True)

    def make(self) -> None:
        """Make the file if there is none; nobody else may look into it."""
        # SQLite gives its log the rights of the file.
        with told_of_system(self.file):
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self.file.chmod(0o600)

    def told(self) -> AbstractContextManager[None]:
        return told(self.file, UNCHANGED)

    async def reader(self) -> AsyncConnection:
        return await self._readers.connect()

    async def writer(self) -> AsyncConnection:
        return await self._writer.connect()

    async def begin_write(self, conn: AsyncConnection) -> None:
        """Nothing: the first statement begins as a writer, and waits for others."""

    async def commit(self, conn: AsyncConnection) -> None:
        await conn.commit()  # a turn of the thread, which goes to its end

    async def send(self, conn: AsyncConnection, message: str) -> None:
        """Nothing: there is no other server that would hear it."""

    async def listen(self, news: News) -> None:
        """Nothing: there is no other server that would say anything."""

    async def migrated(self) -> None:
        """Nothing: SQLite looks by itself whether tables have changed."""

    async def copy_file(self, file: Path) -> bool:
        loop = asyncio.get_running_loop()
        await finished(loop.run_in_executor(None, backup.copy, self.file, file))
        return True

    async def close(self) -> None:
        """Close all connections. The last one writes the log back into the file."""
        await self._readers.dispose()
        await self._writer.dispose()


def _engine(file: Path, *, writes: bool) -> AsyncEngine:
    return create_async_engine(
        URL.create("sqlite+aiosqlite", database=str(file)),
        async_creator=lambda *_, **__: connect(file, writes=writes),
        pool_size=1 if writes else READERS,
        max_overflow=0,
        pool_use_lifo=True,  # the one with its pages at hand
        pool_timeout=None,
        pool_reset_on_return=None,  # the database does it
    )
