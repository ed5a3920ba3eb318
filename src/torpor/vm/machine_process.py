"""The process of a machine: what it says, and when and why it went."""

import asyncio
import contextlib
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from torpor.vm.cgroups import Group
from torpor.vm.console import Console
from torpor.vm.endings import Cause, cause_of, explain_end, read_log
from torpor.vm.errors import MachineDiedError, RebootedError, VmError
from torpor.vm.launch import CONSOLE, TRACE
from torpor.vm.manifest import MachineRecord
from torpor.vm.processes import DeathWatch
from torpor.vm.qmp import connect_unix
from torpor.vm.said import Said

CONSOLE_LOG = "console.log"

Result = TypeVar("Result")


class MachineProcess:
    """One process of a machine, started by us or by an earlier program.

    It is the one in the machine's ``record``; if none is there, it has gone, and what is left of it
    is its console and perhaps its control ``group``. ``child`` is the child of ours that is or
    leads to it. ``died`` is called from the event loop as soon as it ends.

    Why it went is known when it is told (:meth:`tell`): the machine may go on without it, or its
    disk may have to be kept first.
    """

    def __init__(
        self,
        directory: Path,
        record: MachineRecord,
        died: Callable[[], None],
        child: subprocess.Popen[bytes] | None = None,
        group: Group | None = None,
    ) -> None:
        self.group = group
        """Its control group, if there is one."""
        self.console = Console(directory / CONSOLE_LOG)
        self.shutdown: str | None = None
        """Why it is about to end, if its monitor said so."""
        self._directory = directory
        self._machine = record.id
        self._shape = record.shape
        self._id = record.process
        self._child = child
        self._said = Said(directory)
        self._died = died
        self._dead = False
        self._gone: asyncio.Future[VmError] = asyncio.get_running_loop().create_future()
        self._watch = DeathWatch(self._id, self._ended) if self._id is not None else None

    def _ended(self) -> None:
        self._dead = True
        self._died()

    # What it says

    async def follow(self, directory: int) -> None:
        """Follow what it says and what its guest prints, by a descriptor of the machine's
        directory. Raises OSError."""
        self._said.open()
        self._said.follow()
        await self.console.follow(connect_unix(directory, CONSOLE))

    # Its end

    @property
    def gone(self) -> VmError | None:
        """Why it went, or None as long as that is not told."""
        return self._gone.result() if self._gone.done() else None

    def tell(self, reason: VmError) -> None:
        """Tell all who wait for something of it why it went, unless they have been told."""
        if not self._gone.done():
            self._gone.set_result(reason)

    async def or_gone(self, wanted: Awaitable[Result]) -> Result:
        """Await ``wanted``, or raise why the process went if that is told first."""
        task = asyncio.ensure_future(wanted)
        try:
            either: list[asyncio.Future[Any]] = [task, self._gone]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() or (task.exception() is not None and self._gone.done()):
                raise self._gone.result()
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, VmError):
                    await task

    async def explain(self, error: VmError) -> VmError:
        """Return why the process went if that is why ``error`` came about, else ``error``.

        Sockets close a moment before the process is gone, so this waits for a moment.
        """
        if not isinstance(error, MachineDiedError | RebootedError):
            await asyncio.wait([self._gone], timeout=0.5)
            if self._dead and not self._gone.done():  # its disk is being kept
                await asyncio.wait([self._gone])
        return self.gone or error

    async def explain_end(self) -> tuple[Cause, MachineDiedError]:
        """Return why it ended by itself. Leaves neither child nor control group."""
        await self.console.drain()
        if self._child is not None:
            await asyncio.to_thread(self._child.wait)
        trace = read_log(self._directory / TRACE)
        cause = cause_of(self.shutdown, trace, self.console.since_followed())
        full = self.group is not None and self.group.out_of_memory()
        await self.leave_group()
        what = ""
        if full and cause is Cause.CRASH:
            what = (
                f"Machine {self._machine} was ended: its QEMU used up the memory that one of"
                f" {self._shape} may take."
            )
        said = self._said.text(500)
        return cause, explain_end(self._machine, cause, self.console, said, what)

    async def leave_group(self) -> None:
        """Remove the control group of a process that has gone."""
        group, self.group = self.group, None
        if group is not None:
            with contextlib.suppress(OSError):  # whoever opens the host next tries again
                await group.remove()

    def kill(self) -> None:
        """End it at once."""
        if self._id is not None:
            self._id.kill()

    async def end(self) -> None:
        """End it, and return when it is told why it went; at once if nobody watches over it."""
        if self._watch is not None:
            self.kill()
            # Awaited itself, the future would be cancelled together with who awaits it.
            await asyncio.wait([self._gone])

    # Letting go

    def outlive(self) -> None:
        """Let it run on when this program has ended."""
        if self._child is not None:
            self._child.returncode = 0  # Popen shall not miss it

    def unwatch(self) -> None:
        """Be told no more of its end."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    async def close(self) -> None:
        """Follow it no more."""
        await self.console.close()
        self._said.close()
