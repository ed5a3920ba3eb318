"""Records to rows and back: a record's fields are its table's columns, in the same order."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, Table, select
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.store.records import (
    Build,
    Config,
    Operation,
    PreviewLink,
    Session,
    Snapshot,
    Template,
    Token,
    Transfer,
    Workspace,
)

T = TypeVar("T")
C = TypeVar(
    "C",
    Session,
    Config,
    Snapshot,
    Operation,
    Token,
    Template,
    Build,
    Transfer,
    PreviewLink,
    Workspace,
)


def values(record: Any) -> dict[str, Any]:
    """Return the columns of a record. (Not ``asdict``: that copies what is in them.)"""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def now() -> datetime:
    """Return the time in UTC."""
    return datetime.now(UTC)


async def listed(conn: AsyncConnection, record: Callable[..., T], chosen: Select[Any]) -> list[T]:
    """Return the chosen rows of a record's table. (By position: half the time of by name.)"""
    return [record(*row) for row in await conn.execute(chosen)]


async def first(conn: AsyncConnection, record: Callable[..., T], chosen: Select[Any]) -> T | None:
    """Return the first of the chosen rows of a record's table, or None if there is none."""
    row = (await conn.execute(chosen)).first()
    return None if row is None else record(*row)


async def one(conn: AsyncConnection, record: Callable[..., T], table: Table, key: str) -> T | None:
    """Return the record whose id is ``key``, or None."""
    return await first(conn, record, select(table).where(table.c.id == key))


async def changed(
    conn: AsyncConnection,
    record: type[C],
    table: Table,
    key: str,
    changes: Mapping[str, Any],
    *conditions: ColumnElement[bool],
) -> C:
    """Change columns of the record whose id is ``key``, and return it as it is then.

    Raises :exc:`KeyError` if there is none, or none of which the ``conditions`` hold,
    :exc:`TypeError` for a field that the record does not have, and :exc:`ValueError` for one that
    never changes.
    """
    if unknown := changes.keys() - {field.name for field in fields(record)}:
        raise TypeError(f"a {record.__name__} has no {', '.join(sorted(unknown))}")
    if fixed := {"id", "created_at", "started_at"} & changes.keys():
        raise ValueError(f"{', '.join(sorted(fixed))} of a {record.__name__} never changes")
    this = table.c.id == key, *conditions
    changing = table.update().where(*this).values(**changes).returning(table)
    row = (await conn.execute(changing if changes else select(table).where(*this))).first()
    if row is None:
        raise KeyError(key)
    return record(*row)
