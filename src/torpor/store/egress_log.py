"""The table of what the wall decided. Lines are only added, and removed when they are old, or when
a session has too many; their ids are their order."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.store import rows
from torpor.store.records import EgressEntry
from torpor.store.tables import egress_log as table


@dataclass(frozen=True)
class EgressQuery:
    """Which lines of a session are asked for; what is None does not choose. ``since`` and ``until``
    are compared with the last decision of a line."""

    session: str
    allowed: bool | None = None
    host: str | None = None
    since: datetime | None = None
    until: datetime | None = None


async def append(conn: AsyncConnection, entries: Sequence[EgressEntry]) -> None:
    """Add lines, in one statement."""
    if entries:
        await conn.execute(table.insert(), [rows.values(entry) for entry in entries])


async def after(
    conn: AsyncConnection, query: EgressQuery, cursor: str | None, limit: int
) -> list[EgressEntry]:
    """Return at most ``limit`` lines, the oldest first, that came after the one of id ``cursor``;
    that one need not be there any more."""
    chosen = _chosen(query)
    if cursor is not None:
        chosen = chosen.where(table.c.id > cursor)
    return await rows.listed(conn, EgressEntry, chosen.order_by(table.c.id).limit(limit))


async def before(
    conn: AsyncConnection, query: EgressQuery, cursor: str | None, limit: int
) -> list[EgressEntry]:
    """Return the ``limit`` newest lines before the one of id ``cursor`` (None: of all), the newest
    first."""
    chosen = _chosen(query)
    if cursor is not None:
        chosen = chosen.where(table.c.id < cursor)
    return await rows.listed(conn, EgressEntry, chosen.order_by(table.c.id.desc()).limit(limit))


async def last_id(conn: AsyncConnection) -> str | None:
    """Return the id of the newest line of all, or None."""
    found: str | None = await conn.scalar(select(func.max(table.c.id)))
    return found


async def keep_newest(conn: AsyncConnection, session: str, count: int) -> int:
    """Remove all lines of a session but the newest; return how many."""
    of_session = table.c.session == session
    oldest = select(table.c.id).where(of_session).order_by(table.c.id.desc())
    last = await conn.scalar(oldest.limit(1).offset(count - 1))
    if last is None:
        return 0
    return (await conn.execute(table.delete().where(of_session, table.c.id < last))).rowcount


async def prune(conn: AsyncConnection, before: datetime) -> int:
    """Remove the lines that began before a time; return how many."""
    return (await conn.execute(table.delete().where(table.c.at < before))).rowcount


def _chosen(query: EgressQuery) -> Select[Any]:
    chosen = select(table).where(table.c.session == query.session)
    if query.allowed is not None:
        chosen = chosen.where(table.c.allowed == query.allowed)
    if query.host is not None:
        chosen = chosen.where(table.c.host == query.host)
    if query.since is not None:
        chosen = chosen.where(table.c.until >= query.since)
    if query.until is not None:
        chosen = chosen.where(table.c.until < query.until)
    return chosen
