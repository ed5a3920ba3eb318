"""The table of templates. They stay when they are deleted: sessions name the one that they came
from."""

from typing import Any

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.store import rows
from torpor.store.errors import NameTakenError
from torpor.store.paging import Page, newest_first
from torpor.store.records import Template
from torpor.store.tables import templates as table

_lives = table.c.deleted_at.is_(None)


async def insert(conn: AsyncConnection, template: Template) -> None:
    """Add a template. Raises :exc:`NameTakenError`; the transaction around it can go on."""
    try:
        await rows.add(conn, table, template)
    except IntegrityError:
        holder = await find(conn, template.name)
        if holder is not None:
            raise NameTakenError(template.name, holder.id, "template") from None
        raise


async def get(conn: AsyncConnection, template: str) -> Template | None:
    """Return the template of this id, or None. One that was deleted is found too."""
    return await rows.one(conn, Template, table, template)


async def find(conn: AsyncConnection, called: str) -> Template | None:
    """Return the template that has this id or this name, whatever the name's case, or None.

    One that was deleted is not found.
    """
    chosen = select(table).where(_lives, table.c.id == called)
    by_id = await rows.first(conn, Template, chosen)
    if by_id is not None:
        return by_id
    named = func.lower(table.c.name) == func.lower(called)
    return await rows.first(conn, Template, select(table).where(_lives, named))


async def update(conn: AsyncConnection, template: str, **changes: Any) -> Template:
    """Change fields of a template, and return it as it is then; ``updated_at`` is set to now.
    Raises :exc:`KeyError`."""
    changes = {"updated_at": rows.now(), **changes}
    return await rows.changed(conn, Template, table, template, changes)


async def page(conn: AsyncConnection, limit: int, after: str | None = None) -> Page[Template]:
    """Return some of the templates that were not deleted, newest first.

    ``after`` is the ``next_cursor`` of the page before. Raises :exc:`CursorError`.
    """
    return await newest_first(conn, Template, select(table).where(_lives), table, limit, after)
