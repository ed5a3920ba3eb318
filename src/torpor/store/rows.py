"""Records to rows and back: a record's fields are its table's columns, in the same order."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, Table, bindparam, select
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import ReturningUpdate

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


_NAMES: dict[type, tuple[str, ...]] = {}


def names(record: type) -> tuple[str, ...]:
    """Return the names of the columns of a kind of record."""
    if record not in _NAMES:
        _NAMES[record] = tuple(field.name for field in fields(record))
    return _NAMES[record]


def values(record: Any) -> dict[str, Any]:
    """Return the columns of a record. (Not ``asdict``: that copies what is in them.)"""
    return {name: getattr(record, name) for name in names(type(record))}


async def add(conn: AsyncConnection, table: Table, record: Any) -> None:
    """Add a record to its table."""
    # Values that are beside the statement are not looked through when it is looked up.
    await conn.execute(table.insert(), values(record))


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
    row = (await conn.execute(_one(table), {THIS: key})).first()
    return None if row is None else record(*row)


THIS = "this_id"


@cache
def _one(table: Table) -> Select[Any]:
    return select(table).where(table.c.id == bindparam(THIS))


@cache
def _changing(table: Table) -> ReturningUpdate[Any]:
    return table.update().where(table.c.id == bindparam(THIS)).returning(table)


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
    if unknown := changes.keys() - set(names(record)):
        raise TypeError(f"a {record.__name__} has no {', '.join(sorted(unknown))}")
    if fixed := {"id", "created_at", "started_at"} & changes.keys():
        raise ValueError(f"{', '.join(sorted(fixed))} of a {record.__name__} never changes")
    chosen = (_changing if changes else _one)(table)
    if conditions:  # a statement that is the very one of before is looked up more quickly
        chosen = chosen.where(*conditions)
    row = (await conn.execute(chosen, {THIS: key, **changes})).first()
    if row is None:
        raise KeyError(key)
    return record(*row)
