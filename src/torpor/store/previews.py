"""The table of links to ports of sessions. Those that are revoked or over stay for a while."""

from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.store import rows
from torpor.store.records import PreviewLink
from torpor.store.tables import preview_links as table


async def insert(conn: AsyncConnection, link: PreviewLink) -> None:
    """Add a link."""
    await rows.add(conn, table, link)


async def get(conn: AsyncConnection, link: str) -> PreviewLink | None:
    """Return the link of this id, or None."""
    return await rows.one(conn, PreviewLink, table, link)


async def of_session(conn: AsyncConnection, session: str) -> list[PreviewLink]:
    """Return the links of a session, the oldest first."""
    wanted = select(table).where(table.c.session == session)
    return await rows.listed(conn, PreviewLink, wanted.order_by(table.c.created_at, table.c.id))


async def update(conn: AsyncConnection, link: str, **changes: Any) -> PreviewLink:
    """Change fields of a link, and return it as it is then. Raises :exc:`KeyError`."""
    return await rows.changed(conn, PreviewLink, table, link, changes)


async def prune(conn: AsyncConnection, before: datetime) -> None:
    """Forget links that were over before a moment."""
    await conn.execute(table.delete().where(table.c.expires_at < before))
