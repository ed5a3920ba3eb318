"""Commands in sessions. They belong to the machine: they go on over pauses, lost connections and
restarts of the server, and whoever follows one is attached to it again.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torpor.sessions.errors import ConflictError, FailedError, NotFoundError
from torpor.sessions.events import Events
from torpor.sessions.model import Actor
from torpor.sessions.use import InUse, Uses
from torpor.store.errors import StoreError
from torpor.vm import (
    STDERR,
    ChannelLostError,
    Exec,
    Exit,
    Gap,
    GuestAgent,
    GuestError,
    MachineDiedError,
    Output,
    RebootedError,
    Terminal,
    UnansweredError,
    VmError,
)

T = TypeVar("T")

logger = logging.getLogger("torpor.sessions")

LOST = (ChannelLostError, MachineDiedError)
"""What a request to an agent ends with when its machine is paused, or gone. An agent that is there
and does not answer (:exc:`UnansweredError`) is not asked again: that took its time already."""
TRIES = 20


@dataclass(frozen=True)
class Started:
    """A command that was started."""

    id: str
    pid: int | None


@dataclass(frozen=True)
class Ran:
    """A command that has ended, with what it wrote, at most ``limit`` bytes of each stream; the
    rest was dropped if ``*_cut``. ``seconds`` is how long it took, as the server saw it."""

    id: str
    exit: Exit
    stdout: bytes
    stderr: bytes
    stdout_cut: bool
    stderr_cut: bool
    seconds: float


@dataclass(frozen=True)
class Paused:
    """The session of a command that is followed was paused; the command stands still."""


@dataclass(frozen=True)
class Resumed:
    """It runs again, and so does the command."""


Item = Output | Gap | Paused | Resumed | Exit


class Following:
    """One command that is followed, over pauses. Made by :meth:`Execs.follow`."""

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


class Execs:
    """Starts commands in sessions, and follows them."""

    def __init__(self, uses: Uses, events: Events) -> None:
        self._uses = uses
        self._events = events

    async def start(self, session: str, by: Actor, argv: Sequence[str], **options: Any) -> Started:
        """Start a command; ``options`` are those of :meth:`InUse.command`. Raises as
        :meth:`Uses.use`, and :exc:`GuestError`, for example ENOENT if there is no such program."""
        with self._uses.counted(session):
            running = await self._start(session, by, argv, options)
            running.detach()
            return Started(running.id, running.pid)

    async def _start(
        self, session: str, by: Actor, argv: Sequence[str], options: dict[str, Any]
    ) -> Exec:
        """Start a command once, whatever happens to the machine while it is being started."""
        exec_id = secrets.token_hex(8)
        for turn in range(TRIES):
            found = await self._uses.running(session, by)
            try:
                running = await self._started(found, exec_id, argv, options, again=turn > 0)
            except UnansweredError:
                raise
            except LOST:
                continue
            try:
                await self._events.add(
                    "exec.started", session, by, exec_id=exec_id, argv=list(argv)[:100],
                    terminal=options.get("terminal") is not None,
                )  # fmt: skip
            except StoreError as error:
                # Whoever was told that nothing was done would do it once more.
                logger.error(
                    "command %s of %s was started and not noted: %s", exec_id, by.id, error
                )
            except BaseException:
                running.detach()  # it would wait for a reader
                raise
            return running
        raise FailedError(
            f"A command could not be started: session {session} was paused again and again.",
            state="It may have been started; `torpor show` lists its commands.",
        )

    async def _started(
        self,
        found: InUse,
        exec_id: str,
        argv: Sequence[str],
        options: dict[str, Any],
        *,
        again: bool,
    ) -> Exec:
        channel = found.agent.channel
        if again:  # perhaps only the answer was lost
            running = Exec(exec_id)
            try:
                await running.attach(channel)
                return running
            except GuestError as error:
                if error.code != "ENOENT":
                    raise
        return await Exec.start(channel, found.command(argv, **options), exec_id)

    async def run(
        self,
        session: str,
        by: Actor,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        most: int = 1 << 20,
        **options: Any,
    ) -> Ran:
        """Run a command to its end, over pauses too. Raises as :meth:`start`."""
        began = time.monotonic()
        with self._uses.counted(session):
            running = await self._start(session, by, argv, {**options, "stdin": bool(stdin)})
            following = Following(self._uses, session, by, running, attached=True)
            try:
                return await self._collect(following, stdin, most, began)
            finally:
                following.leave()

    async def _collect(self, following: Following, stdin: bytes, most: int, began: float) -> Ran:
        kept = {True: bytearray(), False: bytearray()}
        cut = {True: False, False: False}
        exit_: Exit | None = None

        async def feed() -> None:
            try:
                await following.write(stdin)
                await following.close_input()
            except (VmError, ConflictError):
                pass  # it ended without reading all of it

        feeding = asyncio.create_task(feed()) if stdin else None
        try:
            async for item in following.items():
                if isinstance(item, Output):
                    into = kept[item.source == STDERR]
                    room = most - len(into)
                    into += item.data[:room]
                    cut[item.source == STDERR] |= len(item.data) > room
                elif isinstance(item, Exit):
                    exit_ = item
        finally:
            if feeding is not None:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
        assert exit_ is not None
        return Ran(
            following.id,
            exit_,
            bytes(kept[False]),
            bytes(kept[True]),
            cut[False],
            cut[True],
            time.monotonic() - began,
        )

    def follow(
        self,
        session: str,
        by: Actor,
        exec_id: str,
        *,
        seq: int = 0,
        hold: bool = True,
        waits: bool = True,
        patient: bool = True,
    ) -> Following:
        """Follow a command from byte ``seq`` of its output on. ``hold`` makes it wait when whoever
        reads falls behind; else bytes may be missed, and the gap is told. ``waits`` says that
        somebody waits for its end, so that its session is not idle meanwhile; without it only what
        it writes and reads counts, as for a terminal that was left open. Who is not ``patient`` is
        told by :exc:`torpor.vm.HeldError` that the machine is held, else that is waited through."""
        exec_ = Exec(exec_id, hold=hold, seq=seq, patient=patient)
        return Following(self._uses, session, by, exec_, waits=waits)

    async def list(self, session: str, by: Actor) -> list[dict[str, Any]]:
        """Return the commands that a session knows, ended ones too, as its agent tells of them."""
        return await self._ask(session, by, lambda agent: agent.commands())

    async def signal(
        self, session: str, by: Actor, exec_id: str, signal: int, *, patient: bool = False
    ) -> None:
        """Send a signal to the process group of a command; ``patient`` as in :meth:`follow`."""

        async def send(agent: GuestAgent) -> None:
            await agent.signal(exec_id, signal, patient=patient)

        await self._ask(session, by, send, exec_id, patient=patient)

    async def resize(
        self, session: str, by: Actor, exec_id: str, terminal: Terminal, *, patient: bool = False
    ) -> None:
        """Give the terminal of a command another size; ``patient`` as in :meth:`follow`."""

        async def send(agent: GuestAgent) -> None:
            await agent.resize(exec_id, terminal, patient=patient)

        await self._ask(session, by, send, exec_id, patient=patient)

    async def _ask(
        self,
        session: str,
        by: Actor,
        ask: Callable[[GuestAgent], Awaitable[T]],
        exec_id: str = "",
        *,
        patient: bool = False,
    ) -> T:
        """Ask a session's agent something that may be asked twice."""
        async with self._uses.use(session, by, patient=patient) as found:
            for _ in range(TRIES):
                agent: GuestAgent = found.agent
                try:
                    return await ask(agent)
                except GuestError as error:
                    if exec_id and error.code == "ENOENT":
                        raise no_command(exec_id) from error
                    raise
                except UnansweredError:
                    raise
                except LOST:
                    found = await self._uses.running(session, by, patient=patient)
            raise FailedError(f"Session {session} was paused again and again.")


def no_command(exec_id: str) -> NotFoundError:
    """Return the error of a command that a session does not know."""
    return NotFoundError(
        f"There is no command {exec_id!r} in this session.",
        todo="It may be from before a rollback or a reboot.",
    )
