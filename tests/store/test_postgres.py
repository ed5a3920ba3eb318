"""What only PostgreSQL has: servers that share it, connections that are lost, its words."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
import sqlalchemy
from sqlalchemy.exc import DBAPIError

from tests.postgres import Cluster
from tests.store.made import event, session
from torpor.store import Database, events, postgres, sessions
from torpor.store.errors import (
    BusyError,
    DiskError,
    DiskFullError,
    NewerSchemaError,
    StoreError,
    UnreachableError,
)
from torpor.store.migrate import check_not_newer
from torpor.store.postgres_trouble import told
from torpor.store.tables import metadata
from torpor.store.ulids import Ulids


@pytest.fixture
def shared(cluster: Cluster) -> Iterator[str]:
    """A database with tables, for several servers."""
    with cluster.migrated() as url:
        yield url


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    database = await Database.open(url)
    try:
        yield database
    finally:
        await database.close()


@asynccontextmanager
async def raw(url: str) -> AsyncIterator[asyncpg.Connection]:
    parsed = sqlalchemy.make_url(url)
    conn = await asyncpg.connect(
        host=parsed.query["host"], user=parsed.username, database=parsed.database
    )
    try:
        yield conn
    finally:
        await conn.close()


async def add(database: Database, **data: Any) -> str:
    """Append an event with a new id, which is returned."""
    async with database.write() as conn:
        name = database.ulids.new_id()
        await events.append(conn, event(name, data=data))
    return name


async def all_ids(database: Database) -> list[str]:
    async with database.read() as conn:
        return [each.id for each in await events.after(conn, None, None, 100_000)]


SCHEMA = """
SELECT 'column', table_name, column_name,
       concat_ws(' ', data_type, is_nullable, coalesce(collation_name, ''), column_default)
FROM information_schema.columns WHERE table_schema = 'public'
UNION ALL SELECT 'index', tablename, indexname, indexdef FROM pg_indexes
WHERE schemaname = 'public'
UNION ALL SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid)
FROM pg_constraint WHERE connamespace = 'public'::regnamespace
"""


async def schema(url: str) -> set[tuple[str, ...]]:
    async with raw(url) as conn:
        found = await conn.fetch(SCHEMA)
    return {tuple(map(str, row)) for row in found if row[1] != "alembic_version"}


async def test_the_migrations_make_the_tables_that_the_code_uses(cluster: Cluster) -> None:
    with cluster.empty() as made, cluster.empty() as declared:
        async with opened(made):
            pass
        engine = sqlalchemy.ext.asyncio.create_async_engine(
            declared.replace("postgresql:", "postgresql+asyncpg:")
        )
        for index in (each for table in metadata.tables.values() for each in table.indexes):
            where = index.dialect_options["sqlite"]["where"]
            index.dialect_options["postgresql"]["where"] = where
        async with engine.begin() as conn:
            await conn.run_sync(metadata.create_all)
        await engine.dispose()
        found = await schema(made)
        assert found == await schema(declared)
    assert any("uq_sessions_held_name" in row for row in found)
    ids = [row for row in found if row[:3] == ("column", "events", "id")]
    assert [" C" in row[3] for row in ids] == [True]


async def test_two_servers_that_open_a_new_database_at_once_both_can(cluster: Cluster) -> None:
    with cluster.empty() as url:
        both = await asyncio.gather(*(Database.open(url) for _ in range(3)))
        await add(both[0])
        for database in both:
            assert len(await all_ids(database)) == 1
            await database.close()


async def test_events_of_several_servers_have_the_order_in_which_they_were_committed(
    shared: str,
) -> None:
    """The clock of one is a minute behind: who follows misses none all the same."""
    chance = random.Random(3)
    behind = 60_000_000_000

    async def write(database: Database, made: list[str]) -> None:
        for _ in range(25):
            made.append(await add(database))
            await asyncio.sleep(chance.random() * 0.003)

    async def follow(database: Database, seen: list[str], enough: int) -> None:
        while len(seen) < enough:
            async with database.read() as conn:
                cursor = seen[-1] if seen else None
                seen += [each.id for each in await events.after(conn, cursor, None, 3)]
            await asyncio.sleep(0)

    async with opened(shared) as first, opened(shared) as second, opened(shared) as third:
        now = Ulids()._clock
        second.ulids = Ulids(clock=lambda: now() - behind)
        made: list[str] = []
        seen: list[str] = []
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for database in (first, second, first, second):
                group.create_task(write(database, made))
            group.create_task(follow(third, seen, 100))
        assert seen == sorted(made)
        assert len(set(seen)) == 100


async def test_a_writer_waits_for_one_of_another_server_and_not_for_ever(
    shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "WAIT_SECONDS", 1)
    async with opened(shared) as first, opened(shared) as second:
        async with first.write():
            waiting = asyncio.create_task(add(second))
            await asyncio.sleep(0.2)
            assert not waiting.done()
        await waiting
        async with first.write():
            with pytest.raises(BusyError, match="in use by others"):
                await add(second)
        await add(second)


async def test_connections_that_were_lost_while_nobody_used_them_are_made_anew(
    shared: str, cluster: Cluster
) -> None:
    async with opened(shared) as database:
        await add(database)
        await all_ids(database)
        for _ in range(3):
            end_all(cluster, database)
            await asyncio.sleep(0.05)
            await add(database)
        assert len(await all_ids(database)) == 4


def end_all(cluster: Cluster, database: Database) -> None:
    name = sqlalchemy.make_url(database.words.split(" ")[0]).database
    cluster.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)


async def test_a_connection_that_is_lost_within_a_change_leaves_nothing_of_it(
    shared: str, cluster: Cluster
) -> None:
    async with opened(shared) as database:

        async def cut_off() -> None:
            async with database.write() as conn:
                await events.append(conn, event("a"))
                end_all(cluster, database)
                await events.append(conn, event("b"))

        for _ in range(2):
            with pytest.raises(UnreachableError, match="cannot be reached"):
                await cut_off()
        await add(database)
        assert len(await all_ids(database)) == 1


async def test_a_server_that_is_not_there_is_named_without_the_password(shared: str) -> None:
    parsed = sqlalchemy.make_url(shared)
    wrong = [
        "postgresql://torpor:secret@127.0.0.1:1/torpor",
        parsed.set(database="nowhere", password="secret").render_as_string(False),  # noqa: S106
        parsed.set(username="nobody", password="secret").render_as_string(False),  # noqa: S106
        "postgresql:///torpor?host=/nowhere",
    ]
    for url in wrong:
        with pytest.raises(UnreachableError, match="cannot be reached") as refused:
            await Database.open(url)
        assert "secret" not in str(refused.value)
        assert "PostgreSQL runs there" in refused.value.todo


async def test_tables_that_another_server_changed_are_taken_over(shared: str) -> None:
    async with opened(shared) as database, raw(shared) as other:
        async with database.write() as conn:
            await sessions.insert(conn, session("one"))
        async with database.read() as conn:
            await sessions.get(conn, "id-of-one")
        await other.execute("ALTER TABLE sessions ALTER COLUMN generation TYPE numeric")
        try:
            for _ in range(4):
                try:
                    async with database.read() as conn:
                        assert await sessions.get(conn, "id-of-one") is not None
                    break
                except BusyError:
                    continue
            else:
                pytest.fail("it is busy for ever")
        finally:
            await other.execute("ALTER TABLE sessions ALTER COLUMN generation TYPE bigint")


async def test_tables_that_a_newer_torpor_changed_are_noticed(shared: str) -> None:
    async with opened(shared) as database, raw(shared) as other:
        (now,) = await other.fetchrow("SELECT version_num FROM alembic_version")
        async with database.read() as conn:
            await check_not_newer(conn, database.words)
        await other.execute("UPDATE alembic_version SET version_num = '9999'")
        try:
            async with database.read() as conn:
                with pytest.raises(NewerSchemaError, match="9999"):
                    await check_not_newer(conn, database.words)
            with pytest.raises(NewerSchemaError, match="9999"):
                await Database.open(shared)
        finally:
            await other.execute("UPDATE alembic_version SET version_num = $1", now)


class Said(Exception):
    def __init__(self, code: str) -> None:
        super().__init__(f"because of {code}")
        self.sqlstate = code


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("53100", DiskFullError),
        ("58030", DiskError),
        ("25006", DiskError),
        ("53300", BusyError),
        ("55P03", BusyError),
        ("57P01", UnreachableError),
        ("08006", UnreachableError),
        ("28P01", UnreachableError),
    ],
)
def test_what_postgresql_says_is_told_in_our_words(code: str, kind: type[StoreError]) -> None:
    with pytest.raises(kind, match=f"postgresql://here .*: because of {code}") as error:
        refuse(lambda: told("postgresql://here"), code)
    assert error.value.state
    assert error.value.todo


def test_what_nobody_foresaw_is_passed_on() -> None:
    with pytest.raises(DBAPIError):
        refuse(lambda: told("postgresql://here"), "22012")


def refuse(context: Callable[[], Any], code: str) -> None:
    with context():
        raise DBAPIError("SELECT", {}, Said(code))
