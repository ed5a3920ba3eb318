"""The table of bytes that went to each host and back, in samples."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.store import rows
from torpor.store.records import Traffic
from torpor.store.tables import sessions
from torpor.store.tables import traffic as table


async def append(conn: AsyncConnection, samples: Sequence[Traffic]) -> None:
    """Add samples, at most one of a session and a host for each moment."""
    if samples:
        await conn.execute(table.insert(), [rows.values(sample) for sample in samples])


async def of_session(
    conn: AsyncConnection,
    session: str,
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[Traffic]:
    """Return a session's samples from ``since`` on, up to but without ``until``, oldest first."""
    chosen = select(table).where(table.c.session == session)
    if since is not None:
        chosen = chosen.where(table.c.at >= since)
    if until is not None:
        chosen = chosen.where(table.c.at < until)
    return await rows.listed(conn, Traffic, chosen.order_by(table.c.at, table.c.host))


async def prune(conn: AsyncConnection, before: datetime) -> int:
    """Remove the samples before a time; return how many."""
    # By session: so the primary key serves, and no index on the time alone must be kept up.
    named = table.c.session.in_(select(sessions.c.id))
    return (await conn.execute(table.delete().where(named, table.c.at < before))).rowcount
