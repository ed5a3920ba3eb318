"""Brings a database to the tables that this version needs."""

from pathlib import Path

from sqlalchemy import Connection, inspect, text
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.store.errors import DamagedError, NewerSchemaError

HEAD = "0011"
"""The newest migration. A database that has it is opened without importing Alembic."""
MIGRATIONS = Path(__file__).parent / "migrations"


def migrate(conn: Connection, words: str) -> str | None:
    """Run the migrations that are missing, in the transaction of ``conn``: all or none.

    ``words`` call the database. Returns what was done, in words, None if nothing was missing.
    Raises :exc:`NewerSchemaError`, and :exc:`DamagedError` if the tables are not Torpor's.
    """
    version = _version(conn, words)
    if version == HEAD:
        return None
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config(attributes={"connection": conn})
    # Alembic reads a value as Python's configparser does.
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if version is not None and version not in known:
        raise _newer(words, version)
    command.upgrade(config, HEAD)
    if version is None:
        return f"the database {words} was made, at version {HEAD}"
    return f"the database {words} was brought from version {version} to {HEAD}"


async def check_not_newer(conn: AsyncConnection, words: str) -> None:
    """Raise :exc:`NewerSchemaError` if a newer Torpor has changed the tables since they were
    opened."""
    version = (await conn.execute(text("SELECT version_num FROM alembic_version"))).scalar_one()
    if version != HEAD:
        raise _newer(words, version)


def _newer(words: str, version: str) -> NewerSchemaError:
    return NewerSchemaError(
        f"The database {words} was written by a newer Torpor: it is at version {version}, and "
        f"this one knows versions up to {HEAD}.",
        state="It was left as it is.",
        todo="Use the newer Torpor, or restore a backup that was made before.",
    )


def _version(conn: Connection, words: str) -> str | None:
    tables = inspect(conn).get_table_names()
    if not tables:
        return None
    versions: list[str] = []
    if "alembic_version" in tables:
        versions = list(conn.scalars(text("SELECT version_num FROM alembic_version")))
    if len(versions) != 1:
        raise DamagedError(
            f"The database {words} has tables, and they are not Torpor's.",
            state="It was left as it is.",
            todo="Give the server a database of its own.",
        )
    return versions[0]
