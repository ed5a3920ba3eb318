"""A PostgreSQL server for tests: Debian's, in a directory of its own, reached over a socket there.

It is started when the first test asks for it, and ends with the tests, however they end.
"""

import asyncio
import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import pytest

T = TypeVar("T")

INSTALLED = Path("/usr/lib/postgresql")
USER = "postgres"
LONGEST_SOCKET = 100
"""Bytes of the path of a socket, at most 107 (unix(7))."""
MODEL = "model"
SETTINGS = {
    "listen_addresses": "",
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
        return f"postgresql://{USER}@/{database}?host={self.directory}"

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


def _programs() -> Path:
    found = {
        int(path.parent.name): path
        for path in INSTALLED.glob("*/bin")
        if re.fullmatch(r"\d+", path.parent.name) and (path / "initdb").exists()
    }
    if not found:
        pytest.fail(f"There is no PostgreSQL in {INSTALLED}: ./dev setup installs it.")
    return found[max(found)]


def _as_somebody(directory: Path) -> dict[str, Any]:
    """Return as whom PostgreSQL is run, which refuses root, and give that one the directory."""
    if os.geteuid() != 0:
        return {}
    found = pwd.getpwnam(USER)
    os.chown(directory, found.pw_uid, found.pw_gid)
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}


@contextlib.contextmanager
def running() -> Iterator[Cluster]:
    """A server in a new directory, which is removed after it."""
    programs = _programs()
    # The user who runs it needs a way to it, and its socket a short path.
    base = tempfile.gettempdir()
    directory = Path(
        tempfile.mkdtemp(prefix="pg-", dir=base if len(base) < LONGEST_SOCKET - 40 else "/tmp")
    )
    who = _as_somebody(directory)
    data, log = directory / "data", directory / "log"
    try:
        making = ["-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        subprocess.run(
            [programs / "initdb", *making], check=True, capture_output=True, cwd="/", **who
        )
        given = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
        serving = [programs / "postgres", "-D", data, "-k", directory, *given]
        with open(log, "wb") as out:
            server = subprocess.Popen(
                # Whoever runs the tests may be killed: it ends with them.
                ["setpriv", "--pdeathsig", "INT", *serving],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/", **who,
            )  # fmt: skip
        try:
            _wait(programs, directory, server, log)
            cluster = Cluster(directory)
            try:
                yield cluster
            finally:
                cluster.end()
        finally:
            server.send_signal(signal.SIGINT)  # it ends at once, and in good order
            server.wait(30)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _wait(programs: Path, directory: Path, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 60
    while subprocess.run(
        [programs / "pg_isready", "-q", "-h", directory], capture_output=True
    ).returncode:
        if server.poll() is not None or time.monotonic() > until:
            pytest.fail(f"PostgreSQL did not start:\n{log.read_text()}")
        time.sleep(0.05)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL server."""
    with running() as started:
        yield started


@pytest.fixture
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where a new database may come to be: a file, and in modules whose ``DATABASES`` say so, in
    PostgreSQL too."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/torpor.db"
    else:
        with request.getfixturevalue("cluster").migrated() as url:
            yield url


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test of a module on the databases that it names, unless the test names others."""
    own = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "database_url" in metafunc.fixturenames and "database_url" not in own:
        kinds = getattr(metafunc.module, "DATABASES", ("sqlite",))
        metafunc.parametrize("database_url", kinds, indirect=True)
