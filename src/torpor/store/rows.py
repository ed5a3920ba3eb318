"""Records to rows and back: a record's fields are its table's columns, in the same order."""

import string
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import fields
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, Table, bindparam, func, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import ReturningUpdate

from torpor.store.columns import Words, kept
from torpor.store.records import (
    Build,
    Config,
    Operation,
    PreviewLink,
    Secret,
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
    Secret,
)

_FOLDED = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


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


def is_named(table: Table, name: str) -> ColumnElement[bool]:
    """Return whether a row of a table has a name, whatever its case."""
    return func.lower(table.c.name) == literal(_folded(name), Words)


def has_in_name(table: Table, part: str) -> ColumnElement[bool]:
    """Return whether a row of a table has a part in its name, whatever its case."""
    return func.lower(table.c.name).contains(kept(_folded(part)), autoescape=True)


def _folded(text: str) -> str:
    """Return a text as names are compared: without the case of ASCII's letters, and of no others,
    which each database would fold in its own way."""
    return text.translate(_FOLDED)


def of_host(table: Table, host: str | None) -> tuple[ColumnElement[bool], ...]:
    """Return the condition that a row belongs to a host; none if that is None."""
    return () if host is None else (table.c.host == host,)


def now() -> datetime:
    """Return the time in UTC."""
    return datetime.now(UTC)


@asynccontextmanager
async def taken_back_alone(conn: AsyncConnection) -> AsyncIterator[None]:
    """Have a statement that is refused (IntegrityError) be taken back alone: the transaction around
    it can go on.

    SQLite does that by itself (sqlite.org/lang_conflict.html); for PostgreSQL the whole transaction
    would be over.
    """
    if conn.dialect.name == "sqlite":
        yield
    else:
        async with conn.begin_nested():
            yield


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
