"""Records to rows and back: a record's fields are its table's columns, name by name."""

from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import Table, select
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.store.records import Operation, Session, Snapshot, Token

T = TypeVar("T", Session, Snapshot, Operation, Token)


def values(record: Any) -> dict[str, Any]:
    """Return the columns of a record. (Not ``asdict``: that copies what is in them.)"""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def now() -> datetime:
    """Return the time in UTC."""
    return datetime.now(UTC)


async def one(conn: AsyncConnection, record: type[T], table: Table, key: str) -> T | None:
    """Return the record whose id is ``key``, or None."""
    row = (await conn.execute(select(table).where(table.c.id == key))).mappings().first()
    return None if row is None else record(**row)


async def changed(
    conn: AsyncConnection, record: type[T], table: Table, key: str, changes: Mapping[str, Any]
) -> T:
    """Change columns of the record whose id is ``key``, and return it as it is then.

    Raises :exc:`KeyError` if there is none, :exc:`TypeError` for a field that the record does not
    have, and :exc:`ValueError` for one that never changes.
    """
    if fixed := {"id", "created_at", "started_at"} & changes.keys():
        raise ValueError(f"{', '.join(sorted(fixed))} of a {record.__name__} never changes")
    # Where several programs write, none of them comes between this look and the change.
    looked = select(table).where(table.c.id == key).with_for_update()
    row = (await conn.execute(looked)).mappings().first()
    if row is None:
        raise KeyError(key)
    new = replace(record(**row), **changes)
    if changes:
        await conn.execute(table.update().where(table.c.id == key).values(**changes))
    return new
