"""Records to rows and back: a record's fields are its table's columns, in the same order."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import Select, Table, select
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.store.records import Operation, Session, Snapshot, Token

T = TypeVar("T")
C = TypeVar("C", Session, Snapshot, Operation, Token)


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
    conn: AsyncConnection, record: type[C], table: Table, key: str, changes: Mapping[str, Any]
) -> C:
    """Change columns of the record whose id is ``key``, and return it as it is then.

    Raises :exc:`KeyError` if there is none, :exc:`TypeError` for a field that the record does not
    have, and :exc:`ValueError` for one that never changes.
    """
    if fixed := {"id", "created_at", "started_at"} & changes.keys():
        raise ValueError(f"{', '.join(sorted(fixed))} of a {record.__name__} never changes")
    # Where several programs write, none of them comes between this look and the change.
    old = await first(conn, record, select(table).where(table.c.id == key).with_for_update())
    if old is None:
        raise KeyError(key)
    new = replace(old, **changes)
    if changes:
        await conn.execute(table.update().where(table.c.id == key).values(**changes))
    return new
