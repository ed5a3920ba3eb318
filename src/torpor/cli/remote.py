"""A command in a session's machine, as if it ran here: its streams, signals and exit status."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torpor.cli import pipes
from torpor.cli.terminal import STDERR, STDIN, STDOUT, is_terminal, say

if TYPE_CHECKING:
    from torpor.client import AsyncClient, Exec, Item, Terminal
    from torpor.client.async_streams import AsyncExecStream

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
IMPATIENT = 3
"""So many times Ctrl-C within two seconds, and we go without it."""
TARGETS = {"stdout": STDOUT, "stderr": STDERR}


@dataclass(frozen=True)
class Wanted:
    """What to run, and how."""

    session: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    user: str | None = None
    timeout: float | None = None
    stdin: bool = True


class LeftError(Exception):
    """Whoever sits here has gone on without the command, which runs on."""


async def start(
    client: "AsyncClient", wanted: Wanted, *, terminal: "Terminal | None" = None
) -> "Exec":
    """Start a command. It is the machine's from now on, whatever becomes of us."""
    return await client.start_exec(
        wanted.session,
        wanted.argv,
        env=wanted.env,
        workdir=wanted.workdir,
        user=wanted.user,
        timeout=wanted.timeout,
        stdin=wanted.stdin,
        terminal=terminal,
    )


async def run(client: "AsyncClient", wanted: Wanted) -> int:
    """Run a command with this program's streams, and return the status that a shell would have."""
    from torpor.client import UnreachableError

    started = await start(client, wanted)
    signals = Signals()
    async with signals.caught(), client.attach(wanted.session, started.id) as stream:
        try:
            return await _follow(stream, signals, stdin=wanted.stdin)
        except LeftError:
            say(f"left; the command runs on. {_back(wanted, started)}")
            return 128 + signal.SIGINT
        except UnreachableError:
            say(f"the command runs on, if its machine does. {_back(wanted, started)}")
            raise


def _back(wanted: Wanted, started: "Exec") -> str:
    return f"To follow it: torpor exec --attach {started.id} {wanted.session}"


async def follow(client: "AsyncClient", session: str, exec_id: str) -> int:
    """Show what a command writes, from what is kept of it on; return its status. It gets neither
    our input nor our signals."""
    async with client.attach(session, exec_id) as stream:
        return await _show(stream)


async def _follow(stream: "AsyncExecStream", signals: "Signals", *, stdin: bool) -> int:
    showing = asyncio.ensure_future(_show(stream))
    others = [asyncio.ensure_future(signals.passed_on(stream))]
    if stdin:
        others.append(asyncio.ensure_future(_pass_input(stream)))
    try:
        # The input may end long before the command does; what fails ends everything.
        pending: set[asyncio.Future[Any]] = {showing, *others}
        while not showing.done():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        return showing.result()
    finally:
        for task in (showing, *others):
            task.cancel()
        await asyncio.gather(showing, *others, return_exceptions=True)


async def _show(stream: "AsyncExecStream") -> int:
    """Write what the command writes, and return its status."""
    from torpor.client import Exit, Output

    async for item in stream:
        if isinstance(item, Output):
            try:
                await pipes.write(TARGETS[item.source], item.data)
            except BrokenPipeError:
                # As if it had been here: whoever read it has gone, and it is told by a signal.
                await stream.signal(signal.SIGPIPE)
                return 128 + signal.SIGPIPE
        elif isinstance(item, Exit):
            if item.timed_out:
                say("the command was ended: its time was over.")
            return item.status
        else:
            tell(item)
    raise LeftError


def tell(item: "Item") -> None:
    """Tell of what may matter to whoever reads the output."""
    from torpor.client import Gap, Reconnected

    if isinstance(item, Gap):
        say(f"{item.end - item.start} bytes of the output are no longer kept, and are missing here")
    elif isinstance(item, Reconnected) and item.input_unsure:
        say(f"the connection was lost: of the last {item.input_unsure} bytes of input some may not"
            " have arrived")  # fmt: skip


async def _pass_input(stream: "AsyncExecStream") -> None:
    async for piece in pipes.read(STDIN):
        await stream.write(piece)
    await stream.close_input()


class Signals:
    """Signals that this program gets while a command runs: they are the command's."""

    def __init__(self) -> None:
        self._coming: asyncio.Queue[int] = asyncio.Queue()
        self._pressed: list[float] = []

    @asynccontextmanager
    async def caught(self) -> AsyncIterator[None]:
        """Catch them, in this context."""
        loop = asyncio.get_running_loop()
        for number in FORWARDED:
            loop.add_signal_handler(number, self._coming.put_nowait, number)
        try:
            yield
        finally:
            for number in FORWARDED:
                loop.remove_signal_handler(number)

    async def passed_on(self, stream: "AsyncExecStream") -> None:
        """Pass them on. Raises :exc:`LeftError` when somebody has pressed Ctrl-C often enough."""
        while True:
            number = await self._coming.get()
            if number == signal.SIGINT and is_terminal(STDERR):
                now = time.monotonic()
                self._pressed = [*(at for at in self._pressed if at > now - 2), now]
                if len(self._pressed) >= IMPATIENT:
                    raise LeftError
                if len(self._pressed) == IMPATIENT - 1:
                    say("once more, and this leaves it running")
            await stream.signal(number)
