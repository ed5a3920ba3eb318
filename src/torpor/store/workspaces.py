"""The table of workspaces: disks that outlive sessions, each of them held by one at a time."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.store import rows
from torpor.store.paging import Page, newest_first
from torpor.store.records import Workspace, WorkspaceState
from torpor.store.tables import workspaces as table


@dataclass(frozen=True)
class WorkspaceQuery:
    """Which workspaces are asked for: those in a ``state``, None for all. ``after`` is the
    ``next_cursor`` of the page before."""

    limit: int = 50
    after: str | None = None
    state: WorkspaceState | None = None


async def insert(conn: AsyncConnection, workspace: Workspace) -> None:
    """Add a workspace."""
    await rows.add(conn, table, workspace)


async def get(conn: AsyncConnection, workspace: str) -> Workspace | None:
    """Return the workspace of this id, or None."""
    return await rows.one(conn, Workspace, table, workspace)


async def named(conn: AsyncConnection, name: str, limit: int = 2) -> list[Workspace]:
    """Return the workspaces, at most ``limit``, that have this name, whatever its case, the oldest
    first."""
    chosen = select(table).where(rows.is_named(table, name))
    ordered = chosen.order_by(table.c.created_at, table.c.id)
    return await rows.listed(conn, Workspace, ordered.limit(limit))


async def of_session(conn: AsyncConnection, session: str) -> Workspace | None:
    """Return the workspace that a session holds, or None."""
    return await rows.first(conn, Workspace, select(table).where(table.c.session == session))


async def update(
    conn: AsyncConnection,
    workspace: str,
    among: Collection[WorkspaceState] | None = None,
    **changes: Any,
) -> Workspace:
    """Change fields of a workspace, if it is in one of the states ``among``, and return it as it is
    then. Raises :exc:`KeyError` if there is none, or it is in another state."""
    conditions = () if among is None else (table.c.state.in_(among),)
    return await rows.changed(conn, Workspace, table, workspace, changes, *conditions)


async def remove(conn: AsyncConnection, workspace: str) -> None:
    """Remove a workspace."""
    await conn.execute(table.delete().where(table.c.id == workspace))


async def in_state(
    conn: AsyncConnection, states: Collection[WorkspaceState], host: str | None
) -> list[Workspace]:
    """Return the workspaces in one of these states whose disks a host has, all if it is None, the
    oldest first."""
    chosen = select(table).where(table.c.state.in_(states), *rows.of_host(table, host))
    return await rows.listed(conn, Workspace, chosen.order_by(table.c.created_at, table.c.id))


async def count(conn: AsyncConnection) -> int:
    """Return how many workspaces there are."""
    return int(await conn.scalar(select(func.count()).select_from(table)) or 0)


async def page(conn: AsyncConnection, query: WorkspaceQuery) -> Page[Workspace]:
    """Return some of the workspaces that are asked for, newest first. Raises
    :exc:`CursorError`."""
    chosen = select(table)
    if query.state is not None:
        chosen = chosen.where(table.c.state == query.state)
    return await newest_first(conn, Workspace, chosen, table, query.limit, query.after)
