"""Commands in sessions. They belong to the machine: they go on over pauses, lost connections and
restarts of the server.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torpor.sessions.errors import ConflictError, FailedError
from torpor.sessions.events import Events
from torpor.sessions.following import LOST, TRIES, Following, no_command
from torpor.sessions.model import Actor, Key
from torpor.sessions.operations import Noted, Operations
from torpor.sessions.tasks import Tasks
from torpor.sessions.use import Uses
from torpor.store.database import Transaction
from torpor.store.errors import StoreError
from torpor.store.records import Operation
from torpor.vm import (
    STDERR,
    Exec,
    Exit,
    GuestAgent,
    GuestError,
    KnownCommand,
    Output,
    Terminal,
    UnansweredError,
    VmError,
)

T = TypeVar("T")

NO_PLACE = ("ENOENT", "ENOTDIR")
"""How a machine says that there is no such program, or no such directory to start it in."""

logger = logging.getLogger("torpor.sessions")


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


class Execs:
    """Starts commands in sessions, and follows them."""

    def __init__(self, uses: Uses, events: Events, operations: Operations, tasks: Tasks) -> None:
        self._uses = uses
        self._events = events
        self._operations = operations
        self._tasks = tasks

    # Starting

    async def start(
        self,
        session: str,
        by: Actor,
        argv: Sequence[str],
        *,
        key: Key | None = None,
        **options: Any,
    ) -> Started:
        """Start a command; ``options`` are those of :meth:`InUse.command`.

        With a ``key`` it is started once, however often it is asked for. Raises as
        :meth:`Uses.use`, and :exc:`GuestError`, for example ENOENT if there is no such program.
        """
        if key is None:
            running = await self._start_whole(session, by, argv, options)
            running.detach()
            return Started(running.id, running.pid)
        return await self._operations.once(
            f"starting a command in {session}",
            by,
            key,
            lambda: self._start_new(session, by, key, argv, options),
            _started_before,
            lambda operation: self._go_on(operation, by, argv, options),
        )

    async def _start_new(
        self, session: str, by: Actor, key: Key, argv: Sequence[str], options: dict[str, Any]
    ) -> Started:
        await self._uses.check_own(session)
        exec_id = new_exec_id()
        async with self._operations.noted("exec", by, session, key, exec_id=exec_id) as noted:
            return await self._start_noted(noted, by, argv, options)

    async def _go_on(
        self, operation: Operation, by: Actor, argv: Sequence[str], options: dict[str, Any]
    ) -> Started:
        """Start a command of which nobody knows whether it was started: the machine does."""
        async with self._operations.under_way(operation, by) as noted:
            noted.happened = True
            return await self._start_noted(noted, by, argv, options)

    async def _start_noted(
        self, noted: Noted, by: Actor, argv: Sequence[str], options: dict[str, Any]
    ) -> Started:
        session, exec_id = noted.record.session or "", noted.record.plan["exec_id"]
        with self._uses.counted(session):
            running = await self._start(session, by, argv, options, exec_id, noted)
            running.detach()

            async def write(conn: Transaction) -> None:
                told = _told(exec_id, argv, options)
                await self._events.append(conn, "exec.started", session, by, **told)
                await noted.done(conn, exec_id=exec_id, pid=running.pid)

            await self._operations.written(write, noted)
        self._events.tell(session)
        return Started(exec_id, running.pid)

    async def _start_whole(
        self, session: str, by: Actor, argv: Sequence[str], options: dict[str, Any]
    ) -> Exec:
        """Start a command and tell of it, also if whoever asked goes away."""
        work = self._start_told(session, by, argv, options)
        starting = self._tasks.start(work, f"starting a command in {session}")
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(_leave)
            raise

    async def _start_told(
        self, session: str, by: Actor, argv: Sequence[str], options: dict[str, Any]
    ) -> Exec:
        with self._uses.counted(session):
            running = await self._start(session, by, argv, options, new_exec_id())
            try:
                told = _told(running.id, argv, options)
                await self._events.add("exec.started", session, by, **told)
            except StoreError as error:
                # Whoever was told that nothing was done would do it once more.
                logger.error(
                    "command %s of %s was started and not noted: %s", running.id, by.id, error
                )
            except BaseException:
                running.detach()  # it would wait for a reader
                raise
            return running

    async def _start(
        self,
        session: str,
        by: Actor,
        argv: Sequence[str],
        options: dict[str, Any],
        exec_id: str,
        noted: Noted | None = None,
    ) -> Exec:
        """Start a command once, whatever happens to the machine while it is being started: one
        that knows the id starts nothing, and answers with the command that it has."""
        for _ in range(TRIES):
            found = await self._uses.running(session, by)
            command = found.command(argv, **options)
            if noted is not None:
                noted.happened = True
            try:
                return await Exec.start(found.agent.channel, command, exec_id)
            except GuestError:
                if noted is not None:
                    noted.happened = False
                raise
            except UnansweredError:
                raise
            except LOST:
                continue
        raise FailedError(
            f"A command could not be started: session {session} was paused again and again.",
            state="It may have been started; `torpor show` lists its commands.",
        )

    async def run(
        self,
        session: str,
        by: Actor,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        most: int = 1 << 20,
        prefer: str | None = None,
        **options: Any,
    ) -> Ran:
        """Run a command to its end, over pauses too. Raises as :meth:`start`. Without a ``workdir``
        it starts in ``prefer``, if there is such a directory."""
        began = time.monotonic()
        with self._uses.counted(session):
            wanted = {**options, "stdin": bool(stdin)}
            running = await self._start_in(session, by, argv, wanted, prefer)
            following = Following(self._uses, session, by, running, attached=True)
            try:
                return await self._collect(following, stdin, most, began)
            finally:
                following.leave()

    async def _start_in(
        self,
        session: str,
        by: Actor,
        argv: Sequence[str],
        options: dict[str, Any],
        prefer: str | None,
    ) -> Exec:
        if prefer is not None and options.get("workdir") is None:
            try:
                return await self._start_whole(session, by, argv, {**options, "workdir": prefer})
            except GuestError as error:
                if error.code not in NO_PLACE or await self._is_directory(session, by, prefer):
                    raise
        return await self._start_whole(session, by, argv, options)

    async def _is_directory(self, session: str, by: Actor, path: str) -> bool:
        found = await self._ask(session, by, lambda agent: agent.files.status(path, follow=True))
        return found is not None and found.type == "directory"

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

    async def list(self, session: str, by: Actor) -> list[KnownCommand]:
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


def new_exec_id() -> str:
    """Return an id for a command."""
    return secrets.token_hex(8)


def _told(exec_id: str, argv: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the event of a command's start tells."""
    terminal = options.get("terminal") is not None
    return {"exec_id": exec_id, "argv": list(argv)[:100], "terminal": terminal}


async def _started_before(operation: Operation) -> Started:
    return Started(operation.result["exec_id"], operation.result["pid"])


def _leave(starting: asyncio.Task[Exec]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().detach()  # it would wait for a reader
