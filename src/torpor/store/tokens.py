"""The table of tokens. Those that are revoked stay: events name them."""

from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.store import rows
from torpor.store.records import Token
from torpor.store.tables import tokens as table


async def insert(conn: AsyncConnection, token: Token) -> None:
    """Add a token."""
    await rows.add(conn, table, token)


async def get(conn: AsyncConnection, token: str) -> Token | None:
    """Return the token of this id, or None."""
    return await rows.one(conn, Token, table, token)


async def all(conn: AsyncConnection) -> list[Token]:  # noqa: A001 - read as tokens.all
    """Return all tokens, the oldest first, those that are revoked or expired included."""
    return await rows.listed(conn, Token, select(table).order_by(table.c.created_at, table.c.id))


async def update(conn: AsyncConnection, token: str, **changes: Any) -> Token:
    """Change fields of a token, and return it as it is then. Raises :exc:`KeyError`."""
    return await rows.changed(conn, Token, table, token, changes)
