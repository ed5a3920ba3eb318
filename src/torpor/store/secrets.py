"""The tables of secrets, and of which sessions have which."""

from typing import Any

from sqlalchemy import literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.store import rows
from torpor.store.records import Grant, Secret
from torpor.store.tables import secrets as table
from torpor.store.tables import session_secrets as grants


async def insert(conn: AsyncConnection, secret: Secret) -> None:
    """Add a secret."""
    await rows.add(conn, table, secret)


async def named(conn: AsyncConnection, name: str) -> Secret | None:
    """Return the secret of this name, or None."""
    return await rows.first(conn, Secret, select(table).where(table.c.name == name))


async def listed(conn: AsyncConnection) -> list[Secret]:
    """Return all secrets, by their names."""
    return await rows.listed(conn, Secret, select(table).order_by(table.c.name))


async def update(conn: AsyncConnection, secret: str, **changes: Any) -> Secret:
    """Change fields of a secret, and return it as it is then. Raises :exc:`KeyError`."""
    return await rows.changed(conn, Secret, table, secret, changes)


async def remove(conn: AsyncConnection, secret: str) -> None:
    """Remove a secret, from all sessions that have it too."""
    await conn.execute(grants.delete().where(grants.c.secret == secret))
    await conn.execute(table.delete().where(table.c.id == secret))


# Sessions


async def grant(conn: AsyncConnection, given: Grant) -> None:
    """Give a session a secret, which it does not have."""
    await rows.add(conn, grants, given)


async def revoke(conn: AsyncConnection, session: str, secret: str) -> bool:
    """Take a secret from a session. Return whether it had it."""
    done = await conn.execute(
        grants.delete().where(grants.c.session == session, grants.c.secret == secret)
    )
    return bool(done.rowcount)


async def of_session(conn: AsyncConnection, session: str) -> list[Secret]:
    """Return the secrets that a session has, by their names."""
    chosen = select(table).join(grants, grants.c.secret == table.c.id)
    return await rows.listed(
        conn, Secret, chosen.where(grants.c.session == session).order_by(table.c.name)
    )


async def granted(conn: AsyncConnection, session: str) -> list[Grant]:
    """Return how a session was given what it has."""
    chosen = select(grants).where(grants.c.session == session).order_by(grants.c.secret)
    return await rows.listed(conn, Grant, chosen)


async def sessions_of(conn: AsyncConnection, secret: str) -> list[str]:
    """Return the ids of the sessions that have a secret."""
    chosen = select(grants.c.session).where(grants.c.secret == secret).order_by(grants.c.session)
    return [row[0] for row in await conn.execute(chosen)]


async def inherit(conn: AsyncConnection, parent: str, child: str) -> None:
    """Give a session what another one has."""
    found = select(
        literal(child, grants.c.session.type),
        grants.c.secret, grants.c.created_at, grants.c.created_by, grants.c.although_open,
    ).where(grants.c.session == parent)  # fmt: skip
    await conn.execute(grants.insert().from_select([each.name for each in grants.columns], found))


async def forget_session(conn: AsyncConnection, session: str) -> None:
    """Take all secrets from a session."""
    await conn.execute(grants.delete().where(grants.c.session == session))
