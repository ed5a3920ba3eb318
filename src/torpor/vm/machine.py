"""A machine that runs: its process, its monitor, its agent, and the news of its end."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torpor.vm import manifest as documents
from torpor.vm.agent import GuestAgent
from torpor.vm.cgroups import Group
from torpor.vm.channel import Channel
from torpor.vm.console import Console
from torpor.vm.disk import Layer
from torpor.vm.errors import ChannelLostError, LaunchError, MachineDiedError, VmError
from torpor.vm.launch import AGENT, CONSOLE, MONITOR, Launched
from torpor.vm.manifest import MachineRecord
from torpor.vm.processes import DeathWatch
from torpor.vm.qmp import Qmp, connect_unix
from torpor.vm.said import Said

RECORD, CONSOLE_LOG = "machine.json", "console.log"
ATTACH_LIMIT = 15.0
"""Seconds that an agent may take to answer in a machine that runs."""
SPACE_POLL = 1.0
"""Seconds between two looks for free space while a machine is held because the disk is full."""


@dataclass(frozen=True)
class ThawTimes:
    """How long the steps of a thaw took, in seconds.

    ``launch``: QEMU starts and its monitor answers. ``pages``: those that differ from the base are
    written. ``devices``: their state is loaded, the vCPUs start. ``wake``: up to the guest agent's
    word that all is right and the user's processes run. ``ready_at`` is that moment, on
    :func:`time.monotonic`.
    """

    launch: float
    pages: float
    devices: float
    wake: float
    ready_at: float

    @classmethod
    def between(
        cls, began: float, launched: float, injected: float, running: float, ready: float
    ) -> "ThawTimes":
        """Return the times of a thaw with its moments given, on :func:`time.monotonic`."""
        return cls(
            launch=launched - began,
            pages=injected - launched,
            devices=running - injected,
            wake=ready - running,
            ready_at=ready,
        )


class Machine:
    """One machine. Made by a host, which launches, thaws or adopts it.

    :meth:`wait_end` tells when and why its process went.
    """

    def __init__(
        self,
        directory: Path,
        record: MachineRecord,
        started: Launched | None = None,
        group: Group | None = None,
    ) -> None:
        self.directory = directory
        if started is not None:
            record = replace(record, process=started.process)
        self._child = started.child if started is not None else None
        self.group = started.group if started is not None else group
        """Its control group, if it has one."""
        self._said = Said(directory)
        self.record = record
        self.console = Console(directory / CONSOLE_LOG)
        self._end: asyncio.Future[VmError] = asyncio.get_running_loop().create_future()
        self.held: str | None = None
        """Why the machine is held at the moment (the host's disk is full), or None."""
        self.thawed: ThawTimes | None = None
        """How long its thaw took; None if it was booted or adopted."""
        self._qmp: Qmp | None = None
        self._agent: GuestAgent | None = None
        self._shutdown: str | None = None
        self._ending = False
        self._exclusive = asyncio.Lock()
        self._holding: asyncio.Task[None] | None = None
        assert record.process is not None
        self._letting_go: asyncio.Future[None] | None = None
        self._watch = DeathWatch(record.process, self._died)

    @property
    def id(self) -> str:
        """The machine's id on its host."""
        return self.record.id

    @property
    def pid(self) -> int:
        """The number of its QEMU process."""
        assert self.record.process is not None
        return self.record.process.pid

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return not self._end.done()

    @property
    def agent(self) -> GuestAgent:
        """Its guest agent. Raises the machine's end, or :exc:`ChannelLostError` if not attached."""
        if self._end.done():
            raise self._end.result()
        if self._agent is None:
            raise ChannelLostError(f"The guest agent of machine {self.id} is not attached.")
        return self._agent

    @property
    def qmp(self) -> Qmp:
        """Its monitor. Raises the machine's end."""
        if self._end.done():
            raise self._end.result()
        assert self._qmp is not None
        return self._qmp

    async def wait_end(self) -> VmError:
        """Return the reason with which the machine ended, as soon as it has."""
        return await asyncio.shield(self._end)

    # Connecting

    async def connect(self) -> None:
        """Connect to monitor and console. Raises :exc:`LaunchError` or the machine's end."""
        fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._said.open()
            self._said.follow()
            await self.console.follow(connect_unix(fd, CONSOLE))
            monitor = connect_unix(fd, MONITOR)
        except OSError as error:
            raise LaunchError(f"Machine {self.id} cannot be reached: {error}.") from error
        finally:
            os.close(fd)
        self._qmp = await self._or_end(Qmp.connect(monitor, self._event))

    async def attach(self, limit: float) -> GuestAgent:
        """Begin a new epoch with the guest agent. Raises :exc:`ChannelLostError` or the end."""
        if self._agent is not None:
            await self._agent.channel.close()
            self._agent = None
        fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            channel = Channel(connect_unix(fd, AGENT), self.explain)
        except OSError as error:
            raise ChannelLostError(f"Machine {self.id} cannot be reached: {error}.") from error
        finally:
            os.close(fd)
        try:
            welcome = await self._or_end(channel.attach(limit))
        except BaseException:
            await channel.close()
            raise
        self._agent = GuestAgent(channel, welcome)
        return self._agent

    async def attached(self) -> GuestAgent:
        """Return the guest agent, attached anew if the channel was lost. Raises as
        :meth:`attach`."""
        if self.running and (self._agent is None or self._agent.channel.lost is not None):
            return await self.attach(ATTACH_LIMIT)
        return self.agent

    async def _or_end(self, wanted: Any) -> Any:
        """Await ``wanted``, or raise the machine's end if that comes first."""
        task = asyncio.ensure_future(wanted)
        try:
            await asyncio.wait([task, self._end], return_when=asyncio.FIRST_COMPLETED)
            if not task.done() or (task.exception() is not None and self._end.done()):
                raise self._end.result()
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, VmError):
                    await task

    # The record

    def update(self, **changes: Any) -> None:
        """Change the machine's record, in memory and then on disk."""
        self.record = replace(self.record, **changes)
        write_record(self.directory, self.record)

    def promote_top(self, new: Layer) -> None:
        """Note that ``new`` is the writable layer now, over the one that was.

        That one's file stays in the directory until the store's is one that QEMU has never had
        open (:mod:`torpor.vm.detach`).
        """
        self.update(layers=(*self.record.layers, self.record.top), top=new)

    # Doing one thing at a time

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Keep other operations on this machine's state waiting."""
        async with self._exclusive:
            if self._end.done():
                raise self._end.result()
            yield

    # The end

    def _event(self, name: str, data: dict[str, Any]) -> None:
        if name in ("SHUTDOWN", "GUEST_PANICKED"):
            self._shutdown = str(data.get("reason", name.lower()))
        elif name == "BLOCK_IO_ERROR" and data.get("nospace") and data.get("action") == "stop":
            self.held = f"the host's disk is full ({self.directory})"
            if self._holding is None or self._holding.done():
                self._holding = asyncio.create_task(self._hold(), name="held for space")

    async def _hold(self) -> None:
        # QEMU has stopped the machine and will try the write again when it is continued.
        while self.running:
            await asyncio.sleep(SPACE_POLL)
            space = os.statvfs(self.directory)
            if space.f_bavail * space.f_frsize > 64 << 20 and not self._exclusive.locked():
                with contextlib.suppress(VmError):
                    self.held = None
                    await self.qmp.cont()
                return

    def _died(self) -> None:
        asyncio.get_running_loop().create_task(self._report_end(), name="end of a machine")

    async def _report_end(self) -> None:
        await self.console.drain()
        if self._child is not None:
            await asyncio.to_thread(self._child.wait)
        reason = self._explain()
        await self._leave_group()
        self._end.set_result(reason)
        if self._agent is not None:
            self._agent.channel.lose(reason)
        await self.disconnect()

    async def _leave_group(self) -> None:
        if self.group is not None:
            with contextlib.suppress(OSError):  # whoever opens the host next tries again
                await self.group.remove()

    def _explain(self) -> VmError:
        if self._ending:
            return MachineDiedError(f"Machine {self.id} was ended.")
        tail = self.console.tail()
        panic = self.console.tail(200).rpartition("Kernel panic")
        if panic[1]:
            what = f"The kernel of machine {self.id} panicked."
            tail = "\n".join((panic[1] + panic[2]).split("\n")[:12])
        elif self._shutdown == "guest-shutdown":
            what = f"Machine {self.id} was powered off from inside."
        elif self._shutdown == "guest-reset":
            what = f"Machine {self.id} was rebooted from inside."
        elif self.group is not None and self.group.out_of_memory():
            what = (
                f"Machine {self.id} was ended: its QEMU used up the memory that one of"
                f" {self.record.shape} may take."
            )
        else:
            what = f"Machine {self.id} died: its process ended without being asked to."
        said = self._said.text(500)
        return MachineDiedError(
            what, console=tail, state=f"QEMU said: {said}" if said and not self._shutdown else ""
        )

    async def explain(self, error: VmError) -> VmError:
        """Return the machine's end if that is why ``error`` came about, else ``error``.

        Sockets close a moment before the process is gone, so this waits for a moment.
        """
        if not isinstance(error, MachineDiedError):
            await asyncio.wait([self._end], timeout=0.5)
        return self._end.result() if self._end.done() else error

    async def kill(self) -> None:
        """End the machine at once, as if its power were cut, and wait until its process is gone."""
        self._ending = True
        assert self.record.process is not None
        self.record.process.kill()
        await self.wait_end()

    async def disconnect(self) -> None:
        """Let go of the machine; one that runs runs on."""
        if self._letting_go is None:
            self._letting_go = asyncio.ensure_future(self._disconnect())
        await asyncio.shield(self._letting_go)

    async def _disconnect(self) -> None:
        self._watch.close()
        if self._child is not None and self.running:
            self._child.returncode = 0  # it outlives us: Popen shall not miss it
        if self._holding is not None:
            self._holding.cancel()
        if self._agent is not None:
            await self._agent.channel.close()
            self._agent = None
        if self._qmp is not None:
            await self._qmp.disconnect()
        await self.console.close()
        self._said.close()

    async def remove(self) -> None:
        """End the machine and remove its directory."""
        if self.running:
            await self.kill()
        await self.disconnect()
        shutil.rmtree(self.directory, ignore_errors=True)

    def on_end(self, call: Callable[["Machine", VmError], None]) -> None:
        """Call ``call`` with this machine and its end, from the event loop, as soon as it ends."""
        self._end.add_done_callback(lambda ended: call(self, ended.result()))


def write_record(directory: Path, record: MachineRecord) -> None:
    """Write a machine's record by rename."""
    new = directory / f".{RECORD}"
    new.write_bytes(documents.write(record))
    new.replace(directory / RECORD)
