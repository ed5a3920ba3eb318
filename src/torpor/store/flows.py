"""The table of where the data of sessions went: a row for each place that a session has reached, or
tried to."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.store import rows
from torpor.store.records import Flow
from torpor.store.tables import flows as table
from torpor.store.tables import sessions

_KEY = ("session", "kind", "name")
_CHANGED = [name for name in rows.names(Flow) if name not in _KEY]
_CHANGING = table.update().where(*(table.c[name] == bindparam(f"this_{name}") for name in _KEY))


async def insert(conn: AsyncConnection, flows: Sequence[Flow]) -> None:
    """Add rows that are not there yet, in one statement."""
    if flows:
        await conn.execute(table.insert(), [rows.values(flow) for flow in flows])


async def update(conn: AsyncConnection, flows: Sequence[Flow]) -> None:
    """Have rows that are there be these, in one statement."""
    if flows:
        await conn.execute(
            _CHANGING,
            [
                {name: getattr(flow, name) for name in _CHANGED}
                | {f"this_{name}": getattr(flow, name) for name in _KEY}
                for flow in flows
            ],
        )


async def of_session(conn: AsyncConnection, session: str) -> list[Flow]:
    """Return all rows of a session: what has received most first."""
    chosen = select(table).where(table.c.session == session)
    ordered = chosen.order_by(table.c.sent_bytes.desc(), table.c.kind, table.c.name)
    return await rows.listed(conn, Flow, ordered)


async def prune(conn: AsyncConnection, before: datetime) -> int:
    """Remove the rows of which nothing was heard since a time; return how many."""
    # By session: so the primary key serves, and no index on the time must be kept up.
    named = table.c.session.in_(select(sessions.c.id))
    return (await conn.execute(table.delete().where(named, table.c.last_at < before))).rowcount
