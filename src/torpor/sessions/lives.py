"""What this program knows of a session beyond its record: whose turn it is, and who uses it."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

SWAPPING = frozenset(("create", "pause", "resume", "rollback", "destroy"))
"""Operations in which a session's machine comes or goes: whoever wants to use it waits."""


class Live:
    """One session. Operations on it take turns; uses of it go on side by side."""

    def __init__(self) -> None:
        self.doing: str | None = None
        """The operation that is under way."""
        self.uses = 0
        self.used = time.monotonic()
        self.waking: asyncio.Task[Any] | None = None
        self.provisioning: asyncio.Task[Any] | None = None
        self._turn = asyncio.Lock()
        self._news = asyncio.Event()

    @property
    def news(self) -> asyncio.Event:
        """An event that is set at the next change. Take it before looking at what may change."""
        return self._news

    def changed(self) -> None:
        """Tell all who wait for news."""
        self._news.set()
        self._news = asyncio.Event()

    @property
    def busy(self) -> bool:
        """Whether an operation is under way or waits for its turn."""
        return self._turn.locked()

    @property
    def swapping(self) -> bool:
        """Whether its machine is coming or going right now."""
        return self.doing in SWAPPING

    @asynccontextmanager
    async def turn(self, doing: str) -> AsyncIterator[None]:
        """Do one operation after the other."""
        async with self._turn:
            self.doing = doing
            try:
                yield
            finally:
                self.doing = None
                self.changed()

    @contextmanager
    def use(self) -> Iterator[None]:
        """Count as used until the block ends."""
        self.uses += 1
        try:
            yield
        finally:
            self.uses -= 1
            self.used = time.monotonic()

    def touch(self) -> None:
        """Count as used now."""
        self.used = time.monotonic()

    def idle_seconds(self) -> float:
        """Return for how long nobody has used it; 0 while somebody does."""
        return 0.0 if self.uses or self.busy else time.monotonic() - self.used


class Lives:
    """All sessions that this program has had to do with."""

    def __init__(self) -> None:
        self._lives: dict[str, Live] = {}

    def of(self, session: str) -> Live:
        """Return what is known of a session."""
        return self._lives.setdefault(session, Live())

    def doing(self, session: str) -> str | None:
        """Return the operation that is under way on a session, or None. Nothing is kept of a
        session that is only looked at."""
        live = self._lives.get(session)
        return None if live is None else live.doing

    def changed(self, session: str) -> None:
        """Tell all who wait for news of a session."""
        live = self._lives.get(session)
        if live is not None:
            live.changed()

    def forget(self, session: str) -> None:
        """Drop what is known of a session that is gone for good."""
        live = self._lives.pop(session, None)
        if live is not None:
            live.changed()
