"""The table of operations: each is noted before it begins, and ends once."""

from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.store import rows
from torpor.store.errors import KeyUsedError
from torpor.store.records import Operation, OperationState
from torpor.store.tables import operations as table


async def insert(conn: AsyncConnection, operation: Operation) -> None:
    """Note an operation. Raises :exc:`KeyUsedError` if its actor has used its key before."""
    if operation.key is None:
        await rows.add(conn, table, operation)
        return
    try:
        async with rows.taken_back_alone(conn):
            await rows.add(conn, table, operation)
    except IntegrityError:
        first = await by_key(conn, operation.actor, operation.key)
        if first is not None:
            raise KeyUsedError(operation.key, first.id) from None
        raise


async def get(conn: AsyncConnection, operation: str) -> Operation | None:
    """Return the operation of this id, or None."""
    return await rows.one(conn, Operation, table, operation)


async def finish(
    conn: AsyncConnection,
    operation: str,
    state: OperationState,
    result: dict[str, Any] | None = None,
    error: str | None = None,
) -> None:
    """Note how an operation ended.

    Raises :exc:`KeyError` if none of this id is under way: the first end that is noted stays.
    """
    changes = {"state": state, "result": result or {}, "error": error, "ended_at": rows.now()}
    if (await conn.execute(_FINISHING, {rows.THIS: operation, **changes})).rowcount != 1:
        raise KeyError(operation)


_FINISHING = table.update().where(table.c.id == bindparam(rows.THIS), table.c.ended_at.is_(None))


async def interrupt(conn: AsyncConnection, session: str, but: str) -> None:
    """Note of all operations on a session of which no end is noted, except for ``but``, that
    nothing came of them."""
    left = table.c.session == session, table.c.ended_at.is_(None), table.c.id != but
    changes = {"state": "interrupted", "error": "Its session is gone.", "ended_at": rows.now()}
    await conn.execute(table.update().where(*left).values(**changes))


async def by_key(conn: AsyncConnection, actor: str, key: str) -> Operation | None:
    """Return the operation that an actor asked for with this idempotency key, or None."""
    chosen = select(table).where(table.c.actor == actor, table.c.key == key)
    return await rows.first(conn, Operation, chosen)


async def free_key(conn: AsyncConnection, operation: str) -> None:
    """Let the idempotency key of an operation that came to nothing be used for another one."""
    await rows.changed(conn, Operation, table, operation, {"key": None})


async def unfinished(conn: AsyncConnection, host: str | None = None) -> list[Operation]:
    """Return the operations of which no end is noted, the oldest first; those on one ``host`` if it
    is given."""
    chosen = select(table).where(table.c.ended_at.is_(None), *rows.of_host(table, host))
    return await rows.listed(conn, Operation, chosen.order_by(table.c.id))


async def prune(conn: AsyncConnection, before: datetime) -> int:
    """Remove the operations that ended before a time; return how many.

    Their idempotency keys are free again.
    """
    return (await conn.execute(table.delete().where(table.c.ended_at < before))).rowcount
