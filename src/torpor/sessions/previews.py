"""Links to ports of sessions, for people who have no token: noted, so that they can be revoked."""

import asyncio
import contextlib
import logging
import secrets
from collections import defaultdict
from datetime import timedelta

from torpor.sessions.errors import InvalidError, NotFoundError
from torpor.sessions.events import Events
from torpor.sessions.model import Actor, Key, now
from torpor.sessions.operations import Operations
from torpor.sessions.standing import GONE, Standing, check_there
from torpor.store import operations as operations_table
from torpor.store import previews as table
from torpor.store import sessions
from torpor.store.database import Database
from torpor.store.errors import StoreError
from torpor.store.news import MISSED
from torpor.store.records import Operation, PreviewLink

logger = logging.getLogger("torpor.sessions")

NEWS = "l"
"""The kind of news that a link has changed."""
LOOK_SECONDS = 30.0
"""How often a link is looked at that is in use, and that no news came of."""
LONGEST = 30 * 24 * 3600
"""Seconds for which a link is good at most."""
MOST = 1000
"""Links that a session may have at a time."""


class Previews:
    """The links of all sessions."""

    def __init__(
        self, database: Database, events: Events, operations: Operations, standing: Standing
    ) -> None:
        self._database = database
        self._events = events
        self._operations = operations
        self._standing = standing
        self._watched: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        database.on_news(NEWS, self._look)

    async def share(
        self,
        session: str,
        port: int,
        by: Actor,
        *,
        seconds: int,
        label: str = "",
        key: Key | None = None,
    ) -> PreviewLink:
        """Make a link to a port of a session, which is good for so many seconds.

        Raises :exc:`NotFoundError` if there is no such session any more, :exc:`ConflictError` if it
        is on another host, :exc:`InvalidError` if that is too long, or there are too many already.
        """
        if not 1 <= seconds <= LONGEST:
            raise InvalidError(
                f"A link cannot be good for {seconds} s.", todo=f"Use 1 to {LONGEST} s."
            )

        async def do() -> PreviewLink:
            check_there(await self._standing.own(session))
            moment = now()
            link = PreviewLink(
                f"pv_{secrets.token_hex(8)}", session, port, label, moment, by.id,
                moment + timedelta(seconds=seconds),
            )  # fmt: skip
            record = self._operations.new("share", by, session, key, link=link.id)
            async with self._database.write() as conn:
                good = [each for each in await table.of_session(conn, session) if stands(each)]
                if len(good) >= MOST:
                    raise InvalidError(
                        f"This session has {MOST} links already.", todo="Revoke some of them."
                    )
                await operations_table.insert(conn, self._operations.done_at_once(record))
                await table.insert(conn, link)
                await self._events.append(
                    conn, "preview.shared", session, by,
                    preview=link.id, port=port, label=label, expires_at=link.expires_at.isoformat(),
                )  # fmt: skip
            self._events.tell(session)
            return link

        async def again(earlier: Operation) -> PreviewLink:
            return await self._get(session, earlier.plan["link"])

        return await self._operations.once(f"sharing {session}", by, key, do, again)

    async def of_session(self, session: str) -> list[PreviewLink]:
        """Return the links of a session, the oldest first, those that are over too."""
        async with self._database.read() as conn:
            return await table.of_session(conn, session)

    async def revoke(self, session: str, link: str, by: Actor) -> None:
        """Make a link of a session worthless from now on, and end all that it has under way, on
        whichever host.

        Raises :exc:`NotFoundError`.
        """
        found = await self._get(session, link)
        if found.revoked_at is None:
            async with self._database.write() as conn:
                await table.update(conn, link, revoked_at=now())
                await self._events.append(
                    conn, "preview.revoked", session, by, preview=link, port=found.port
                )
                self._database.tell(conn, NEWS, link)
            self._events.tell(session)

    async def standing(self, link: str) -> PreviewLink | None:
        """Return a link that is good now, else None."""
        async with self._database.read() as conn:
            found = await table.get(conn, link)
            session = None if found is None else await sessions.get(conn, found.session)
        if found is None or session is None or session.status in GONE or not stands(found):
            return None
        return found

    async def ended(self, link: PreviewLink) -> None:
        """Return when a link that is good is so no longer."""
        news = asyncio.Event()
        self._watched[link.id].add(news)
        try:
            while (left := (link.expires_at - now()).total_seconds()) > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left, LOOK_SECONDS)):
                        await news.wait()
                news.clear()
                if await self._is_revoked(link):
                    return
        finally:
            self._watched[link.id].discard(news)
            if not self._watched[link.id]:
                del self._watched[link.id]

    async def _is_revoked(self, link: PreviewLink) -> bool:
        """Return whether a link was revoked; as long as the database cannot be asked it was not."""
        try:
            async with self._database.read() as conn:
                found = await table.get(conn, link.id)
        except StoreError as error:
            logger.warning("link %s could not be looked at: %s", link.id, error)
            return False
        return found is None or found.revoked_at is not None

    def _look(self, link: str) -> None:
        """Have a link be looked at that has changed; all of them if news may have been missed."""
        for name, watchers in self._watched.items():
            if link in (name, MISSED):
                for each in watchers:
                    each.set()

    async def _get(self, session: str, link: str) -> PreviewLink:
        async with self._database.read() as conn:
            found = await table.get(conn, link)
        if found is None or found.session != session:
            raise NotFoundError(
                f"This session has no link {link!r}.",
                todo="`torpor preview SESSION` lists those that it has.",
            )
        return found


def stands(link: PreviewLink) -> bool:
    """Return whether a link is neither revoked nor over."""
    return link.revoked_at is None and now() < link.expires_at
