"""Pages of a list, newest first: each goes on after the last row of the one before.

The place is a time and an id and not a count, so rows that come or go meanwhile shift nothing.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Select, Table, literal, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.store.columns import Id, Moment, microseconds, moment
from torpor.store.errors import CursorError
from torpor.store.records import Build, Config, Session, Snapshot, Template, Workspace
from torpor.store.rows import listed

T = TypeVar("T")
R = TypeVar("R", Session, Config, Snapshot, Template, Build, Workspace)
_CURSOR = re.compile(r"(\d{1,17})-([\x21-\x7e]{1,200})", re.ASCII)


@dataclass(frozen=True)
class Page(Generic[T]):
    """Some items of a list. ``next_cursor`` is where the next page begins; None: there is none."""

    items: list[T]
    next_cursor: str | None


async def newest_first(
    conn: AsyncConnection,
    record: Callable[..., R],
    chosen: Select[Any],
    table: Table,
    limit: int,
    after: str | None,
) -> Page[R]:
    """Return at most ``limit`` of the chosen rows of a record's table.

    Raises :exc:`CursorError` if ``after`` is not a page's ``next_cursor``.
    """
    if limit < 1:
        raise ValueError(f"a page has at least one item, not {limit}")
    place = tuple_(table.c.created_at, table.c.id)
    if after is not None:
        match = _CURSOR.fullmatch(after)
        if not match:
            raise CursorError(after)
        chosen = chosen.where(
            place < tuple_(literal(moment(int(match[1])), Moment), literal(match[2], Id))
        )
    # One more than asked for tells whether there is a next page.
    ordered = chosen.order_by(table.c.created_at.desc(), table.c.id.desc()).limit(limit + 1)
    found = await listed(conn, record, ordered)
    if len(found) <= limit:
        return Page(found, None)
    last = found[limit - 1]
    return Page(found[:limit], f"{microseconds(last.created_at)}-{last.id}")
