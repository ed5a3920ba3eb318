"""A PostgreSQL server for tests, as :mod:`torpor.lab.postgresql` runs one.

It is started when the first test asks for it, and ends with the tests, however they end.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import pytest

from torpor.lab import postgresql
from torpor.lab.postgresql import USER, PostgresqlError, programs

T = TypeVar("T")

MODEL = "model"
SETTINGS = {
    "max_connections": "200",
    "shared_buffers": "16MB",
    # Nobody cuts the power of a test; that a killed program loses nothing does not depend on it.
    "fsync": "off",
    "autovacuum": "off",
}


class Cluster:
    """A server that runs, and a connection to it in a thread of its own: tests have none of their
    own event loops to spare for it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._admin: asyncpg.Connection | None = None
        self._free: list[str] = []
        self._count = 0
        self._modelled = False

    def url(self, database: str) -> str:
        """Return the URL of one of its databases."""
        return postgresql.url_of(self.directory, database)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the event loop of the thread, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def run(self, sql: str, *values: Any) -> list[Any]:
        """Run a statement as who may do everything."""

        async def ran() -> list[Any]:
            if self._admin is None or self._admin.is_closed():
                self._admin = await self._connect("postgres")
            return list(await self._admin.fetch(sql, *values))

        return self.do(ran())

    async def _connect(self, database: str) -> asyncpg.Connection:
        return await asyncpg.connect(host=str(self.directory), user=USER, database=database)

    @contextlib.contextmanager
    def empty(self) -> Iterator[str]:
        """A database without tables."""
        self._count += 1
        name = f"empty{self._count}"
        self.run(f"CREATE DATABASE {name} STRATEGY file_copy")
        try:
            yield self.url(name)
            self._check_left(name)
        finally:
            self.run(f"DROP DATABASE {name} WITH (FORCE)")

    @contextlib.contextmanager
    def migrated(self) -> Iterator[str]:
        """A database with tables, and nothing in them: one that is used again."""
        if self._free:
            name = self._free.pop()
        else:
            name = self._new()
        try:
            yield self.url(name)
            self._check_left(name)
        except BaseException:
            self.run(f"DROP DATABASE {name} WITH (FORCE)")
            raise
        self.do(self._clear(name))
        self._free.append(name)

    def _new(self) -> str:
        if not self._modelled:
            self.run(f"CREATE DATABASE {MODEL} STRATEGY file_copy")
            self.do(_migrate(self.url(MODEL)))
            self._modelled = True
        self._count += 1
        name = f"torpor{self._count}"
        self.run(f"CREATE DATABASE {name} TEMPLATE {MODEL} STRATEGY file_copy")
        return name

    async def _clear(self, name: str) -> None:
        from torpor.store.tables import metadata

        tables = [table.name for table in reversed(metadata.sorted_tables)]
        conn = await self._connect(name)
        try:
            for table in tables:
                await conn.execute(f"DELETE FROM {table}")  # noqa: S608 - our own names
        finally:
            await conn.close()

    def _check_left(self, name: str) -> None:
        """Fail if a connection was left open."""
        until = time.monotonic() + 2
        while left := self.run(
            "SELECT pid, state, query FROM pg_stat_activity WHERE datname = $1", name
        ):
            assert time.monotonic() < until, f"connections were left open: {left}"
            time.sleep(0.01)

    def end(self) -> None:
        """Close the connection, and end the thread."""
        if self._admin is not None:
            self.do(self._admin.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _migrate(url: str) -> None:
    from torpor.store import Database

    await (await Database.open(url)).close()


@contextlib.contextmanager
def running() -> Iterator[Cluster]:
    """A server, and a connection to it."""
    try:
        programs()
    except PostgresqlError as error:
        pytest.fail(f"{error} ./dev setup does that.")
    with postgresql.running(SETTINGS) as directory:
        cluster = Cluster(directory)
        try:
            yield cluster
        finally:
            cluster.end()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL server."""
    with running() as started:
        yield started


@pytest.fixture
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where a new database may come to be, of each kind: a file, and one in PostgreSQL."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/torpor.db"
    else:
        with request.getfixturevalue("cluster").migrated() as url:
            yield url


KINDS = ("sqlite", "postgresql")


def kinds_for(module: Any) -> tuple[str, ...]:
    """Return the kinds of databases that the tests of a module run on: both, unless the module says
    in ``SQLITE_ALONE`` why one is enough."""
    return ("sqlite",) if getattr(module, "SQLITE_ALONE", "") else KINDS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that wants a database on each kind, unless it says itself on which."""
    own = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "database_url" in metafunc.fixturenames and "database_url" not in own:
        metafunc.parametrize("database_url", kinds_for(metafunc.module), indirect=True)
