"""The database: opened, brought to today's tables, read by many, and written by one at a time.

It is SQLite's or PostgreSQL's; what is different in each is in :mod:`torpor.store.sqlite` and
:mod:`torpor.store.postgres`, and nobody above asks which it is.
"""

import asyncio
import logging
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import quote

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.store import backup, hosts
from torpor.store.copying import copy_tables
from torpor.store.errors import FencedError
from torpor.store.migrate import migrate
from torpor.store.news import NONE, News
from torpor.store.sqlite import Sqlite
from torpor.store.tables import events, operations
from torpor.store.trouble import told_of_system
from torpor.store.ulids import Ulids
from torpor.store.urls import Kind, parse

log = logging.getLogger("torpor.store")

Transaction = AsyncConnection
"""What :meth:`Database.read` and :meth:`Database.write` give, and each table's functions take."""


class Engine(Protocol):
    """What is different in each database. ``words`` call it, without a password; one that is
    ``shared`` is written by other servers too."""

    kind: Kind
    words: str
    shared: bool

    def make(self) -> None:
        """Make it, if that is for us to do."""

    def told(self) -> AbstractContextManager[None]:
        """Raise this package's errors for those of the database."""

    async def reader(self) -> AsyncConnection:
        """Return a connection that sees one moment, and cannot write."""

    async def writer(self) -> AsyncConnection:
        """Return a connection that can write."""

    async def begin_write(self, conn: AsyncConnection) -> None:
        """Wait until no other program writes, and keep others from it to the end of the
        transaction."""

    async def commit(self, conn: AsyncConnection) -> None:
        """Commit, and come to the end of that also if the task is cancelled meanwhile."""

    async def send(self, conn: AsyncConnection, message: str) -> None:
        """Have all other servers hear a message when the transaction is committed."""

    async def listen(self, news: News) -> None:
        """Pass on what other servers send, for ever."""

    async def migrated(self) -> None:
        """Forget what connections know of tables that are different now."""

    async def copy_file(self, file: Path) -> bool:
        """Write a checked copy of the whole to a file of SQLite; return False if that is not what
        it is."""

    async def close(self) -> None:
        """Close all connections."""


class Database:
    """An open database. :meth:`open` makes one; :meth:`close` ends it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.kind = engine.kind
        self.words = engine.words
        """What it is called, without a password."""
        self.ulids = Ulids()
        """Ids that are greater than all that were kept when the last write began."""
        self.fenced = asyncio.Event()
        """Set when it was found that another server has taken the host that was held."""
        self._lease: hosts.Lease | None = None
        self._looked = False
        self._news = News()
        self._told: dict[tuple[str, str], None] = {}
        """What this transaction tells when it is committed."""
        self._listening: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._holder: asyncio.Task[Any] | None = None
        self._reading: set[asyncio.Task[Any] | None] = set()

    @classmethod
    async def open(cls, url: str) -> Self:
        """Open the database at ``url``: ``sqlite:////path/of/the/file``, made if there is none,
        with ``%25`` for a percent sign, or ``postgresql://user@host:port/database``.

        Its tables are brought to what this version needs. Raises :exc:`UrlError`,
        :exc:`NewerSchemaError`, :exc:`DamagedError`, and what :meth:`write` raises.
        """
        address = parse(url)
        engine: Engine
        if address.server is None:
            engine = Sqlite(address.file)
        else:
            # Not at the top: its driver takes time to import, and most servers need none.
            from torpor.store.postgres import Postgres

            engine = Postgres(address)
        engine.make()
        database = cls(engine)
        try:
            async with database._alone(look=False) as conn:
                migrated = await conn.run_sync(migrate, engine.words)
            if migrated is not None:
                await engine.migrated()
                log.info(migrated)
        except BaseException:
            await database.close()
            raise
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
            with self._engine.told():
                conn = await self._engine.reader()
                try:
                    yield conn
                finally:
                    await _end(conn)
        finally:
            self._reading.discard(task)

    @asynccontextmanager
    async def write(self) -> AsyncIterator[Transaction]:
        """A connection whose changes are all made at the end, or, if anything is raised, none.

        One at a time has it, over all programs; the others wait. A commit that has begun goes to
        its end, also if this task is cancelled meanwhile. Raises :exc:`DiskFullError`,
        :exc:`DiskError`, :exc:`BusyError`, :exc:`UnreachableError` and, for who holds a host,
        :exc:`FencedError`; the database is then as it was before.
        """
        look = self._engine.shared or self._lease is not None or not self._looked
        async with self._alone(look=look) as conn:
            yield conn

    def hold(self, lease: hosts.Lease) -> None:
        """Have each write from now on be refused if another server has taken the host since."""
        self._lease = lease

    @asynccontextmanager
    async def _alone(self, *, look: bool) -> AsyncIterator[Transaction]:
        if self._holder is asyncio.current_task():
            raise RuntimeError("this task is writing already, and would wait for itself")
        async with self._writing:
            self._holder, self._told = asyncio.current_task(), {}
            try:
                with self._engine.told():
                    conn = await self._engine.writer()
                    try:
                        await self._engine.begin_write(conn)
                        if look:
                            await self._look(conn)
                        yield conn
                        if self._told:
                            for message in self._news.messages(self._told):
                                await self._engine.send(conn, message)
                        await self._engine.commit(conn)
                    finally:
                        await _end(conn)
            finally:
                self._holder = None
                # Also if this was cancelled: the commit may have come to its end all the same.
                self._news.tell(self._told)

    def tell(self, conn: Transaction, kind: str, name: str = NONE) -> None:
        """Have it be told, here and on all other servers, that something has changed, when the
        transaction of ``conn`` is committed (:mod:`torpor.store.news`)."""
        if self._holder is None:
            raise RuntimeError("news are told in a transaction that writes")
        self._told[kind, name] = None

    def on_news(self, kind: str, call: Callable[[str], None]) -> None:
        """Have ``call`` be given the id of all news of a kind from now on, our own too, or ``""``
        when some may have been missed."""
        self._news.on(kind, call)
        if self._listening is None:
            listening = self._engine.listen(self._news)
            self._listening = asyncio.create_task(listening, name="news of other servers")

    async def _look(self, conn: Transaction) -> None:
        """Look what others have written. In a statement of its own: one that waited for them sees
        what was before."""
        asked = [select(func.max(each.c.id)).scalar_subquery() for each in (events, operations)]
        if self._lease is not None:
            asked.append(hosts.epoch_of(self._lease.host))
        event, operation, *epoch = (await conn.execute(select(*asked))).one()
        self.ulids.after(event)
        self.ulids.after(operation)
        self._looked = True
        if self._lease is not None and epoch != [self._lease.epoch]:
            self.fenced.set()
            raise FencedError(
                "Another server has taken the host of this one.",
                state="Nothing was changed by this one.",
                todo="This one ends; ask the other.",
            )

    async def backup(self, file: Path) -> None:
        """Write the database as it is at one moment to ``file``, as SQLite, while others go on.

        The copy is checked and on the disk when this returns; an older ``file`` is replaced then
        and not before. Raises :exc:`DiskFullError`, :exc:`DiskError` and :exc:`DamagedError`.
        """
        if not await self._engine.copy_file(file):
            await self._copy_rows(file)

    async def _copy_rows(self, file: Path) -> None:
        with told_of_system(file, backup.NONE_MADE):
            directory = Path(tempfile.mkdtemp(prefix=f".{file.name}.", dir=file.parent))
        try:
            made = await Database.open(f"sqlite:///{quote(str(directory))}/copy.db")
            try:
                async with self.read() as source, made.write() as target:
                    await copy_tables(source, target)
                await made.backup(file)
            finally:
                await made.close()
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    async def close(self) -> None:
        """Close all connections."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        await self._engine.close()


async def _end(conn: AsyncConnection) -> None:
    # Not by ``async with``: that ends it in a task, which whoever ends an event loop may cancel.
    try:
        await conn.rollback()
    finally:
        await conn.close()
