"""How SQLite is reached: what is quick at once, and the rest in a thread that each connection has.

A statement is quicker than its way to a thread and back, by far where the processors are all in
use: it is done where it is asked for, unless it proves to be long or somebody else is writing. A
commit waits for the disk, and is the thread's (``docs/decisions/0044-sqlalchemy-over-sqlite.md``).

A turn of the thread goes to its end, also if who waits for it is cancelled: nothing is left that
goes on behind its owner's back, or that the thread brings to an event loop that has ended.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import aiosqlite
from aiosqlite.core import _STOP_RUNNING_SENTINEL

T = TypeVar("T")

CLOSED = "Connection closed"
"""The words by which SQLAlchemy knows that a connection is."""
BUSY_SECONDS = 10
"""How long a writer waits for one of another program."""
LONG_SECONDS = 0.005
"""After how long a query is no more answered at once, but by the thread, from its beginning."""
LOOK_STEPS = 2000
"""After how many of SQLite's steps, each far below a microsecond, it is looked how long it took."""

_QUICK = ("SELECT", "INSERT", "UPDATE")
"""How statements begin that are done at once: records are read, added and changed one by one or by
the page; but they are deleted by age, however many there are."""
_NOT_AT_ONCE = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_INTERRUPT}


async def connect(file: Path, *, writes: bool) -> aiosqlite.Connection:
    """Open the file. Without ``writes`` the connection refuses to change anything."""

    def opened() -> sqlite3.Connection:
        # Python's own idea of when a transaction begins is left out: see begun.
        raw = sqlite3.connect(file, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            _wait_for_others(raw, BUSY_SECONDS)
            raw.execute("PRAGMA journal_mode=WAL")
            raw.execute("PRAGMA synchronous=FULL")
            raw.execute("PRAGMA foreign_keys=ON")
            raw.execute(f"PRAGMA query_only={'OFF' if writes else 'ON'}")
            _wait_for_others(raw, 0)
        except BaseException:
            raw.close()
            raise
        return raw

    connection = _Connection(opened, writes=writes)
    await connection.open()
    return connection


def _wait_for_others(raw: sqlite3.Connection, seconds: float) -> None:
    """Have SQLite wait so long for another connection that is in its way."""
    raw.execute(f"PRAGMA busy_timeout={seconds * 1000:.0f}")


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
        self._until: float | None = None
        """When a query that is being answered at once has taken too long."""

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
            raise ValueError(CLOSED)
        return await self._turn(partial(self._patiently, partial(fn, *args, **kwargs)))

    async def _turn(self, work: Callable[[], T]) -> T:
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._tx.put_nowait((done, work))
        return await finished(done)

    async def at_once(self, query: Callable[[], T], *, stops: bool) -> T:
        """Ask SQLite for something that is likely to be quick. It is asked again, in the thread, if
        another program holds it up, or, for one that ``stops`` when it has taken long, then."""
        if not self._running or self._connection is None:
            raise ValueError(CLOSED)
        self._until = time.monotonic() + LONG_SECONDS if stops else None
        try:
            return query()
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _NOT_AT_ONCE:
                raise
        finally:
            self._until = None
        return await self._execute(query)

    def _patiently(self, query: Callable[[], T]) -> T:
        _wait_for_others(self._conn, BUSY_SECONDS)
        try:
            return query()
        finally:
            _wait_for_others(self._conn, 0)

    def _is_long(self) -> bool:
        return self._until is not None and time.monotonic() > self._until

    def _open(self) -> None:
        self._connection = self._connector()
        self._connection.set_progress_handler(self._is_long, LOOK_STEPS)

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
        if self._connection is not None:
            # The thread has nothing else to do now (see finished).
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
        run = partial(self._run, sqlite3.Connection.execute, sql, parameters)
        if sql.startswith(_QUICK):
            # A change that is stopped takes its whole transaction with it.
            await self._connection.at_once(run, stops=sql.startswith("SELECT"))
        else:
            await self._connection._execute(run)

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
