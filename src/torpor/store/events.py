"""The table of events. They are only added, and removed when they are old; their ids are their
order."""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import Select, bindparam, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.store import rows
from torpor.store.records import Event
from torpor.store.tables import events as table


async def append(conn: AsyncConnection, event: Event) -> None:
    """Add an event."""
    await rows.add(conn, table, event)


async def last_of(conn: AsyncConnection, session: str) -> str | None:
    """Return the id of the newest event of a session, or None."""
    found: str | None = await conn.scalar(_LAST_OF, {"of": session})
    return found


_LAST_OF = select(func.max(table.c.id)).where(table.c.session == bindparam("of"))


async def after(
    conn: AsyncConnection,
    cursor: str | None,
    session: str | None,
    limit: int,
    types: Collection[str] | None = None,
) -> list[Event]:
    """Return at most ``limit`` events, the oldest first, that came after the one of id ``cursor``.

    That one need not be there any more. ``cursor`` None: from the first that is kept; ``session``
    None: those of all sessions, and those of none; ``types`` None: those of all types.
    """
    chosen = _of(session)
    if types is not None:
        chosen = chosen.where(table.c.type.in_(types))
    if cursor is not None:
        chosen = chosen.where(table.c.id > cursor)
    return await rows.listed(conn, Event, chosen.order_by(table.c.id).limit(limit))


async def before(
    conn: AsyncConnection, cursor: str | None, session: str | None, limit: int
) -> list[Event]:
    """Return the ``limit`` newest events before the one of id ``cursor``, the oldest of them first.

    ``cursor`` None: the newest of all.
    """
    chosen = _of(session)
    if cursor is not None:
        chosen = chosen.where(table.c.id < cursor)
    return (await rows.listed(conn, Event, chosen.order_by(table.c.id.desc()).limit(limit)))[::-1]


async def last_id(conn: AsyncConnection) -> str | None:
    """Return the id of the newest event, or None."""
    found: str | None = await conn.scalar(select(func.max(table.c.id)))
    return found


async def prune(conn: AsyncConnection, before: datetime, keep: int = 0) -> int:
    """Remove the events before a time, except for the ``keep`` newest of all; return how many."""
    old = table.delete().where(table.c.at < before)
    if keep > 0:
        newest = select(table.c.id).order_by(table.c.id.desc()).limit(1).offset(keep - 1)
        old = old.where(table.c.id < newest.scalar_subquery())
    return (await conn.execute(old)).rowcount


def _of(session: str | None) -> Select[tuple[object, ...]]:
    chosen = select(table)
    return chosen if session is None else chosen.where(table.c.session == session)
