"""All walls of a host: each machine's link and its guard, by the machine's key."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from torpor.network.decisions import Decision
from torpor.network.errors import NetworkError
from torpor.network.guard import Ends, Guard
from torpor.network.limits import Limits
from torpor.network.names import Names
from torpor.network.resolver import Resolver
from torpor.network.services import Handler
from torpor.network.terminating import Terminator
from torpor.network.traffic import Traffic
from torpor.network.turns import Turns
from torpor.network.verdicts import Judge


class Linked(Protocol):
    """A machine's link, as far as its wall uses it."""

    @property
    def ends(self) -> Ends: ...
    def close(self) -> None:
        """Let go of it. Blocks, so it is called in a thread."""


L = TypeVar("L", bound=Linked)
L_co = TypeVar("L_co", bound=Linked, covariant=True)


class MakesLinks(Protocol[L_co]):
    """Whoever makes links."""

    def take(self) -> Awaitable[L_co]:
        """Return a new one."""

    def rebuilt(self, pid: int) -> Awaitable[L_co]:
        """Return one for a machine that runs, whose ends went with an earlier program."""


@dataclass
class _Wall(Generic[L]):
    link: L
    guard: Guard
    running: "asyncio.Task[None]"


class Walls(Generic[L]):
    """The walls of one host's machines. A wall stands from before its machine runs until the
    machine is ended, through all its sleeps."""

    def __init__(
        self,
        links: MakesLinks[L],
        resolver: Resolver,
        tell: Callable[[str, Decision], None],
        *,
        handlers: Mapping[str, Handler] | None = None,
        terminator: Callable[[str], Terminator | None] = lambda session: None,
    ) -> None:
        """``tell`` is called with each decision and the key of the machine that it is about, on
        the event loop; ``terminator`` gives what ends TLS for one machine of a session."""
        self._links = links
        self._resolver = resolver
        self._tell = tell
        self._handlers = handlers
        self._terminator = terminator
        self._turns = Turns()
        self._walls: dict[str, _Wall[L]] = {}

    async def open(
        self,
        key: str,
        judge: Judge,
        names: Names,
        limits: Limits = Limits(),  # noqa: B008
        session: str | None = None,
    ) -> L:
        """Put up the wall of a machine that is about to run, and return the link on which it is to
        be started. ``session`` is whose it is, for the services of its own; ``key`` if left out: a
        session may have two machines for a moment. Raises :exc:`LinkError`; :exc:`NetworkError` if
        there is one."""
        return await self._stand(key, self._links.take(), judge, names, limits, session or key)

    async def adopt(
        self,
        key: str,
        pid: int,
        judge: Judge,
        names: Names,
        limits: Limits = Limits(),  # noqa: B008
        session: str | None = None,
    ) -> L:
        """Put up the wall of a machine that runs already, in the process ``pid``, and that an
        earlier program has left. Raises as :meth:`open`."""
        taking = self._links.rebuilt(pid)
        return await self._stand(key, taking, judge, names, limits, session or key)

    async def stand_at(
        self,
        key: str,
        link: L,
        judge: Judge,
        names: Names,
        limits: Limits = Limits(),  # noqa: B008
        session: str | None = None,
    ) -> None:
        """Put up a wall at a link that there is already, and that is the wall's from now on. Raises
        :exc:`NetworkError` if there is a wall of that key."""

        async def there() -> L:
            return link

        await self._stand(key, there(), judge, names, limits, session or key)

    async def policy(self, key: str, judge: Judge, limits: Limits | None = None) -> int:
        """See :meth:`Guard.policy`. Raises KeyError."""
        return await self._walls[key].guard.policy(judge, limits)

    async def pause(self, key: str, seconds: float | None = None) -> bool:
        """See :meth:`Guard.hold`. Raises KeyError."""
        return await self._walls[key].guard.hold(seconds)

    def resume(self, key: str) -> None:
        """See :meth:`Guard.go_on`: call it when the machine runs. Raises KeyError."""
        self._walls[key].guard.go_on()

    def link(self, key: str) -> L:
        """Return the link of a machine, on which it is thawed again. Raises KeyError."""
        return self._walls[key].link

    def traffic(self, key: str) -> tuple[Traffic, ...]:
        """See :meth:`Guard.traffic`. Raises KeyError."""
        return self._walls[key].guard.traffic()

    def __contains__(self, key: object) -> bool:
        return key in self._walls

    async def close(self, key: str) -> None:
        """Take a wall down, and all that is open at it; nothing happens if there is none."""
        wall = self._walls.pop(key, None)
        if wall is not None:
            wall.running.cancel()
            await asyncio.wait([wall.running])
            await asyncio.to_thread(wall.link.close)

    async def close_all(self) -> None:
        """Take all walls down. Machines that run on reach nothing until they are adopted."""
        await asyncio.gather(*(self.close(key) for key in list(self._walls)))

    async def _stand(
        self,
        key: str,
        taking: Awaitable[L],
        judge: Judge,
        names: Names,
        limits: Limits,
        session: str,
    ) -> L:
        link = await taking
        if key in self._walls:
            await asyncio.to_thread(link.close)
            raise NetworkError(f"There is a wall of {key} already.", state="It stands.")
        guard = Guard(
            session,
            link.ends,
            judge,
            names,
            self._resolver,
            tell=lambda decision: self._tell(key, decision),
            turns=self._turns,
            limits=limits,
            handlers=self._handlers,
            terminator=self._terminator(session),
        )
        running = asyncio.create_task(_guarded(key, guard), name=f"wall of {key}")
        self._walls[key] = _Wall(link, guard, running)
        return link


async def _guarded(key: str, guard: Guard) -> None:
    """Run a guard. One that fails lets nothing through any more, and that is told."""
    try:
        await guard.run()
    except Exception as error:
        message = f"The wall of {key} has failed: its machine reaches nothing."
        asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
