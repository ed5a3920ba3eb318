"""The table of keys that the server signs with."""

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.store import rows
from torpor.store.records import SigningKey
from torpor.store.tables import keys as table


async def insert(conn: AsyncConnection, key: SigningKey) -> None:
    """Add a key."""
    await rows.add(conn, table, key)


async def of(conn: AsyncConnection, purpose: str) -> list[SigningKey]:
    """Return the keys of a purpose, the oldest first."""
    wanted = select(table).where(table.c.purpose == purpose)
    return await rows.listed(conn, SigningKey, wanted.order_by(table.c.created_at, table.c.id))
