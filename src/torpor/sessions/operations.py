"""Operations: each change is noted before it is begun, done to its end, and done once."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from torpor.sessions.errors import ConflictError, KeyReusedError, SessionError
from torpor.sessions.events import Events
from torpor.sessions.hosts import OPERATION, SESSION
from torpor.sessions.model import Actor, Key, now
from torpor.sessions.tasks import Tasks
from torpor.store import operations as table
from torpor.store.database import Database, Transaction
from torpor.store.errors import (
    BusyError,
    DiskError,
    DiskFullError,
    KeyUsedError,
    StoreError,
    UnreachableError,
)
from torpor.store.records import Operation, OperationState

T = TypeVar("T")

logger = logging.getLogger("torpor.sessions")

AGAIN_SECONDS = 1.0
"""After how many seconds the database is asked again to take what has happened."""


class Noted:
    """An operation that has been noted and is under way."""

    def __init__(self, record: Operation) -> None:
        self.record = record
        self.state: OperationState = "started"
        """The end that has been noted, if one has."""
        self.happened = False
        """Whether the host has done it, or may have: then it did not fail, whatever else does, and
        what became of it is written down later."""

    @property
    def labels(self) -> dict[str, str]:
        """The labels of what it makes on a host: after a crash they say whose it is."""
        return {SESSION: self.record.session or "", OPERATION: self.record.id}

    async def done(self, conn: Transaction, **result: Any) -> None:
        """Note that it is done, in the transaction that changes what it changes."""
        await table.finish(conn, self.record.id, "done", result)
        self.state = "done"


class Operations:
    """Notes operations, and sees to it that one that is asked for twice is done once."""

    def __init__(
        self, database: Database, events: Events, tasks: Tasks, me: str | None = None
    ) -> None:
        self._database = database
        self._me = me
        self._events = events
        self._tasks = tasks
        self._keyed: dict[tuple[str, str], tuple[str, asyncio.Task[Any]]] = {}
        self.closing = asyncio.Event()
        """Set when this program is about to end."""
        self.on_end: Callable[[str, str, float], None] = lambda *_: None
        """Is told of each operation that has ended: its kind, `done` or `failed`, seconds."""

    async def once(
        self,
        name: str,
        by: Actor,
        key: Key | None,
        do: Callable[[], Coroutine[Any, Any, T]],
        again: Callable[[Operation], Awaitable[T]],
        go_on: Callable[[Operation], Awaitable[T]] | None = None,
    ) -> T:
        """Do an operation to its end, and return its result, though who asked may go away.

        With a ``key``: if it is under way, wait for that; if it was done, return what ``again``
        makes of its record; if it failed or was interrupted, do it. If nobody knows whether it was
        done, ``go_on`` with it, where there is such a case. Raises :exc:`KeyReusedError` if the
        key belongs to another request.
        """
        if key is None:
            return await self._tasks.whole(do(), name)
        found = self._keyed.get((by.id, key.key))
        if found is None:
            task = self._tasks.start(self._unless_done(by, key, do, again, go_on), name)
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
        go_on: Callable[[Operation], Awaitable[T]] | None,
    ) -> T:
        async with self._database.read() as conn:
            earlier = await table.by_key(conn, by.id, key.key)
        if earlier is not None:
            _check_same(earlier.digest or "", key)
            if earlier.state == "done":
                return await again(earlier)
            if earlier.state == "started" and self._me not in (None, earlier.host):
                raise _in_progress(key)
            if earlier.state == "started" and go_on is not None:
                return await go_on(earlier)
            async with self._database.write() as conn:
                await table.free_key(conn, earlier.id)
        try:
            return await do()
        except (KeyUsedError, ConflictError):
            async with self._database.read() as conn:
                first = await table.by_key(conn, by.id, key.key)
            if first is None or first.host == self._me:
                raise
            # Another server was asked the same at the same moment, and was quicker.
            _check_same(first.digest or "", key)
            if first.state != "done":
                raise _in_progress(key) from None
            return await again(first)

    def new(
        self, kind: str, by: Actor, session: str | None, key: Key | None, **plan: Any
    ) -> Operation:
        """Return the record of an operation that is about to be begun."""
        return Operation(
            self._database.ulids.new_id(),
            kind,
            by.id,
            now(),
            session,
            key=key.key if key else None,
            digest=key.digest if key else None,
            plan=plan,
            host=self._me,
        )

    def done_at_once(self, record: Operation, **result: Any) -> Operation:
        """Return the record of an operation that is done in the transaction that notes it."""
        return replace(record, state="done", result=result, ended_at=now())

    @asynccontextmanager
    async def noted(
        self, kind: str, by: Actor, session: str, key: Key | None = None, **plan: Any
    ) -> AsyncIterator[Noted]:
        """Note an operation, and what became of it if the block fails or is cancelled."""
        record = self.new(kind, by, session, key, **plan)
        async with self._database.write() as conn:
            await table.insert(conn, record)
        async with self.under_way(record, by) as noted:
            yield noted

    async def note_nothing(self, kind: str, by: Actor, session: str, key: Key | None) -> None:
        """Note an operation that had nothing to do: asked for again with its ``key`` it does
        nothing then either."""
        if key is None:
            return
        record = self.done_at_once(self.new(kind, by, session, key))
        async with self._database.write() as conn:
            await table.insert(conn, record)

    @asynccontextmanager
    async def under_way(self, record: Operation, by: Actor) -> AsyncIterator[Noted]:
        """Note what became of an operation that has been noted, if the block fails, is cancelled,
        or ends without anything done."""
        noted = Noted(record)
        began = time.monotonic()

        def tell(state: OperationState) -> None:
            self.on_end(record.kind, state, time.monotonic() - began)

        try:
            yield noted
        except (Exception, asyncio.CancelledError) as error:
            state: OperationState = "failed" if isinstance(error, Exception) else "interrupted"
            tell(state)
            if not noted.happened:  # else the next program finishes it
                await self._note_end(record, by, state, error)
            raise
        if noted.state == "started":
            noted.state = "interrupted"
            await self._note_end(record, by, noted.state, None)
        tell(noted.state)

    async def failed(
        self, conn: Transaction, noted: Noted, by: Actor, error: BaseException
    ) -> None:
        """Note that an operation has failed, in the transaction that changes what it changes."""
        await self._end(conn, noted.record, by, "failed", error)
        noted.state = "failed"

    async def _note_end(
        self, record: Operation, by: Actor, state: OperationState, error: BaseException | None
    ) -> None:
        """Note what became of an operation, unless its end is noted already. A database that does
        not take it leaves that to the next program."""
        try:
            async with self._database.write() as conn:
                await self._end(conn, record, by, state, error)
        except KeyError:
            return
        except StoreError as refusal:
            logger.error("the end of %s %s was not noted: %s", record.kind, record.id, refusal)
            return
        self._events.tell(record.session)

    async def _end(
        self,
        conn: Transaction,
        record: Operation,
        by: Actor,
        state: OperationState,
        error: BaseException | None,
    ) -> None:
        said = str(error) if state == "failed" else "It was cut off."
        await table.finish(conn, record.id, state, error=said)
        if state == "failed":
            code = error.code if isinstance(error, SessionError) else type(error).__name__
            await self._events.append(
                conn, "operation.failed", record.session, by,
                operation=record.id, kind=record.kind, error=said, code=code,
            )  # fmt: skip

    async def written(self, write: Callable[[Transaction], Awaitable[T]], noted: Noted) -> T:
        """Write down what the host has done for an operation, as :meth:`until_taken`. If this
        program ends before that, the next one finds the operation as noted, and finishes it."""
        noted.happened = True

        async def once() -> T:
            async with self._database.write() as conn:
                return await write(conn)

        return await self.until_taken(noted.record.kind, once)

    async def until_taken(self, what: str, write: Callable[[], Awaitable[T]]) -> T:
        """Write down what has happened: if the database refuses it, it is asked again until it
        takes it, or until this program ends."""
        while True:
            try:
                return await write()
            except (DiskError, DiskFullError, BusyError, UnreachableError) as error:
                if self.closing.is_set():
                    raise
                logger.warning("%s has happened and is not yet noted: %s", what, error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.closing.wait(), AGAIN_SECONDS)


def _in_progress(key: Key) -> ConflictError:
    return ConflictError(
        f"What was asked for with the idempotency key {key.key!r} is under way at another server.",
        state="It was not begun here.",
        todo="Ask again in a moment: then the answer is what has become of it.",
        code="in_progress",
    )


def _check_same(digest: str, key: Key) -> None:
    if digest != key.digest:
        raise KeyReusedError(
            f"The idempotency key {key.key!r} was used for another request.",
            state="Nothing was changed.",
            todo="Use a new key for each request.",
        )
