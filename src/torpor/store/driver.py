"""How SQLite is reached: each connection has a thread, and each statement goes there once.

aiosqlite goes there for each step of a statement (cursor, execution, rows, closing), which is most
of what a short transaction costs. Here a statement, its rows, and before the first of a transaction
its beginning, are one turn (``docs/decisions/0044-sqlalchemy-over-sqlite.md``).

A turn goes to its end, also if who waits for it is cancelled: nothing is left that goes on behind
its owner's back, or that the thread brings to an event loop that has ended.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import aiosqlite
from aiosqlite.core import _STOP_RUNNING_SENTINEL

T = TypeVar("T")

BUSY_SECONDS = 10
"""How long a writer waits for one of another program."""


async def connect(file: Path, *, writes: bool) -> aiosqlite.Connection:
    """Open the file. Without ``writes`` the connection refuses to change anything."""

    def opened() -> sqlite3.Connection:
        # Python's own idea of when a transaction begins is left out: see begun.
        raw = sqlite3.connect(
            file, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            raw.execute("PRAGMA journal_mode=WAL")
            raw.execute("PRAGMA synchronous=FULL")
            raw.execute("PRAGMA foreign_keys=ON")
            raw.execute(f"PRAGMA query_only={'OFF' if writes else 'ON'}")
        except BaseException:
            raw.close()
            raise
        return raw

    connection = _Connection(opened, writes=writes)
    await connection.open()
    return connection


async def finished(doing: asyncio.Future[T]) -> T:
    """Wait for what a thread does; if this task is cancelled, go on with that at its end.

    Not for a task: whoever ends an event loop cancels those, whoever waits for them.
    """
    cancelled = None
    while not doing.done():
        try:
            await asyncio.wait([doing])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        doing.exception()  # asyncio would report one that nobody looked at
        raise cancelled
    return doing.result()


class _Connection(aiosqlite.Connection):
    def __init__(self, opened: Callable[[], sqlite3.Connection], *, writes: bool) -> None:
        super().__init__(opened, iter_chunk_size=64)
        self._thread.daemon = True  # a program that dies before it closes shall end
        self._writes = writes
        # A writer that begins as a reader may find later that another one was quicker, and fail.
        self._begin = "BEGIN IMMEDIATE" if writes else "BEGIN"
        self._begun = False

    async def open(self) -> None:
        """Start the thread, and open the file in it."""
        self._thread.start()
        try:
            await self._turn(self._open)
        except BaseException:
            self.stop()
            raise

    async def close(self) -> None:
        """Close the file, and let the thread end. That it is closed already is no error."""
        if self._connection is not None:
            try:
                await self._turn(self._close)
            finally:
                self.stop()

    def stop(self) -> None:
        """Let the thread close the file and end when it has done what it was asked for."""
        self._running = False
        self._tx.put_nowait((None, self._last_turn))

    def cursor(self) -> "_Cursor":  # type: ignore[override]
        return _Cursor(self)

    async def create_function(self, *_: Any, **__: Any) -> None:
        """Nothing: SQLAlchemy adds one for regular expressions, which nobody asks for here."""

    async def _execute(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        if not self._running or self._connection is None:
            raise ValueError("Connection closed")  # the words by which SQLAlchemy knows it
        return await self._turn(partial(fn, *args, **kwargs))

    async def _turn(self, work: Callable[[], T]) -> T:
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._tx.put_nowait((done, work))
        return await finished(done)

    def _open(self) -> None:
        self._connection = self._connector()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _last_turn(self) -> object:
        self._close()
        return _STOP_RUNNING_SENTINEL

    async def commit(self) -> None:
        await self._execute(self._commit)

    async def rollback(self) -> None:
        if self._writes:
            await self._execute(self._rollback)
        elif self._connection is not None:
            # It only ends its view of the file: that is less work than to hand it to the thread,
            # which has nothing else to do now (see finished).
            self._rollback()

    def begun(self) -> sqlite3.Connection:
        """Return SQLite's connection, with a transaction begun if there is none."""
        if self._begun:
            self._check_whole()
        else:
            self._conn.execute(self._begin)
            self._begun = True
        return self._conn

    def _commit(self) -> None:
        if self._begun:
            try:
                self._check_whole()
                self._conn.commit()
            except BaseException:
                self._conn.rollback()  # SQLAlchemy takes it to be over, however it ended
                raise
            finally:
                self._begun = False

    def _rollback(self) -> None:
        self._begun = False
        self._conn.rollback()

    def _check_whole(self) -> None:
        # SQLite takes back the whole transaction at some errors, as of a full disk. Whoever went on
        # after one would commit the rest as if it were all.
        if not self._conn.in_transaction:
            raise sqlite3.OperationalError("an error before has ended this transaction")


class _Cursor:
    """What SQLAlchemy asks of a cursor; it takes all rows at once in any case."""

    arraysize = 1

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._rows: list[Any] = []
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: int | None = None

    async def __aenter__(self) -> "_Cursor":
        return self

    async def execute(self, sql: str, parameters: Any = ()) -> None:
        await self._connection._execute(self._run, sqlite3.Connection.execute, sql, parameters)

    async def executemany(self, sql: str, parameters: Any) -> None:
        await self._connection._execute(self._run, sqlite3.Connection.executemany, sql, parameters)

    async def fetchall(self) -> list[Any]:
        return self._rows

    async def close(self) -> None:
        self._rows = []

    def _run(self, run: Callable[..., sqlite3.Cursor], sql: str, parameters: Any) -> None:
        ran = run(self._connection.begun(), sql, parameters)
        self.description = ran.description
        self._rows = ran.fetchall() if ran.description else []
        self.rowcount, self.lastrowid = ran.rowcount, ran.lastrowid
        ran.close()
