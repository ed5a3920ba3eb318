"""PostgreSQL: a database that more than one server can use, over a socket.

One writer at a time over all servers: who writes has an advisory lock to the end of the
transaction. So what is committed later was written later, events have the order of their ids, and
nobody who follows them misses one.
"""

import asyncio
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, event
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from torpor.store.driver import finished
from torpor.store.news import News
from torpor.store.postgres_news import listen, send
from torpor.store.postgres_trouble import told, told_of_connecting
from torpor.store.urls import Address, Kind

READERS = 8
"""Connections that read at the same time; each is a process of the server's."""
WRITING = 0x746F72706F72
"""The advisory lock of who writes: a number that nothing else in this database takes."""
CONNECT_SECONDS = 10
WAIT_SECONDS = 10
"""How long a writer waits for one of another server."""
FORGOTTEN_SECONDS = 60
"""After how long PostgreSQL ends a transaction in which nothing happens any more: its server may be
cut off from it, and must not keep all others from writing."""


class Postgres:
    """A :class:`torpor.store.database.Engine` on a PostgreSQL server."""

    kind: Kind = "postgresql"
    shared = True

    def __init__(self, address: Address) -> None:
        assert address.server is not None
        self.words = address.words
        self.server = address.server
        self._readers = _engine(self.server, writes=False)
        self._writer = _engine(self.server, writes=True)

    def make(self) -> None:
        """Nothing: who runs the server has made the database."""

    def told(self) -> AbstractContextManager[None]:
        return told(self.words)

    async def reader(self) -> AsyncConnection:
        with told_of_connecting(self.words):
            return await self._readers.connect()

    async def writer(self) -> AsyncConnection:
        with told_of_connecting(self.words):
            return await self._writer.connect()

    async def begin_write(self, conn: AsyncConnection) -> None:
        """Wait until nobody else writes, on any server."""
        await conn.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITING})")

    async def commit(self, conn: AsyncConnection) -> None:
        # In a task of its own: the driver would take a commit back whose task is cancelled, or not,
        # and nobody would know.
        await finished(asyncio.ensure_future(conn.commit()))

    async def send(self, conn: AsyncConnection, message: str) -> None:
        await send(conn, message)

    async def listen(self, news: News) -> None:
        _, given = self._readers.sync_engine.dialect.create_connect_args(self.server)
        settings = {"application_name": "torpor news"}
        await listen({**given, "timeout": CONNECT_SECONDS, "server_settings": settings}, news)

    async def migrated(self) -> None:
        # The driver keeps statements as they were prepared, for each connection.
        await self._writer.dispose()

    async def copy_file(self, file: Path) -> bool:
        return False

    async def close(self) -> None:
        """Close all connections."""
        await self._readers.dispose()
        await self._writer.dispose()


def server_settings(*, writes: bool) -> dict[str, str]:
    """Return what a connection asks of PostgreSQL for itself."""
    return {
        "application_name": "torpor",
        "default_transaction_isolation": "read committed" if writes else "repeatable read",
        "default_transaction_read_only": "off" if writes else "on",
        "lock_timeout": f"{WAIT_SECONDS}s",
        "idle_in_transaction_session_timeout": f"{FORGOTTEN_SECONDS}s",
        # What is committed survives a power cut, whatever else this server's others have chosen.
        "synchronous_commit": "on",
    }


def _engine(server: URL, *, writes: bool) -> AsyncEngine:
    engine = create_async_engine(
        server,
        connect_args={
            "timeout": CONNECT_SECONDS,
            "server_settings": server_settings(writes=writes),
        },
        pool_size=1 if writes else READERS,
        max_overflow=0,
        pool_use_lifo=True,
        pool_timeout=None,
        pool_reset_on_return=None,  # the database does it
    )
    event.listen(engine.sync_engine, "checkout", _still_open)
    return engine


def _still_open(connection: Any, record: Any, proxy: Any) -> None:
    """Have the pool make a connection anew that was lost while nobody used it."""
    if connection.driver_connection.is_closed():
        raise DisconnectionError
