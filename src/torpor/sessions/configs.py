"""Configurations: manifests that are kept, and that sessions are made of.

They never change. A session takes its values when it is made, so nothing of it changes either when
its configuration is deleted.
"""

import uuid
from collections.abc import Mapping
from typing import Any

from torpor.sessions.errors import ConflictError, NotFoundError
from torpor.sessions.events import Events
from torpor.sessions.manifests import canonical, check_kept, content_hash, of_canonical
from torpor.sessions.model import Actor, Key, NewSession, check_name, check_new, now
from torpor.sessions.operations import Operations
from torpor.store import configs as table
from torpor.store import operations as operations_table
from torpor.store import sessions
from torpor.store.configs import ConfigQuery
from torpor.store.database import Database, Transaction
from torpor.store.errors import ConfigNameTakenError
from torpor.store.paging import Page
from torpor.store.records import Config, Operation

MOST_NAMED = 10
"""Sessions that an error names at most."""


class Configs:
    """Keeps configurations, those of sessions that brought their own manifest too."""

    def __init__(self, database: Database, events: Events, operations: Operations) -> None:
        self._database = database
        self._events = events
        self._operations = operations

    async def find(self, called: str) -> Config:
        """Return a configuration by its id or its name. Raises :exc:`NotFoundError`, also if it
        was deleted."""
        async with self._database.read() as conn:
            found = await table.get(conn, called.lower()) or await table.find(conn, called)
        if found is None or found.deleted_at is not None:
            raise _no_config(called)
        return found

    async def page(self, query: ConfigQuery) -> Page[Config]:
        """Return a page of configurations, newest first. Raises :exc:`CursorError` of the store."""
        async with self._database.read() as conn:
            return await table.page(conn, query)

    async def create(
        self,
        name: str,
        new: NewSession,
        by: Actor,
        *,
        insights: Mapping[str, bool] | None = None,
        key: Key | None = None,
    ) -> Config:
        """Keep a manifest under a name. Raises :exc:`InvalidError`, and :exc:`ConflictError` if
        the name is taken."""
        check_name(name, "A configuration")
        check_new(new)
        check_kept(new)
        config = _config(name, canonical(new), new.version, by, insights=insights)
        return await self._operations.once(
            "create a configuration", by, key, lambda: self._keep(config, by, key), self._kept
        )

    async def clone(self, config: str, name: str, by: Actor, *, key: Key | None = None) -> Config:
        """Keep the manifest of a configuration once more, under another name; the two know nothing
        of each other. Raises as :meth:`create`, and :exc:`NotFoundError`."""
        check_name(name, "A configuration")
        source = await self.find(config)
        check_kept(of_canonical(source.manifest, None, source.id))
        made = _config(name, source.manifest, source.schema_version, by, insights=source.insights)
        return await self._operations.once(
            "clone a configuration",
            by,
            key,
            lambda: self._keep(made, by, key, cloned_from=source.id),
            self._kept,
        )

    async def _keep(self, config: Config, by: Actor, key: Key | None, **more: str) -> Config:
        operation = self._operations.done_at_once(
            self._operations.new("config", by, None, key), config=config.id
        )
        try:
            async with self._database.write() as conn:
                await table.insert(conn, config)
                await operations_table.insert(conn, operation)
                await self._events.append(
                    conn, "config.created", None, by, config_id=config.id, name=config.name,
                    content_hash=config.content_hash, **more,
                )  # fmt: skip
        except ConfigNameTakenError as error:
            raise ConflictError(
                f"There is a configuration {config.name} already.",
                state="Nothing was stored.",
                todo="Delete it first, or use another name.",
                code="already_exists",
            ) from error
        self._events.tell(None)
        return config

    async def _kept(self, operation: Operation) -> Config:
        async with self._database.read() as conn:
            found = await table.get(conn, operation.result["config"])
        assert found is not None  # none is ever removed
        return found

    async def delete(self, config: str, by: Actor) -> None:
        """Delete a configuration; its name is free then. Raises :exc:`NotFoundError`, and
        :exc:`ConflictError` while a session that was made of it is neither destroyed nor failed."""
        async with self._database.write() as conn:
            found = await table.get(conn, config)
            if found is None or found.deleted_at is not None:
                raise _no_config(config)
            users = await sessions.made_of(conn, config, MOST_NAMED + 1)
            if users:
                named = ", ".join(session.name for session in users[:MOST_NAMED])
                more = " and more" if len(users) > MOST_NAMED else ""
                raise ConflictError(
                    f"Configuration {found.name} is that of sessions: {named}{more}.",
                    state="Nothing was deleted.",
                    todo="Destroy them first.",
                    code="config_in_use",
                    sessions=[session.id for session in users[:MOST_NAMED]],
                )
            await table.delete(conn, config)
            await self._events.append(
                conn, "config.deleted", None, by, config_id=config, name=found.name
            )
        self._events.tell(None)

    async def new_session(self, config: str, name: str) -> NewSession:
        """Return the session called ``name`` that a configuration asks for. Raises
        :exc:`NotFoundError`."""
        found = await self.find(config)
        return of_canonical(found.manifest, name, found.id)

    async def of_session(self, conn: Transaction, new: NewSession, name: str, by: Actor) -> str:
        """Return the configuration that a session has, in the transaction that notes the session:
        its own; or for one that brought its manifest the one that says the same, which is kept now
        if there is none. Raises :exc:`NotFoundError` if its own was deleted meanwhile."""
        if new.config is not None:
            found = await table.get(conn, new.config)
            if found is None or found.deleted_at is not None:
                raise _no_config(new.config)
            return found.id
        document = canonical(new)
        there = await table.same(conn, content_hash(document), new.version)
        if there is not None:
            return there.id
        kept = _config(name, document, new.version, by, implicit=True)
        await table.insert(conn, kept)
        return kept.id


def _config(
    name: str,
    manifest: dict[str, Any],
    version: str,
    by: Actor,
    *,
    insights: Mapping[str, bool] | None = None,
    implicit: bool = False,
) -> Config:
    moment = now()
    return Config(
        id=str(uuid.uuid4()),
        name=name,
        created_at=moment,
        updated_at=moment,
        created_by=by.id,
        content_hash=content_hash(manifest),
        schema_version=version,
        manifest=manifest,
        insights=None if insights is None else dict(insights),
        implicit=implicit,
    )


def _no_config(called: str) -> NotFoundError:
    return NotFoundError(
        f"There is no configuration {called!r}.", todo="`torpor config list` shows them."
    )
