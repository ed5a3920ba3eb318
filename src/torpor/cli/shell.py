"""A terminal in a session's machine: real, over pauses, lost connections and restarted servers.

One task reads keys, another sends them, a third shows what comes; so our own keys (``~.``) are
heard whatever the other end does.
"""

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from torpor.cli import pipes, terminal
from torpor.cli.remote import Wanted, start
from torpor.cli.terminal import STDIN, STDOUT, Escapes, Key, Modes, StatusLine, say

if TYPE_CHECKING:
    from torpor.client import AsyncClient, Terminal
    from torpor.client.async_streams import AsyncExecStream

LOGIN = (
    "/bin/sh",
    "-c",
    "if [ -x /bin/bash ]; then exec /bin/bash -l; fi; exec /bin/sh -l",
)
"""What a shell is where nothing else is said: the best that the image has."""
PASSED_ON = ("TERM", "COLORTERM", "LANG")
"""Variables that say what this terminal can do."""
SETTLE_SECONDS = 0.05
ENDING = (signal.SIGTERM, signal.SIGHUP)


class NoTerminalError(Exception):
    """Standard input or output is no terminal."""


def variables() -> dict[str, str]:
    """Return what a program needs to know of this terminal."""
    return {name: os.environ[name] for name in PASSED_ON if os.environ.get(name)}


async def run(client: "AsyncClient", wanted: Wanted, name: str) -> int:
    """Start a command on a terminal, sit at it, and return its status, or 0 if it was left.

    Raises :exc:`NoTerminalError` before anything is started.
    """
    _check_terminal()
    started = await start(client, wanted, terminal=_size())
    return await sit(client, wanted.session, started.id, name, back=False)


def _check_terminal() -> None:
    if not (terminal.is_terminal(STDIN) and terminal.is_terminal(STDOUT)):
        raise NoTerminalError


def _size() -> "Terminal":
    from torpor.client import Terminal

    return Terminal(*terminal.size_of(STDIN))


async def sit(
    client: "AsyncClient", session: str, exec_id: str, name: str, *, back: bool = True
) -> int:
    """Sit at a command that runs on a terminal; return its status, or 0 if it was left. ``back``:
    that it has been sat at before."""
    _check_terminal()
    modes = Modes()
    # For as long as whoever sits here wants: leaving is a key away.
    async with client.attach(session, exec_id, patience=None) as stream:
        try:
            with terminal.raw(STDIN):
                status = await _Seat(stream, modes, name, back=back).taken()
        finally:
            terminal.write_all(STDOUT, modes.undo())
    if status is None:
        say(f"left {name}; what ran there runs on.")
        say(f"back to it: torpor shell {name} --attach {exec_id}")
        return 0
    return status


class _Seat:
    """Where somebody sits: the stream of the command, and the terminal here."""

    def __init__(self, stream: "AsyncExecStream", modes: Modes, name: str, *, back: bool) -> None:
        self._stream, self._modes, self._name = stream, modes, name
        self._line = StatusLine(STDOUT)
        self._keys: asyncio.Queue[bytes] = asyncio.Queue()
        self._resized = asyncio.Event()
        # What was started elsewhere has another size, and drew what this screen does not show.
        self._redraw = back
        self._paused = False

    async def taken(self) -> int | None:
        """Sit there, until the command ends or is left; return its status, None if it was left."""
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        loop.add_signal_handler(signal.SIGWINCH, self._resized.set)
        for number in ENDING:
            loop.add_signal_handler(number, gone.set)
        try:
            return await first_of(
                self._show(), self._read_keys(), self._send_keys(), self._resize(), _left(gone)
            )
        finally:
            for number in (signal.SIGWINCH, *ENDING):
                loop.remove_signal_handler(number)
            self._line.clear()

    async def _show(self) -> int | None:
        from torpor.client import Disconnected, Exit, Output, Paused, Reconnected, Resumed

        async for item in self._stream:
            if isinstance(item, Output):
                self._ready()
                self._modes.see(item.data)
                await pipes.write(STDOUT, item.data)
            elif isinstance(item, Paused):
                self._paused = True
                self._line.show(f"{self._name} is paused. Any key wakes it; ~. after Enter leaves.")
            elif isinstance(item, Disconnected):
                self._line.show("The connection is lost, and looked for. ~. after Enter leaves.")
            elif isinstance(item, (Resumed, Reconnected)):
                self._ready()
            elif isinstance(item, Exit):
                self._ready()
                return item.status
        return None

    def _ready(self) -> None:
        """Take the status line away, and have the other end draw what it covered."""
        self._paused = False
        if self._line.clear():
            self._redraw = True
        if self._redraw:
            self._resized.set()

    async def _read_keys(self) -> None:
        escapes = Escapes()
        async for piece in pipes.read(STDIN):
            for found in escapes.feed(piece):
                if found is Key.LEAVE:
                    return
                if found is Key.HELP:
                    await pipes.write(STDOUT, terminal.HELP.encode())
                elif isinstance(found, bytes):
                    self._keys.put_nowait(found)

    async def _send_keys(self) -> None:
        while True:
            keys = await self._keys.get()
            if self._paused:
                self._line.show(f"{self._name} is woken...")
            await self._stream.write(keys)

    async def _resize(self) -> None:
        while True:
            await self._resized.wait()
            self._resized.clear()
            # What is paused would be woken by that; when it runs again it is told.
            if self._redraw and not self._paused:
                self._redraw = False
                # Only another size makes a program draw anew.
                await self._stream.resize(_smaller(_size()))
                await asyncio.sleep(SETTLE_SECONDS)
            if self._paused:
                self._redraw = True
            else:
                await self._stream.resize(_size())


def _smaller(size: "Terminal") -> "Terminal":
    from torpor.client import Terminal

    return Terminal(max(1, size.rows - 1), size.columns)


async def _left(gone: asyncio.Event) -> None:
    await gone.wait()


async def first_of(*works: Coroutine[Any, Any, int | None]) -> int | None:
    """Return what the first that ends returns; the others are ended."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    # Of several, the first of them has the most to say.
    return next(task for task in tasks if task in done).result()
