"""The table of configurations. They stay when they are deleted, for the sessions made of them."""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.store import rows
from torpor.store.errors import ConfigNameTakenError
from torpor.store.paging import Page, newest_first
from torpor.store.records import Config
from torpor.store.tables import configs as table


@dataclass(frozen=True)
class ConfigQuery:
    """Which configurations are asked for: those that have names, ``search`` in them, whatever its
    case. ``after`` is the ``next_cursor`` of the page before."""

    limit: int = 50
    after: str | None = None
    search: str | None = None


async def insert(conn: AsyncConnection, config: Config) -> None:
    """Add a configuration. Raises :exc:`ConfigNameTakenError`; the transaction can go on."""
    try:
        await rows.add(conn, table, config)
    except IntegrityError:  # the transaction around it goes on, as in sessions.insert
        holder = await find(conn, config.name)
        if holder is not None:
            raise ConfigNameTakenError(config.name, holder.id) from None
        raise


async def get(conn: AsyncConnection, config: str) -> Config | None:
    """Return the configuration of this id, deleted or not, or None."""
    return await rows.one(conn, Config, table, config)


async def find(conn: AsyncConnection, name: str) -> Config | None:
    """Return the configuration that holds this name, whatever its case, or None."""
    named = func.lower(table.c.name) == func.lower(name)
    return await rows.first(conn, Config, select(table).where(named, *_listed()))


async def same(conn: AsyncConnection, content_hash: str, schema_version: str) -> Config | None:
    """Return the implicit configuration that says the same, written in the same format, or None."""
    chosen = select(table).where(
        table.c.content_hash == content_hash,
        table.c.implicit.is_(True),
        table.c.schema_version == schema_version,
        table.c.deleted_at.is_(None),
    )
    return await rows.first(conn, Config, chosen)


async def page(conn: AsyncConnection, query: ConfigQuery) -> Page[Config]:
    """Return some of the configurations that are asked for, newest first. Raises
    :exc:`CursorError`."""
    chosen = select(table).where(*_listed())
    if query.search:
        chosen = chosen.where(table.c.name.icontains(query.search, autoescape=True))
    return await newest_first(conn, Config, chosen, table, query.limit, query.after)


async def delete(conn: AsyncConnection, config: str) -> Config:
    """Note that a configuration is deleted, and return it as it is then: its name is free. Raises
    :exc:`KeyError` if there is none, or none any more."""
    moment = rows.now()
    changes = {"deleted_at": moment, "updated_at": moment}
    return await rows.changed(conn, Config, table, config, changes, table.c.deleted_at.is_(None))


def _listed() -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return table.c.deleted_at.is_(None), table.c.implicit.is_(False)
