"""Whom bearer tokens stand for. How they look, and that they are compared in constant time, is
:mod:`torpor.store.bearer`'s."""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from torpor.api.permissions import GRANTED, Permission
from torpor.sessions.model import Actor
from torpor.store import bearer, tokens
from torpor.store.database import Database
from torpor.store.errors import StoreError
from torpor.store.records import Role, Token

log = logging.getLogger("torpor.server")

NEWS = "t"
"""The kind of news that a token has changed."""
LOOK_SECONDS = 30.0
"""How often the tokens are read that no news came of."""
AGAIN_SECONDS = 1.0
NOTED_EVERY = timedelta(minutes=1)
"""How closely it is written down when a token was last used."""


@dataclass(frozen=True)
class Caller:
    """Who makes a request, and in which role."""

    actor: Actor
    role: Role

    def may(self, permission: Permission) -> bool:
        """Return whether the role has a permission."""
        return permission in GRANTED[self.role]


ANYBODY = Caller(Actor("local", "local"), "admin")
"""Who everybody is where no authentication is asked for."""


class TokenEndedError(Exception):
    """A token was revoked, or has expired, while something was under way with it."""


@dataclass(frozen=True)
class _UnderWay:
    """Something that a token has under way: ``limit`` cuts it off."""

    task: asyncio.Task[None] | None
    limit: asyncio.Timeout


class Bearers:
    """The tokens of this server. They are few, and asked for with every request, so they are kept
    in memory; what other servers change is told, and looked for now and then."""

    def __init__(self, database: Database, known: list[Token]) -> None:
        self._database = database
        self._known = {each.id: each for each in known}
        self._used: dict[str, datetime] = {}
        self._stale = asyncio.Event()
        self._under_way: defaultdict[str, set[_UnderWay]] = defaultdict(set)

    @classmethod
    async def open(cls, database: Database) -> "Bearers":
        """Read the tokens."""
        async with database.read() as conn:
            bearers = cls(database, await tokens.all(conn))
        database.on_news(NEWS, lambda _: bearers._stale.set())
        return bearers

    async def follow(self) -> None:
        """Take over what other servers change, for ever."""
        while True:
            # Not by wait_for, which loses a cancellation that comes together with the news.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._stale.wait()
            self._stale.clear()
            try:
                await self.read_again()
            except StoreError as error:
                log.warning("tokens could not be read: %s; it is tried again", error)
                await asyncio.sleep(AGAIN_SECONDS)
                self._stale.set()

    async def read_again(self) -> None:
        """Take over what was changed, and end what a token has under way that was revoked."""
        async with self._database.read() as conn:
            found = await tokens.all(conn)
        for token in found:
            known = self._known.get(token.id)
            revoked = token.revoked_at or (known.revoked_at if known is not None else None)
            self._known[token.id] = replace(token, revoked_at=revoked)
            if revoked is not None and known is not None and known.revoked_at is None:
                self._end_all(token.id)

    def find(self, text: str | None) -> Caller | None:
        """Return whom a bearer token stands for, None if for nobody.

        The same work is done for a token that is not known, so that the time tells nothing.
        """
        token_id, secret = bearer.parse(text or "") or ("", "")
        token = self._known.get(token_id)
        right = bearer.matches(secret, token.sha256 if token else None)
        if token is None or not right or not is_valid(token):
            return None
        self._used[token.id] = datetime.now(UTC)
        return Caller(Actor(token.id, token.name), token.role)

    def stands(self, token_id: str) -> bool:
        """Return whether a token still stands for somebody."""
        token = self._known.get(token_id)
        return token is not None and is_valid(token)

    @asynccontextmanager
    async def while_valid(self, token_id: str) -> AsyncIterator[None]:
        """Have a block end with a token: if that is revoked or expires, what the block awaits is
        cancelled, and :exc:`TokenEndedError` raised."""
        expires = self._known[token_id].expires_at
        left = None if expires is None else (expires - datetime.now(UTC)).total_seconds()
        limit = asyncio.timeout(left)
        mine = _UnderWay(asyncio.current_task(), limit)
        try:
            async with limit:
                self._under_way[token_id].add(mine)
                yield
        except TimeoutError:
            if limit.expired():
                raise TokenEndedError from None
            raise
        finally:
            self._under_way[token_id].discard(mine)
            if not self._under_way[token_id]:
                del self._under_way[token_id]

    def _end_all(self, token_id: str) -> None:
        """Cut off all that a token has under way, but the revocation itself."""
        moment = asyncio.get_running_loop().time()
        for each in self._under_way.get(token_id, ()):
            if each.task is not asyncio.current_task() and not each.limit.expired():
                each.limit.reschedule(moment)

    async def make(
        self,
        name: str,
        role: Role,
        expires_at: datetime | None = None,
        *,
        keep: Callable[[str], None] = lambda _: None,
    ) -> tuple[Token, str]:
        """Make a token; return it and the text that its owner shows, which is known only now.

        ``keep`` is given the text before the token is good for anything: if it raises, there is no
        token of which nobody knows the text."""
        new = bearer.new_token()
        keep(new.text)
        token = Token(new.id, name, role, new.sha256, datetime.now(UTC), expires_at)
        async with self._database.write() as conn:
            await tokens.insert(conn, token)
            self._database.tell(conn, NEWS, token.id)
        self._known[token.id] = token
        return token, new.text

    async def revoke(self, token_id: str) -> Token | None:
        """Make a token worthless from now on, and end all that it has under way; return it, None if
        there is none of this id."""
        token = self._known.get(token_id)
        if token is None:
            return None
        revoked = replace(token, revoked_at=token.revoked_at or datetime.now(UTC))
        self._known[token_id] = revoked  # from this moment on, however long the writing takes
        self._end_all(token_id)
        # It is written each time: the time before, the database may have refused it.
        async with self._database.write() as conn:
            await tokens.update(conn, token_id, revoked_at=revoked.revoked_at)
            self._database.tell(conn, NEWS, token_id)
        return revoked

    def list(self) -> list[Token]:
        """Return all tokens, the oldest first, those that are worthless too."""
        found = sorted(self._known.values(), key=lambda each: (each.created_at, each.id))
        return [replace(each, used_at=self._used.get(each.id, each.used_at)) for each in found]

    async def note_uses(self) -> None:
        """Write down when each token was last used, where that is not known closely enough."""
        for token_id, used in list(self._used.items()):
            token = self._known[token_id]
            if token.used_at is None or used - token.used_at >= NOTED_EVERY:
                async with self._database.write() as conn:
                    await tokens.update(conn, token_id, used_at=used)
                self._known[token_id] = replace(self._known[token_id], used_at=used)


def is_valid(token: Token) -> bool:
    """Return whether a token still stands for somebody."""
    expired = token.expires_at is not None and datetime.now(UTC) >= token.expires_at
    return token.revoked_at is None and not expired
