"""A database copied into another one, row by row: what it is kept in does not matter."""

from typing import Any

from sqlalchemy import Column, Row, Select, Table, bindparam, literal, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.store.errors import NotEmptyError
from torpor.store.tables import metadata

AT_ONCE = 1000
"""Rows that are in memory at a time."""


async def copy_tables(source: AsyncConnection, target: AsyncConnection) -> int:
    """Copy all rows of all tables, as ``source`` sees them, into ``target``, which has none; return
    how many.

    Raises :exc:`NotEmptyError`.
    """
    filled = await first_filled(target)
    if filled is not None:
        raise NotEmptyError(
            f"The database to copy into is not empty: there are rows in its table {filled}.",
            state="Nothing was copied into it.",
            todo="Take an empty one.",
        )
    copied = 0
    for table in metadata.sorted_tables:  # what others refer to comes first
        own = [column for column in table.columns if _refers_to_itself(column)]
        last: Row[Any] | None = None
        while True:
            found = (await source.execute(_page(table, last))).all()
            if not found:
                break
            rows = [dict(row._mapping) for row in found]
            await target.execute(
                table.insert(), [row | {column.name: None for column in own} for row in rows]
            )
            copied += len(rows)
            last = found[-1]
        for column in own:
            await _refer(source, target, table, column)
    return copied


async def first_filled(conn: AsyncConnection) -> str | None:
    """Return the name of a table that has rows, None if the database is empty."""
    for table in metadata.sorted_tables:
        if (await conn.execute(select(literal(1)).select_from(table).limit(1))).first():
            return table.name
    return None


def _page(table: Table, last: Row[Any] | None) -> Select[Any]:
    """Return the next rows after ``last``, in the order of the primary key."""
    key = list(table.primary_key.columns)
    chosen = select(table).order_by(*key).limit(AT_ONCE)
    if last is None:
        return chosen
    reached = (literal(last._mapping[column], column.type) for column in key)
    return chosen.where(tuple_(*key) > tuple_(*reached))


def _refers_to_itself(column: Column[Any]) -> bool:
    return any(key.column.table is column.table for key in column.foreign_keys)


async def _refer(
    source: AsyncConnection, target: AsyncConnection, table: Table, column: Column[Any]
) -> None:
    """Write a column that refers to rows of its own table, now that all of them are there."""
    (key,) = table.primary_key.columns
    chosen = select(key, column).where(column.is_not(None))
    changing = (
        table.update()
        .where(key == bindparam("this", type_=key.type))
        .values({column.name: bindparam("that", type_=column.type)})
    )
    rows = [{"this": this, "that": that} for this, that in await source.execute(chosen)]
    for start in range(0, len(rows), AT_ONCE):
        await target.execute(changing, rows[start : start + AT_ONCE])
