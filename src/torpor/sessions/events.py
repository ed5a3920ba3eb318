"""The events of all sessions: kept in the database, and followed without a gap."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

from torpor.sessions.model import Actor, now
from torpor.store import events as table
from torpor.store import sessions
from torpor.store.database import Database, Transaction
from torpor.store.news import MISSED, NONE
from torpor.store.records import Event

PAGE = 500
NEWS = "s"
"""The kind of news that there are new events of a session."""


class Events:
    """Appends events, and tells those who follow that there are new ones.

    What is appended in a transaction is seen by others when that is committed; so are the news.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._followers: defaultdict[str | None, set[asyncio.Event]] = defaultdict(set)
        database.on_news(NEWS, self._heard)

    async def append(
        self,
        conn: Transaction,
        type_: str,
        session: str | None,
        by: Actor,
        **data: Any,
    ) -> Event:
        """Append an event in a transaction. Call :meth:`tell` after it."""
        if by.device is not None:
            data["device"] = by.device
        event = Event(self._database.ulids.new_id(), type_, now(), session, by.id, data)
        await table.append(conn, event)
        self._database.tell(conn, NEWS, session or NONE)
        if session is not None:
            await sessions.note_event(conn, session, event.at)
        return event

    async def add(self, type_: str, session: str | None, by: Actor, **data: Any) -> Event:
        """Append one event by itself."""
        async with self._database.write() as conn:
            event = await self.append(conn, type_, session, by, **data)
        self.tell(session)
        return event

    def tell(self, session: str | None) -> None:
        """Wake those who follow a session's events, and those who follow all."""
        for key in {session, None}:
            for follower in self._followers.get(key, ()):
                follower.set()

    def _heard(self, session: str) -> None:
        if session != MISSED:
            self.tell(None if session == NONE else session)
            return
        for followers in self._followers.values():
            for follower in followers:
                follower.set()

    async def last(self) -> str | None:
        """Return the id of the newest event."""
        async with self._database.read() as conn:
            return await table.last_id(conn)

    async def after(
        self, cursor: str | None, session: str | None, limit: int = PAGE
    ) -> list[Event]:
        """Return events after ``cursor``, the oldest first."""
        async with self._database.read() as conn:
            return await table.after(conn, cursor, session, limit)

    async def before(
        self, cursor: str | None, session: str | None, limit: int = PAGE
    ) -> list[Event]:
        """Return the last events before ``cursor`` (or of all), the oldest first."""
        async with self._database.read() as conn:
            return await table.before(conn, cursor, session, limit)

    async def follow(self, session: str | None, cursor: str | None) -> AsyncIterator[Event]:
        """Yield all events after ``cursor``, those of one session if it is given, for ever."""
        news = asyncio.Event()
        followers = self._followers[session]
        followers.add(news)
        try:
            while True:
                news.clear()
                found = await self.after(cursor, session)
                for event in found:
                    cursor = event.id
                    yield event
                if len(found) < PAGE:
                    await news.wait()
        finally:
            followers.discard(news)
            if not followers:
                self._followers.pop(session, None)
