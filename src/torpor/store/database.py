"""The database: opened, brought to today's tables, read by many, and written by one at a time.

SQLite keeps everything in one file, with a log beside it (WAL), so that those who read do not wait
for the one who writes. Each commit is on the disk when it returns (``synchronous=FULL``).
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from torpor.store import backup
from torpor.store.driver import connect, finished
from torpor.store.errors import UrlError
from torpor.store.migrate import migrate
from torpor.store.trouble import told, told_of_system

log = logging.getLogger("torpor.store")

Transaction = AsyncConnection
"""What :meth:`Database.read` and :meth:`Database.write` give, and each table's functions take."""

_READERS = 8
"""Connections that read at the same time; who comes when all are in use waits for one. To make one
takes longer than nearly all that is read with it, and each keeps pages in memory."""


class Database:
    """An open database. :meth:`open` makes one; :meth:`close` ends it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._readers = _engine(file, writes=False)
        self._writer = _engine(file, writes=True)
        self._writing = asyncio.Lock()
        self._holder: asyncio.Task[Any] | None = None
        self._reading: set[asyncio.Task[Any] | None] = set()

    @classmethod
    async def open(cls, url: str) -> Self:
        """Open the database at ``url``, made if there is none: ``sqlite:////path/of/the/file``,
        with ``%25`` for a percent sign.

        Its tables are brought to what this version needs. Raises :exc:`UrlError`,
        :exc:`NewerSchemaError`, :exc:`DamagedError`, and what :meth:`write` raises.
        """
        file = sqlite_file(url)
        _make(file)
        database = cls(file)
        try:
            async with database.write() as conn:
                migrated = await conn.run_sync(migrate, file)
        except BaseException:
            await database.close()
            raise
        if migrated is not None:
            log.info(migrated)
        return database

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Transaction]:
        """A connection that sees one moment of the database, that of its first look, and cannot
        write. A task has one at a time."""
        task = asyncio.current_task()
        if task in self._reading:
            raise RuntimeError("this task is reading already, and might wait for itself")
        self._reading.add(task)
        try:
            with told(self.file):
                conn = await self._readers.connect()
                try:
                    yield conn
                finally:
                    await _end(conn)
        finally:
            self._reading.discard(task)

    @asynccontextmanager
    async def write(self) -> AsyncIterator[Transaction]:
        """A connection whose changes are all made at the end, or, if anything is raised, none.

        One at a time has it; the others wait. A commit that has begun goes to its end, also if
        this task is cancelled meanwhile. Raises :exc:`DiskFullError`, :exc:`DiskError` and
        :exc:`BusyError`; the database is then as it was before.
        """
        if self._holder is asyncio.current_task():
            raise RuntimeError("this task is writing already, and would wait for itself")
        async with self._writing:
            self._holder = asyncio.current_task()
            try:
                with told(self.file):
                    conn = await self._writer.connect()
                    try:
                        yield conn
                        await conn.commit()
                    finally:
                        await _end(conn)
            finally:
                self._holder = None

    async def backup(self, file: Path) -> None:
        """Write the database as it is at one moment to ``file``, while others go on.

        The copy is checked and on the disk when this returns; an older ``file`` is replaced then
        and not before. Raises :exc:`DiskFullError`, :exc:`DiskError` and :exc:`DamagedError`.
        """
        loop = asyncio.get_running_loop()
        await finished(loop.run_in_executor(None, backup.copy, self.file, file))

    async def close(self) -> None:
        """Close all connections. The last one writes the log back into the file."""
        await self._readers.dispose()
        await self._writer.dispose()


def sqlite_file(url: str) -> Path:
    """Return the file of a database. Raises :exc:`UrlError` if the address names none."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise UrlError(
            f"The address of the database is no URL: {url!r}.",
            todo="Write it as sqlite:////path/of/the/file.",
        ) from None
    if parsed.get_backend_name() != "sqlite":
        raise UrlError(
            f"Torpor keeps its database in SQLite, not in {parsed.get_backend_name()}.",
            todo="Write the address as sqlite:////path/of/the/file.",
        )
    if not parsed.database or parsed.database == ":memory:" or parsed.query:
        raise UrlError(
            f"{url!r} names no file, or more than a file.",
            todo="Write the address as sqlite:////path/of/the/file.",
        )
    return Path(parsed.database).absolute()


def _make(file: Path) -> None:
    # SQLite gives its log the rights of the file.
    with told_of_system(file):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        file.chmod(0o600)


def _engine(file: Path, *, writes: bool) -> AsyncEngine:
    return create_async_engine(
        URL.create("sqlite+aiosqlite", database=str(file)),
        async_creator=lambda *_, **__: connect(file, writes=writes),
        pool_size=1 if writes else _READERS,
        max_overflow=0,
        pool_use_lifo=True,  # the one with its pages at hand
        pool_timeout=None,
        pool_reset_on_return=None,  # _end does it; once more would be one more turn
    )


async def _end(conn: AsyncConnection) -> None:
    # Not by ``async with``: that ends it in a task, which whoever ends an event loop may cancel.
    try:
        await conn.rollback()
    finally:
        await conn.close()
