"""The two clients: the one that blocks, called in a thread, and the one for coroutines."""

import asyncio
import inspect
from abc import ABC, abstractmethod
from typing import Any

from azure.core.rest import HttpRequest
from pydo.agents import HarnessEventStream, WorkspaceDownload
from pydo.aio.agents.custom_sessions import AsyncHarnessEventStream, AsyncWorkspaceDownload

from tests.conformance import needs
from tests.conformance.surface import Method
from tests.conformance.world import World

STREAMS = (
    HarnessEventStream, WorkspaceDownload, AsyncHarnessEventStream, AsyncWorkspaceDownload,
)  # fmt: skip


class Way(ABC):
    """How methods are called."""

    trips_over_nothing = False
    """It reads an answer twice, and cannot if that is empty."""

    def __init__(self, world: World, which: int) -> None:
        self._world = world
        self._which = which

    @abstractmethod
    def has(self, method: Method) -> bool:
        """Return whether the client has a method."""

    @abstractmethod
    def sending(self, method: str, path: str) -> Any:
        """Return what sends a request that there is no method for, and returns its answer. Its
        arguments are put into the path, where there is ``{}``."""

    @abstractmethod
    async def call(self, method: Any, *arguments: Any, **options: Any) -> Any:
        """Call a method; return what it returns."""

    @abstractmethod
    async def drain(self, answer: Any) -> Any:
        """Read a stream to its end: a list of events, or bytes."""

    def client(self, by: str = "operator") -> Any:
        """Return the client of somebody."""
        return self._world.clients[by][self._which]

    def group(self, name: str, by: str = "operator") -> Any:
        """Return an object of the client by its name."""
        found = self.client(by)
        for part in name.split("."):
            found = getattr(found, part)
        return found

    async def method(self, name: str, on: str | None, by: str) -> Any:
        """Return a method by its name; those of handles are of the session ``on``."""
        group, _, own = name.rpartition(".")
        if group == "session":
            return getattr(self.group("agents", by).attach(on), own)
        if group in ("events", "download"):
            return getattr(await self._stream(group, on), own)
        return getattr(self.group(group, by), own)

    async def _stream(self, group: str, on: str | None) -> Any:
        sessions = self.group("agents.sessions")
        session = on or await needs.session(self._world)
        if group == "events":
            return await self.call(sessions.stream, session, replay_only=True)
        return await self.call(
            sessions.workspace_download, session, path="found", poll_interval=0.02
        )

    async def run(self, method: Any, arguments: Any, options: Any) -> Any:
        """Call a method, and read what it returns to its end."""
        answer = await self.call(method, *arguments, **options)
        streams = isinstance(answer, STREAMS) or hasattr(answer, "__next__")
        if not streams and not hasattr(answer, "__anext__"):
            return answer
        return await self.drain(answer)


class Waiting(Way):
    """The client that blocks."""

    def __init__(self, world: World) -> None:
        super().__init__(world, 0)

    def has(self, method: Method) -> bool:
        return method.waits

    def sending(self, method: str, path: str) -> Any:
        def send(*places: str, **body: Any) -> Any:
            request = HttpRequest(method, path.format(*places), **body)
            return _said(self.client().send_request(request))

        return send

    async def call(self, method: Any, *arguments: Any, **options: Any) -> Any:
        return await asyncio.to_thread(method, *arguments, **options)

    async def drain(self, answer: Any) -> Any:
        return _whole(await asyncio.to_thread(list, answer))


class Awaiting(Way):
    """The client for coroutines."""

    trips_over_nothing = True

    def __init__(self, world: World) -> None:
        super().__init__(world, 1)

    def has(self, method: Method) -> bool:
        return method.awaits

    def sending(self, method: str, path: str) -> Any:
        async def send(*places: str, **body: Any) -> Any:
            request = HttpRequest(method, path.format(*places), **body)
            return _said(await self.client().send_request(request))

        return send

    async def call(self, method: Any, *arguments: Any, **options: Any) -> Any:
        answer = method(*arguments, **options)
        return await answer if inspect.isawaitable(answer) else answer

    async def drain(self, answer: Any) -> Any:
        return _whole([each async for each in answer])


def _said(answer: Any) -> Any:
    """Return what an answer says; one of 204 says nothing."""
    return None if answer.status_code == 204 else answer.json()


def _whole(pieces: list[Any]) -> Any:
    if pieces and isinstance(pieces[0], bytes):
        return b"".join(pieces)
    return pieces
