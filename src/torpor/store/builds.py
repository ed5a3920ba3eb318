"""The tables of builds of templates, and of what was told while they were made."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, func, literal, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.store import rows
from torpor.store.columns import Words
from torpor.store.paging import Page, newest_first
from torpor.store.records import Build, Line, Status
from torpor.store.tables import sessions, template_lines, templates
from torpor.store.tables import template_builds as table

UNFINISHED = ("PENDING", "BUILDING")
MOST_LINES = 2000
"""Lines that are kept of one build, the newest of them."""


async def insert(conn: AsyncConnection, build: Build) -> None:
    """Add a build."""
    await rows.add(conn, table, build)


async def get(conn: AsyncConnection, build: str) -> Build | None:
    """Return the build of this id, or None."""
    return await rows.one(conn, Build, table, build)


async def update(conn: AsyncConnection, build: str, **changes: Any) -> Build:
    """Change fields of a build, and return it as it is then; ``updated_at`` is set to now. Raises
    :exc:`KeyError`."""
    return await rows.changed(conn, Build, table, build, {"updated_at": rows.now(), **changes})


async def page(
    conn: AsyncConnection, template: str, limit: int, after: str | None = None
) -> Page[Build]:
    """Return some of the builds of a template, newest first.

    ``after`` is the ``next_cursor`` of the page before. Raises :exc:`CursorError`.
    """
    chosen = select(table).where(table.c.template == template)
    return await newest_first(conn, Build, chosen, table, limit, after)


async def unfinished(
    conn: AsyncConnection, template: str | None = None, host: str | None = None
) -> list[Build]:
    """Return the builds, of all templates or of one, that have not ended, the oldest first; those
    that one ``host`` makes if it is given."""
    chosen = select(table).where(table.c.status.in_(UNFINISHED), *rows.of_host(table, host))
    if template is not None:
        chosen = chosen.where(table.c.template == template)
    return await rows.listed(conn, Build, chosen.order_by(table.c.created_at, table.c.id))


async def unneeded(conn: AsyncConnection, host: str | None = None) -> list[Build]:
    """Return the builds that have ended and whose image the host that made it may have and nothing
    needs, the oldest first: neither a template that starts sessions from it, nor a session that is
    about to start; those of one ``host`` if it is given."""
    needed = or_(_current, _starting(table.c.image))
    chosen = select(table).where(
        table.c.image.is_not(None),
        table.c.status.not_in(UNFINISHED),
        ~needed,
        *rows.of_host(table, host),
    )
    return await rows.listed(conn, Build, chosen.order_by(table.c.created_at, table.c.id))


async def unneeded_elsewhere(
    conn: AsyncConnection, images: Mapping[str, str], host: str
) -> list[str]:
    """Return those of the ``images`` of a host, each with the id of its build, that were made there
    after the build of another host, and that nothing needs."""
    unneeded = []
    for image, build in images.items():
        chosen = select(table.c.id).where(
            table.c.id == build,
            table.c.host != host,
            table.c.status.not_in(UNFINISHED),
            ~or_(_current, _starting(literal(image, Words))),
        )
        if (await conn.execute(chosen)).first() is not None:
            unneeded.append(image)
    return unneeded


def _starting(image: ColumnElement[Any]) -> ColumnElement[bool]:
    about_to = sessions.c.image == image, sessions.c.status == Status.PROVISIONING
    return select(sessions.c.id).where(*about_to).exists()


_current = (
    select(templates.c.id)
    .where(templates.c.current_build == table.c.id, templates.c.deleted_at.is_(None))
    .exists()
)


async def add_line(conn: AsyncConnection, build: str, at: datetime, text: str) -> Line:
    """Add a line to what was told of a build; of more than :data:`MOST_LINES` the oldest goes."""
    told = template_lines.c.build == build
    newest = await conn.scalar(select(func.max(template_lines.c.number)).where(told))
    line = Line(build, (newest or 0) + 1, at, text)
    await rows.add(conn, template_lines, line)
    if line.number > MOST_LINES:
        old = template_lines.c.number <= line.number - MOST_LINES
        await conn.execute(template_lines.delete().where(told, old))
    return line


async def lines(conn: AsyncConnection, build: str) -> list[Line]:
    """Return the lines that are kept of what was told of a build, the oldest first."""
    chosen = select(template_lines).where(template_lines.c.build == build)
    return await rows.listed(conn, Line, chosen.order_by(template_lines.c.number))
