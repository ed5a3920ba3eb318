"""The table of snapshots: which there are of each session, which came from which, and which are
needed."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import and_, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.store import rows
from torpor.store.paging import Page, newest_first
from torpor.store.records import Snapshot, Status
from torpor.store.tables import sessions
from torpor.store.tables import snapshots as table

_GONE = (Status.DESTROYED, Status.DESTROYING)
_standing = sessions.alias("standing")
_owner = sessions.alias("owner")
_needed = or_(
    # A session stands on it: would be resumed or started from it.
    select(_standing.c.id)
    .where(_standing.c.snapshot == table.c.id, _standing.c.status != Status.DESTROYED)
    .exists(),
    # Or its own session may go back to it, or be recovered from it.
    and_(
        _owner.c.status.not_in(_GONE),
        or_(table.c.checkpoint.is_not(None), _owner.c.status == Status.FAILED),
    ),
)
"""Whether anything needs a snapshot. Removing is reachability, nothing else."""
_owned = table.join(_owner, _owner.c.id == table.c.session)


async def insert(conn: AsyncConnection, snapshot: Snapshot) -> None:
    """Add a snapshot."""
    await rows.add(conn, table, snapshot)


async def insert_all(conn: AsyncConnection, new: Sequence[Snapshot]) -> None:
    """Add many snapshots at once."""
    await conn.execute(table.insert(), [rows.values(snapshot) for snapshot in new])


async def get(conn: AsyncConnection, snapshot: str) -> Snapshot | None:
    """Return the snapshot of this id, or None."""
    return await rows.one(conn, Snapshot, table, snapshot)


async def by_checkpoint(conn: AsyncConnection, session: str, checkpoint: str) -> Snapshot | None:
    """Return the snapshot of a session that is known as this checkpoint, or None."""
    chosen = select(table).where(table.c.session == session, table.c.checkpoint == checkpoint)
    return await rows.first(conn, Snapshot, chosen)


async def update(conn: AsyncConnection, snapshot: str, **changes: Any) -> Snapshot:
    """Change fields of a snapshot, and return it as it is then. Raises :exc:`KeyError`."""
    return await rows.changed(conn, Snapshot, table, snapshot, changes)


async def remove(conn: AsyncConnection, snapshot: str) -> bool:
    """Remove a snapshot; those that came from it get its parent. Return whether there was one."""
    found = await get(conn, snapshot)
    if found is None:
        return False
    children = table.c.parent == snapshot
    await conn.execute(table.update().where(children).values(parent=found.parent))
    await conn.execute(table.delete().where(table.c.id == snapshot))
    return True


async def of_session(conn: AsyncConnection, session: str) -> list[Snapshot]:
    """Return all snapshots of a session, the oldest first."""
    chosen = select(table).where(table.c.session == session)
    return await rows.listed(conn, Snapshot, chosen.order_by(table.c.created_at, table.c.id))


async def of_all(conn: AsyncConnection) -> list[Snapshot]:
    """Return the snapshots of all sessions, the oldest first."""
    return await rows.listed(conn, Snapshot, select(table).order_by(table.c.created_at, table.c.id))


async def needed(conn: AsyncConnection) -> list[Snapshot]:
    """Return the snapshots that anything needs, the oldest first."""
    chosen = select(table).select_from(_owned).where(_needed)
    return await rows.listed(conn, Snapshot, chosen.order_by(table.c.created_at, table.c.id))


async def unneeded(conn: AsyncConnection, among: Collection[str] | None = None) -> list[str]:
    """Return the ids of the snapshots that nothing needs, of all or of those ``among``, the oldest
    first."""
    chosen = select(table.c.id).select_from(_owned).where(~_needed)
    if among is not None:
        chosen = chosen.where(table.c.id.in_(among))
    return list(await conn.scalars(chosen.order_by(table.c.created_at, table.c.id)))


async def ready(conn: AsyncConnection) -> dict[str, bool]:
    """Return the ids of the snapshots that are ready, the oldest first, and whether each is known
    to be durable."""
    chosen = select(table.c.id, table.c.durable).where(table.c.status == "READY")
    return dict((await conn.execute(chosen.order_by(table.c.created_at, table.c.id))).all())


async def ids(conn: AsyncConnection) -> set[str]:
    """Return the ids of all snapshots."""
    return set(await conn.scalars(select(table.c.id)))


async def stored_bytes(conn: AsyncConnection) -> dict[str, int]:
    """Return what the snapshots of each session take, in bytes."""
    chosen = select(table.c.session, func.sum(table.c.stored_bytes)).group_by(table.c.session)
    return {session: int(stored) for session, stored in await conn.execute(chosen)}


async def page(
    conn: AsyncConnection, session: str, limit: int, after: str | None = None
) -> Page[Snapshot]:
    """Return some of the snapshots that a session's users know as checkpoints, newest first.

    ``after`` is the ``next_cursor`` of the page before. Raises :exc:`CursorError`.
    """
    chosen = select(table).where(
        table.c.session == session,
        table.c.checkpoint.is_not(None),
    )
    return await newest_first(conn, Snapshot, chosen, table, limit, after)
