import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import alembic.op
import pytest
import sqlalchemy
from alembic.config import Config
from alembic.script import ScriptDirectory

from torpor.store import Database, migrate, sessions
from torpor.store.errors import DamagedError, NewerSchemaError
from torpor.store.tables import metadata


def schema(file: Path) -> dict[str, str]:
    """The statements that would make the tables and indexes of a file, by name."""
    with closing(sqlite3.connect(file)) as conn:
        rows = conn.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
        return {name: ordered(sql) for name, sql in rows if name != "alembic_version"}


def ordered(sql: str) -> str:
    """A statement with what its order means nothing for in one order: constraints, spaces."""
    plain = re.sub(r"\s+", " ", sql)
    head, _, body = plain.partition(" ( ")
    parts = re.split(r", (?![^(]*\))", body)
    return f"{head} ( {', '.join(sorted(parts[:-1]) + parts[-1:])}" if body else plain


async def test_the_migrations_make_the_tables_that_the_code_uses(
    sqlite_url: str, tmp_path: Path
) -> None:
    await (await Database.open(sqlite_url)).close()
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/declared.db")
    metadata.create_all(engine)
    engine.dispose()
    made, declared = schema(tmp_path / "kept/torpor.db"), schema(tmp_path / "declared.db")
    assert declared.keys() >= {"sessions", "samples", "uq_sessions_held_name"}
    assert made == declared


def test_a_schema_with_a_difference_is_seen(tmp_path: Path) -> None:
    found = []
    for number, line in enumerate(("a TEXT, b TEXT NOT NULL", "a TEXT, b TEXT")):
        with closing(sqlite3.connect(tmp_path / f"{number}.db")) as conn:
            conn.execute(f"CREATE TABLE t ( {line}, PRIMARY KEY (a) )")
        found.append(schema(tmp_path / f"{number}.db"))
    assert found[0] != found[1]


def test_the_newest_migration_is_the_one_that_the_code_names() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrate.MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_heads() == [migrate.HEAD]


def test_the_migrations_are_part_of_the_package() -> None:
    # setuptools packs the directories that are packages.
    scripts = list(migrate.MIGRATIONS.rglob("*.py"))
    assert len(scripts) >= 4
    assert all((script.parent / "__init__.py").is_file() for script in scripts)


async def test_a_place_with_a_percent_sign_is_no_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "100%").symlink_to(migrate.MIGRATIONS.parent)
    monkeypatch.setattr(migrate, "MIGRATIONS", tmp_path / "100%" / "migrations")
    await (await Database.open(f"sqlite:///{tmp_path}/50%2520/torpor.db")).close()
    assert (tmp_path / "50%20/torpor.db").is_file()


async def test_a_migration_that_fails_half_way_leaves_nothing(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = alembic.op.create_index

    def fails(name: str, *rest: object, **more: object) -> None:
        if name == "ix_snapshots_parent":
            raise OSError("out of luck")
        real(name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(alembic.op, "create_index", fails)
    with pytest.raises(OSError, match="out of luck"):
        await Database.open(sqlite_url)
    assert schema(tmp_path / "kept/torpor.db") == {}
    monkeypatch.undo()
    await (await Database.open(sqlite_url)).close()
    assert "snapshots" in schema(tmp_path / "kept/torpor.db")


async def test_two_that_open_a_new_database_at_once_both_can(sqlite_url: str) -> None:
    both = await asyncio.gather(Database.open(sqlite_url), Database.open(sqlite_url))
    for database in both:
        await database.close()


async def test_a_database_of_a_newer_torpor_is_refused_and_left(
    sqlite_url: str, tmp_path: Path
) -> None:
    await (await Database.open(sqlite_url)).close()
    file = tmp_path / "kept/torpor.db"
    with closing(sqlite3.connect(file)) as conn:
        conn.execute("UPDATE alembic_version SET version_num = '9999'")
        conn.commit()
    before = file.read_bytes()
    with pytest.raises(NewerSchemaError, match="newer Torpor: it is at version 9999") as refused:
        await Database.open(sqlite_url)
    assert migrate.HEAD in refused.value.happened
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE cats (name TEXT)"],
        ["CREATE TABLE alembic_version (version_num TEXT)", "CREATE TABLE sessions (id TEXT)"],
    ],
)
async def test_a_database_of_another_program_is_refused_and_left(
    tmp_path: Path, statements: list[str]
) -> None:
    file = tmp_path / "other.db"
    with closing(sqlite3.connect(file)) as conn:
        for statement in statements:
            conn.execute(statement)
    before = schema(file)
    with pytest.raises(DamagedError, match="not Torpor's"):
        await Database.open(f"sqlite:///{file}")
    assert schema(file) == before


OLD = (
    "INSERT INTO sessions (id, name, status, image, size, created_at, updated_at, used_at,"
    " created_by, generation, agent, env, labels, metadata, keep_warm, defaults)"
    " VALUES ('i', 'old', 'READY', 'default', 's', 1, 1, 1, 'x', 3, 'none', '{}', '{}', '{}',"
    " false, '{}')"
)


async def test_sessions_of_an_older_database_have_none_of_what_came_later(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(migrate, "HEAD", "0001")
        database = await Database.open(empty_url)
        async with database.write() as conn:
            await conn.execute(sqlalchemy.text(OLD))
        await database.close()
    database = await Database.open(empty_url)
    async with database.write() as conn:
        found = await sessions.get(conn, "i")
        assert found is not None
        assert (found.name, found.generation, found.defaults) == ("old", 3, {})
        found_none = (found.config, found.template, found.host, found.workspace)
        assert found_none == (None,) * 4
        assert (await sessions.update(conn, "i", template="t1")).template == "t1"
    await database.close()
