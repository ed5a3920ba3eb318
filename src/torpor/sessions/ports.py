"""Connections to ports of sessions, which live over pauses and lost channels."""

import asyncio
from contextlib import AbstractContextManager

from torpor.sessions.events import Events
from torpor.sessions.following import LOST
from torpor.sessions.model import Actor
from torpor.sessions.use import Uses
from torpor.vm import Connection, Gap, GuestError

MOMENT = 0.05
"""Seconds before a lost channel is attached again."""
TRIES = 20
"""How often that is tried in a row."""


class PortConnection:
    """A connection to ``port`` on the loopback of a session's machine. One task reads, another may
    write. Made by :meth:`Ports.connect`.

    ``machine`` is the machine that it goes to: another one after each pause.
    """

    def __init__(
        self, uses: Uses, session: str, by: Actor, machine: str, connection: Connection
    ) -> None:
        self.session = session
        self.port = connection.port
        self.machine = machine
        self._uses = uses
        self._by = by
        self._connection = connection
        self._attaching = asyncio.Lock()
        self._times = 0
        """How often it was attached again."""
        self._lost = False

    async def read(self) -> bytes:
        """Return bytes as soon as there are some, nothing at the end. A pause is waited through.

        Raises :exc:`GuestError` if bytes were lost, or the machine no longer knows the connection
        (it was rebooted or rolled back), and as :meth:`Uses.attached`.
        """
        while True:
            times = self._times
            try:
                item = await self._connection.next_output()
            except LOST:
                await self._attach(times)
                continue
            if isinstance(item, Gap):
                raise GuestError("EIO", f"bytes of a connection to port {self.port} were lost")
            return b"" if item is None else item.data

    async def write(self, data: bytes) -> None:
        """Send bytes; returns when they are under way. A paused session is woken.

        Raises :exc:`GuestError` (EPIPE) once the other end has closed, and as :meth:`read` and
        :meth:`Uses.use`.
        """
        connection = self._connection
        end = connection.written + len(data)
        async with self._uses.use(self.session, self._by, patient=True):
            while connection.written < end:
                times = self._times
                if self._lost:
                    await self._attach(times)
                try:
                    await connection.write(data[len(data) - (end - connection.written) :])
                except LOST:
                    await self._attach(times)

    async def shut(self) -> None:
        """Tell the other end that no more is sent to it. Does not wake a paused session."""
        await self._connection.close_stdin()

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    async def _attach(self, times: int) -> None:
        """Attach it again, unless that was done since it had been attached ``times`` times."""
        if times == self._times:
            self._lost = True
        async with self._attaching:
            if times != self._times:
                return
            self.machine = await self._attached()
            self._times += 1
            self._lost = False

    async def _attached(self) -> str:
        """Attach it again, and return the machine that it goes to now."""
        tries = 0
        while True:
            await asyncio.sleep(MOMENT)
            found = await self._uses.attached(self.session)
            try:
                await self._connection.attach(found.agent.channel)
            except LOST:
                tries += 1
                if tries == TRIES:
                    raise
            except GuestError as error:
                if error.code not in ("ENOENT", "ESTALE"):
                    raise
                said = f"the machine knows this connection to port {self.port} no more"
                raise GuestError("ECONNRESET", said) from error
            else:
                return found.session.machine or ""


class Ports:
    """Connects to ports of sessions, and tells of it."""

    def __init__(self, uses: Uses, events: Events) -> None:
        self._uses = uses
        self._events = events

    async def connect(self, session: str, port: int, by: Actor) -> PortConnection:
        """Connect to a port of a session, which is woken if it is paused.

        Raises :exc:`GuestError`, for example ECONNREFUSED if nobody listens there, and as
        :meth:`Uses.use`.
        """
        async with self._uses.use(session, by) as used:
            connection = await used.agent.dial(port)
            return PortConnection(self._uses, session, by, used.session.machine or "", connection)

    async def machine(self, session: str, by: Actor) -> str:
        """Return the machine that runs a session, which is woken if it is paused. Raises as
        :meth:`Uses.use`."""
        return (await self._uses.running(session, by)).session.machine or ""

    def counted(self, session: str) -> AbstractContextManager[None]:
        """Return a context in which a session does not count as idle."""
        return self._uses.counted(session)

    async def opened(self, session: str, by: Actor, port: int, **data: str) -> None:
        """Note that somebody outside connects to a port of a session. Raises
        :exc:`ConflictError` if that is on another host."""
        await self._uses.check_own(session)
        await self._events.add("port.opened", session, by, port=port, **data)
