"""Following a command over pauses, lost connections and restarts of the server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from torpor.sessions.errors import ConflictError, FailedError, NotFoundError
from torpor.sessions.model import Actor
from torpor.sessions.use import InUse, Uses
from torpor.vm import (
    ChannelLostError,
    Exec,
    Exit,
    Gap,
    GuestError,
    MachineDiedError,
    Output,
    RebootedError,
)

LOST = (ChannelLostError, MachineDiedError)
"""What a request to an agent ends with when its machine is paused, or gone. An agent that is there
and does not answer (:exc:`torpor.vm.UnansweredError`) is not asked again: that took its time
already."""
TRIES = 20


@dataclass(frozen=True)
class Paused:
    """The session of a command that is followed was paused; the command stands still."""


@dataclass(frozen=True)
class Resumed:
    """It runs again, and so does the command."""


Item = Output | Gap | Paused | Resumed | Exit


class Following:
    """One command that is followed, over pauses. Made by :meth:`Execs.follow
    <torpor.sessions.execs.Execs.follow>`."""

    def __init__(
        self,
        uses: Uses,
        session: str,
        by: Actor,
        exec_: Exec,
        *,
        attached: bool = False,
        waits: bool = True,
    ) -> None:
        self._uses = uses
        self._session = session
        self._by = by
        self._exec = exec_
        self._waits = waits
        self._attached = asyncio.Event()
        if attached:
            self._attached.set()

    @property
    def id(self) -> str:
        """The command's id."""
        return self._exec.id

    async def items(self) -> AsyncIterator[Item]:
        """Yield what it writes, and its exit as the last; a pause is told, and waited through.

        Raises :exc:`NotFoundError` if there is no such command, :exc:`ConflictError` if the session
        was rolled back to before where this was, or has failed.
        """
        with self._uses.counted(self._session) if self._waits else contextlib.nullcontext():
            async for item in self._items():
                self._uses.touch(self._session)
                yield item

    async def _items(self) -> AsyncIterator[Item]:
        stood_still = False
        tries = 0
        while True:
            try:
                if not self._attached.is_set():
                    await self._attach(await self._uses.attached(self._session))
                if stood_still:
                    stood_still = False
                    yield Resumed()
                async for item in self._exec.output():
                    tries = 0
                    yield item
            except RebootedError as error:
                raise ConflictError(
                    f"Command {self.id} ended with its machine, which was rebooted from inside."
                ) from error
            except LOST as error:
                self._attached.clear()
                tries += 1
                if tries > TRIES:
                    raise FailedError(f"Command {self.id} cannot be followed: {error}") from error
                if not stood_still and await self._uses.paused(self._session):
                    stood_still = True
                    yield Paused()
                continue
            assert self._exec.exit is not None
            yield self._exec.exit
            return

    async def _attach(self, found: InUse) -> None:
        try:
            await self._exec.attach(found.agent.channel)
        except GuestError as error:
            if error.code == "ENOENT":
                raise no_command(self.id) from error
            if error.code == "ESTALE":
                raise ConflictError(
                    f"Command {self.id} stands at an earlier point than what was read of it: its"
                    " session was rolled back.",
                    todo="Follow it anew.",
                ) from error
            raise
        self._attached.set()

    async def write(self, data: bytes) -> None:
        """Give it input; a paused session is woken. Raises :exc:`GuestError` (EPIPE) once the
        command has ended, and as :meth:`Uses.use`."""
        sent = self._exec.written
        end = sent + len(data)
        while sent < end:
            await self._uses.running(self._session, self._by, patient=True)
            await self._attached.wait()
            try:
                await self._exec.write(data[len(data) - (end - sent) :])
            except LOST:
                self._attached.clear()
            sent = self._exec.written

    async def close_input(self) -> None:
        """Tell it that its input ends here; a paused session is woken."""
        await self._uses.running(self._session, self._by, patient=True)
        await self._attached.wait()
        await self._exec.close_stdin()

    async def all_taken(self) -> None:
        """Wait until the command has been given all that :meth:`write` has accepted, over pauses
        too: then it is not lost when this is left. Raises as :meth:`write`."""
        while True:
            await self._uses.running(self._session, self._by, patient=True)
            await self._attached.wait()
            try:
                await self._exec.all_taken()
            except LOST:
                self._attached.clear()
            else:
                return

    def leave(self) -> None:
        """Stop following; the command runs on."""
        self._exec.detach()


def no_command(exec_id: str) -> NotFoundError:
    """Return the error of a command that a session does not know."""
    return NotFoundError(
        f"There is no command {exec_id!r} in this session.",
        todo="It may be from before a rollback or a reboot.",
    )
