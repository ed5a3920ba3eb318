"""Operations: each change is noted before it is begun, done to its end, and done once."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from torpor.sessions.errors import ConflictError, SessionError
from torpor.sessions.events import Events
from torpor.sessions.hosts import OPERATION, SESSION
from torpor.sessions.model import Actor, Key, now
from torpor.sessions.tasks import Tasks
from torpor.store import operations as table
from torpor.store.database import Database, Transaction
from torpor.store.records import Operation
from torpor.store.ulids import Ulids

T = TypeVar("T")


class Noted:
    """An operation that has been noted and is under way."""

    def __init__(self, record: Operation) -> None:
        self.record = record
        self.finished = False

    @property
    def labels(self) -> dict[str, str]:
        """The labels of what it makes on a host: after a crash they say whose it is."""
        return {SESSION: self.record.session or "", OPERATION: self.record.id}

    async def done(self, conn: Transaction, **result: Any) -> None:
        """Note that it is done, in the transaction that changes what it changes."""
        await table.finish(conn, self.record.id, "done", result)
        self.finished = True


class Operations:
    """Notes operations, and sees to it that one that is asked for twice is done once."""

    def __init__(self, database: Database, events: Events, ulids: Ulids, tasks: Tasks) -> None:
        self._database = database
        self._events = events
        self._ulids = ulids
        self._tasks = tasks
        self._keyed: dict[tuple[str, str], tuple[str, asyncio.Task[Any]]] = {}
        self.on_end: Callable[[str, str, float], None] = lambda *_: None
        """Is told of each operation that has ended: its kind, `done` or `failed`, seconds."""

    async def once(
        self,
        name: str,
        by: Actor,
        key: Key | None,
        do: Callable[[], Coroutine[Any, Any, T]],
        again: Callable[[Operation], Awaitable[T]],
    ) -> T:
        """Do an operation to its end, and return its result, though who asked may go away.

        With a ``key``: if it is under way, wait for that; if it was done, return what ``again``
        makes of its record; if it failed or was interrupted, do it. Raises :exc:`ConflictError` if
        the key belongs to another request.
        """
        if key is None:
            return await self._tasks.whole(do(), name)
        found = self._keyed.get((by.id, key.key))
        if found is None:
            task = self._tasks.start(self._unless_done(by, key, do, again), name)
            self._keyed[by.id, key.key] = (key.digest, task)
            task.add_done_callback(lambda _: self._keyed.pop((by.id, key.key), None))
        else:
            digest, task = found
            _check_same(digest, key)
        return await asyncio.shield(task)

    async def _unless_done(
        self,
        by: Actor,
        key: Key,
        do: Callable[[], Coroutine[Any, Any, T]],
        again: Callable[[Operation], Awaitable[T]],
    ) -> T:
        async with self._database.read() as conn:
            earlier = await table.by_key(conn, by.id, key.key)
        if earlier is not None:
            _check_same(earlier.digest or "", key)
            if earlier.state == "done":
                return await again(earlier)
            async with self._database.write() as conn:
                await table.free_key(conn, earlier.id)
        return await do()

    def new(
        self, kind: str, by: Actor, session: str | None, key: Key | None, **plan: Any
    ) -> Operation:
        """Return the record of an operation that is about to be begun."""
        return Operation(
            self._ulids.new_id(),
            kind,
            by.id,
            now(),
            session,
            key=key.key if key else None,
            digest=key.digest if key else None,
            plan=plan,
        )

    @asynccontextmanager
    async def noted(
        self, kind: str, by: Actor, session: str, key: Key | None = None, **plan: Any
    ) -> AsyncIterator[Noted]:
        """Note an operation, and what became of it if the block fails."""
        noted = Noted(self.new(kind, by, session, key, **plan))
        async with self._database.write() as conn:
            await table.begin(conn, noted.record)
        async with self.failing(noted, by):
            yield noted

    @asynccontextmanager
    async def failing(self, noted: Noted, by: Actor) -> AsyncIterator[None]:
        """Note the failure of an operation if the block raises an error or is cancelled."""
        began = time.monotonic()
        try:
            yield
        except asyncio.CancelledError:
            if not noted.finished:
                async with self._database.write() as conn:
                    await table.finish(
                        conn, noted.record.id, "interrupted", error="It was cut off."
                    )
            self.on_end(noted.record.kind, "interrupted", time.monotonic() - began)
            raise
        except Exception as error:
            if not noted.finished:
                await self._failed(noted.record, by, error)
            self.on_end(noted.record.kind, "failed", time.monotonic() - began)
            raise
        self.on_end(noted.record.kind, "done", time.monotonic() - began)
        assert noted.finished, f"{noted.record.kind} ended without a word"

    async def _failed(self, record: Operation, by: Actor, error: Exception) -> None:
        async with self._database.write() as conn:
            await table.finish(conn, record.id, "failed", error=str(error))
            await self._events.append(
                conn, "operation.failed", record.session, by,
                operation=record.id, kind=record.kind, error=str(error),
                code=error.code if isinstance(error, SessionError) else type(error).__name__,
            )  # fmt: skip
        self._events.tell(record.session)


def _check_same(digest: str, key: Key) -> None:
    if digest != key.digest:
        raise ConflictError(
            f"The idempotency key {key.key!r} was used for another request.",
            state="Nothing was changed.",
            todo="Use a new key for each request.",
        )
