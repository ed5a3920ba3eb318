"""Requests to a port of a session, in HTTP/1.1, over connections that are kept for the next."""

import asyncio
from collections import defaultdict
from typing import Any

import h11

from torpor.api.preview.headers import Pairs
from torpor.network.heads import LARGEST
from torpor.sessions import Actor, PortConnection, Ports

KEPT_SECONDS = 15.0
MOST_KEPT = 8
"""Idle connections that are kept to one port."""

Place = tuple[str, int]
Event = h11.InformationalResponse | h11.Response | h11.Data | h11.EndOfMessage


class BrokenAnswerError(Exception):
    """What came back is no answer in HTTP/1.1. ``silent``: nothing came at all."""

    def __init__(self, why: str, *, silent: bool = False) -> None:
        super().__init__(why)
        self.silent = silent


class Upstream:
    """A connection to what listens on a port; ``used`` says that it is not its first request."""

    def __init__(self, connection: PortConnection) -> None:
        self.connection = connection
        self.used = False
        self._heard = False
        self._h11 = h11.Connection(h11.CLIENT, max_incomplete_event_size=LARGEST)

    async def ask(self, method: str, target: str, headers: Pairs) -> None:
        """Send the head of a request. Raises :exc:`h11.LocalProtocolError` for what is none."""
        self._heard = False
        await self._send(h11.Request(method=method, target=target, headers=headers))

    async def send(self, data: bytes) -> None:
        """Send a piece of its body."""
        await self._send(h11.Data(data=data))

    async def end(self) -> None:
        """Send its end."""
        await self._send(h11.EndOfMessage())

    async def _send(self, event: Any) -> None:
        data = self._h11.send(event)
        if data:
            await self.connection.write(data)

    async def event(self) -> Event:
        """Return what comes next of the answer. Raises :exc:`BrokenAnswerError`."""
        while True:
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                raise BrokenAnswerError(str(error), silent=not self._heard) from error
            if event is h11.NEED_DATA:
                data = await self.connection.read()
                self._heard = self._heard or bool(data)
                self._h11.receive_data(data)
            elif isinstance(
                event, h11.InformationalResponse | h11.Response | h11.Data | h11.EndOfMessage
            ):
                return event
            else:
                raise BrokenAnswerError("it was closed", silent=not self._heard)

    @property
    def left(self) -> bytes:
        """What came after a change of protocols."""
        return bytes(self._h11.trailing_data[0])

    def renew(self) -> bool:
        """Make ready for the next request; return False if there can be none."""
        if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            return False
        if self._h11.trailing_data[0]:
            return False  # it says more than it was asked
        self._h11.start_next_cycle()
        self.used = True
        return True


class Upstreams:
    """Makes connections, and keeps those that are idle for a moment: to a machine that runs. Those
    to the machine before a pause are dropped, since nobody knows what became of their ends."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._kept: defaultdict[Place, list[tuple[Upstream, asyncio.TimerHandle]]]
        self._kept = defaultdict(list)

    async def take(self, session: str, port: int, by: Actor, *, fresh: bool) -> Upstream:
        """Return a connection to a port of a session, which is woken if it is paused; a new one if
        it is to be ``fresh``. Raises as :meth:`Ports.connect`."""
        machine = await self._ports.machine(session, by)
        for each, timer in list(self._kept.get((session, port), ())):
            if each.connection.machine != machine:
                self._drop((session, port), each, timer)
            elif not fresh:
                self._forget((session, port), each, timer)
                return each
        return Upstream(await self._ports.connect(session, port, by))

    def give_back(self, upstream: Upstream) -> None:
        """Keep a connection for the next request, if there can be one; else close it."""
        place = upstream.connection.session, upstream.connection.port
        if len(self._kept[place]) >= MOST_KEPT or not upstream.renew():
            upstream.connection.close()
            if not self._kept[place]:
                del self._kept[place]
            return
        loop = asyncio.get_running_loop()
        timer = loop.call_later(KEPT_SECONDS, self._over, place, upstream)
        self._kept[place].append((upstream, timer))

    def _over(self, place: Place, upstream: Upstream) -> None:
        for each, timer in list(self._kept.get(place, ())):
            if each is upstream:
                self._drop(place, each, timer)

    def close(self) -> None:
        """Close all that are kept."""
        for place, kept in list(self._kept.items()):
            for upstream, timer in list(kept):
                self._drop(place, upstream, timer)

    def _drop(self, place: Place, upstream: Upstream, timer: asyncio.TimerHandle) -> None:
        self._forget(place, upstream, timer)
        upstream.connection.close()

    def _forget(self, place: Place, upstream: Upstream, timer: asyncio.TimerHandle) -> None:
        timer.cancel()
        self._kept[place].remove((upstream, timer))
        if not self._kept[place]:
            del self._kept[place]
