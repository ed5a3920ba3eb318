"""The tables of transfers and of the parts of uploads."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.store import rows
from torpor.store.records import Part, Transfer, TransferStatus
from torpor.store.tables import transfer_parts as parts_table
from torpor.store.tables import transfers as table

OPEN: tuple[TransferStatus, ...] = ("pending", "in_progress")
"""The statuses of transfers that have not ended."""
ENDED: tuple[TransferStatus, ...] = ("completed", "failed")


async def insert(conn: AsyncConnection, transfer: Transfer) -> None:
    """Add a transfer."""
    await rows.add(conn, table, transfer)


async def get(conn: AsyncConnection, transfer: str) -> Transfer | None:
    """Return the transfer of this id, or None."""
    return await rows.one(conn, Transfer, table, transfer)


async def update(
    conn: AsyncConnection, transfer: str, among: Collection[TransferStatus], **changes: Any
) -> Transfer:
    """Change fields of a transfer that has one of the statuses ``among``, and return it as it is
    then; ``updated_at`` is set to now. Raises :exc:`KeyError` if there is none."""
    changes = {"updated_at": rows.now(), **changes}
    return await rows.changed(conn, Transfer, table, transfer, changes, table.c.status.in_(among))


async def unfinished(conn: AsyncConnection, session: str | None = None) -> list[Transfer]:
    """Return the transfers that have not ended, of one session or of all, the oldest first."""
    chosen = select(table).where(table.c.status.in_(OPEN))
    if session is not None:
        chosen = chosen.where(table.c.session == session)
    return await rows.listed(conn, Transfer, chosen.order_by(table.c.created_at, table.c.id))


async def completed(conn: AsyncConnection, session: str) -> list[Transfer]:
    """Return the transfers of a session that came to a good end."""
    chosen = select(table).where(table.c.session == session, table.c.status == "completed")
    return await rows.listed(conn, Transfer, chosen.order_by(table.c.created_at, table.c.id))


async def count_unfinished(conn: AsyncConnection, session: str) -> int:
    """Return how many transfers of a session have not ended."""
    chosen = select(func.count()).where(table.c.session == session, table.c.status.in_(OPEN))
    return int(await conn.scalar(chosen) or 0)


async def promised(conn: AsyncConnection) -> int:
    """Return how many bytes uploads that have not ended are still going to take: each is kept once
    by the server and once by its session."""
    arrived = (
        select(parts_table.c.transfer, func.sum(parts_table.c.size).label("bytes"))
        .group_by(parts_table.c.transfer)
        .subquery()
    )
    received = func.coalesce(arrived.c.bytes, 0)
    announced = func.coalesce(table.c.size, received)
    chosen = (
        select(func.sum(2 * announced - received))
        .select_from(table.outerjoin(arrived, arrived.c.transfer == table.c.id))
        .where(table.c.status.in_(OPEN), table.c.direction == "upload")
    )
    return int(await conn.scalar(chosen) or 0)


async def prune(conn: AsyncConnection, before: datetime) -> int:
    """Remove the transfers that have ended and expired before a time; return how many."""
    old = table.c.status.in_(ENDED), table.c.expires_at < before
    gone = select(table.c.id).where(*old)
    await conn.execute(parts_table.delete().where(parts_table.c.transfer.in_(gone)))
    return (await conn.execute(table.delete().where(*old))).rowcount


# Parts


async def put_part(conn: AsyncConnection, part: Part) -> Part | None:
    """Note a part that has come; return the one that it takes the place of, or None."""
    this = parts_table.c.transfer == part.transfer, parts_table.c.number == part.number
    earlier = await rows.first(conn, Part, select(parts_table).where(*this))
    await conn.execute(parts_table.delete().where(*this))
    await rows.add(conn, parts_table, part)
    return earlier


async def parts(conn: AsyncConnection, transfer: str) -> list[Part]:
    """Return the parts that have come, by number."""
    chosen = select(parts_table).where(parts_table.c.transfer == transfer)
    return await rows.listed(conn, Part, chosen.order_by(parts_table.c.number))


async def forget_parts(conn: AsyncConnection, transfer: str) -> None:
    """Remove the parts of a transfer."""
    await conn.execute(parts_table.delete().where(parts_table.c.transfer == transfer))
