"""The table of sessions. They stay when they are destroyed, as history."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, bindparam, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.store import rows
from torpor.store.columns import kept
from torpor.store.errors import NameTakenError
from torpor.store.paging import Page, newest_first
from torpor.store.records import Session, Status
from torpor.store.tables import NAMELESS, session_labels
from torpor.store.tables import sessions as table

_NOTE_EVENT = table.update().where(table.c.id == bindparam(rows.THIS))

_KEEP_NAMES = table.update().where(table.c.id == bindparam(rows.THIS))


@dataclass(frozen=True)
class SessionQuery:
    """Which sessions are asked for; what is None or empty does not choose.

    ``after`` is the ``next_cursor`` of the page before. ``name`` is that of the one session that
    holds it, ``search`` a part of names; neither looks at case. Each label must be there with that
    value. ``config`` is what they were made of, ``host`` the one that they are on.
    """

    limit: int = 50
    after: str | None = None
    statuses: frozenset[Status] | None = None
    name: str | None = None
    search: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    config: str | None = None
    host: str | None = None


async def insert(conn: AsyncConnection, session: Session) -> None:
    """Add a session. Raises :exc:`NameTakenError`; the transaction around it can go on."""
    try:
        async with rows.taken_back_alone(conn):
            await rows.add(conn, table, session)
    except IntegrityError:
        await _refuse_taken_name(conn, session)
        raise
    await _add_labels(conn, session)


async def insert_all(conn: AsyncConnection, new: Sequence[Session]) -> None:
    """Add many sessions at once, whose names are known to be free."""
    await conn.execute(table.insert(), [rows.values(session) for session in new])
    for session in new:
        await _add_labels(conn, session)


async def get(conn: AsyncConnection, session: str) -> Session | None:
    """Return the session of this id, or None."""
    return await rows.one(conn, Session, table, session)


async def find(conn: AsyncConnection, name: str) -> Session | None:
    """Return the session that holds this name, whatever its case, or None.

    Those that are destroyed or failed hold none any more.
    """
    return await rows.first(conn, Session, select(table).where(*_holds(name)))


async def beginning_with(conn: AsyncConnection, prefix: str, limit: int = 2) -> list[Session]:
    """Return the sessions, at most ``limit``, whose ids begin so; those destroyed are left out."""
    chosen = select(table).where(
        table.c.id.startswith(kept(prefix), autoescape=True), table.c.status != Status.DESTROYED
    )
    return await rows.listed(conn, Session, chosen.order_by(table.c.id).limit(limit))


async def update(conn: AsyncConnection, session: str, **changes: Any) -> Session:
    """Change fields of a session, and return it as it is then; ``updated_at`` is set to now.

    Raises :exc:`KeyError` if there is none, and :exc:`NameTakenError`.
    """
    changes = {"updated_at": rows.now(), **changes}
    if changes.keys() & {"name", "status"}:
        new = await _renamed(conn, session, changes)
    else:
        new = await rows.changed(conn, Session, table, session, changes)
    if "labels" in changes:
        labelled = session_labels.c.session == session
        await conn.execute(session_labels.delete().where(labelled))
        await _add_labels(conn, new)
    return new


async def note_event(conn: AsyncConnection, session: str, at: datetime) -> None:
    """Note when the last event of a session was. Raises :exc:`KeyError` if there is none."""
    noted = await conn.execute(
        _NOTE_EVENT, {"last_event_at": at, "updated_at": rows.now(), rows.THIS: session}
    )
    if noted.rowcount != 1:
        raise KeyError(session)


async def keep_names(conn: AsyncConnection, names: Mapping[str, str]) -> None:
    """Keep what the wall has written down of sessions, in one statement. It is nothing that anybody
    has changed, so ``updated_at`` stays."""
    if names:
        await conn.execute(
            _KEEP_NAMES, [{rows.THIS: session, "names": each} for session, each in names.items()]
        )


async def page(conn: AsyncConnection, query: SessionQuery) -> Page[Session]:
    """Return some of the sessions that are asked for, newest first. Raises :exc:`CursorError`."""
    chosen = select(table).where(*rows.of_host(table, query.host))
    if query.statuses is not None:
        chosen = chosen.where(table.c.status.in_(query.statuses))
    if query.name is not None:
        chosen = chosen.where(*_holds(query.name))
    if query.search:
        chosen = chosen.where(rows.has_in_name(table, query.search))
    if query.config is not None:
        chosen = chosen.where(table.c.config == query.config)
    for key, value in query.labels.items():
        labelled = select(session_labels.c.session).where(
            session_labels.c.key == key, session_labels.c.value == value
        )
        chosen = chosen.where(table.c.id.in_(labelled))
    return await newest_first(conn, Session, chosen, table, query.limit, query.after)


async def live(conn: AsyncConnection) -> list[Session]:
    """Return all sessions that are not destroyed, the oldest first."""
    kept = [status for status in Status if status is not Status.DESTROYED]
    chosen = select(table).where(table.c.status.in_(kept))
    return await rows.listed(conn, Session, chosen.order_by(table.c.created_at, table.c.id))


async def of_machine(conn: AsyncConnection, machine: str) -> Session | None:
    """Return the session that this machine runs, or None."""
    return await rows.first(conn, Session, select(table).where(table.c.machine == machine))


async def standing_on(conn: AsyncConnection, snapshot: str) -> list[Session]:
    """Return the sessions that stand on this snapshot, that is, would be resumed or started from
    it, the oldest first."""
    chosen = select(table).where(table.c.snapshot == snapshot, table.c.status != Status.DESTROYED)
    return await rows.listed(conn, Session, chosen.order_by(table.c.created_at, table.c.id))


async def among(conn: AsyncConnection, sessions: Collection[str]) -> set[str]:
    """Return which of these ids are those of sessions."""
    return set(await conn.scalars(select(table.c.id).where(table.c.id.in_(sessions))))


async def machines(conn: AsyncConnection) -> set[str]:
    """Return the machines that sessions have."""
    return set(await conn.scalars(select(table.c.machine).where(table.c.machine.is_not(None))))


async def children(conn: AsyncConnection, session: str) -> list[Session]:
    """Return the sessions that were forked from one, the oldest first, destroyed ones too."""
    chosen = select(table).where(table.c.parent == session)
    return await rows.listed(conn, Session, chosen.order_by(table.c.created_at, table.c.id))


async def made_of(conn: AsyncConnection, config: str, limit: int) -> list[Session]:
    """Return the sessions, at most ``limit``, that were made of a configuration and still have
    their names, the oldest first."""
    chosen = select(table).where(table.c.config == config, table.c.status.not_in(NAMELESS))
    ordered = chosen.order_by(table.c.created_at, table.c.id)
    return await rows.listed(conn, Session, ordered.limit(limit))


async def with_status(
    conn: AsyncConnection, statuses: Collection[Status], host: str | None = None
) -> list[Session]:
    """Return the sessions in one of these states, the oldest first; those of one ``host`` if it is
    given."""
    chosen = select(table).where(table.c.status.in_(statuses), *rows.of_host(table, host))
    return await rows.listed(conn, Session, chosen.order_by(table.c.created_at, table.c.id))


async def counts(conn: AsyncConnection) -> dict[Status, int]:
    """Return how many sessions there are in each status, those with none included."""
    found = await conn.execute(select(table.c.status, func.count()).group_by(table.c.status))
    counted: dict[Status, int] = dict(found.all())
    return {status: counted.get(status, 0) for status in Status}


async def count(
    conn: AsyncConnection, statuses: Collection[Status], host: str | None = None
) -> int:
    """Return how many sessions there are in one of these states, on one ``host`` if it is given;
    history is not looked through."""
    wanted = table.c.status.in_(statuses), *rows.of_host(table, host)
    chosen = select(func.count()).select_from(table).where(*wanted)
    return int(await conn.scalar(chosen) or 0)


async def _renamed(conn: AsyncConnection, session: str, changes: Mapping[str, Any]) -> Session:
    """Change fields with which a session may take a name."""
    try:
        async with rows.taken_back_alone(conn):
            return await rows.changed(conn, Session, table, session, changes)
    except IntegrityError:
        old = await get(conn, session)
        await _refuse_taken_name(conn, old, changes.get("name"))
        raise


def _holds(name: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return rows.is_named(table, name), table.c.status.not_in(NAMELESS)


async def _refuse_taken_name(
    conn: AsyncConnection, session: Session | None, name: str | None = None
) -> None:
    if session is not None:
        wanted = name if name is not None else session.name
        holder = await find(conn, wanted)
        if holder is not None and holder.id != session.id:
            raise NameTakenError(wanted, holder.id) from None


async def _add_labels(conn: AsyncConnection, session: Session) -> None:
    if session.labels:
        await conn.execute(
            session_labels.insert(),
            [
                {"session": session.id, "key": key, "value": value}
                for key, value in session.labels.items()
            ],
        )
