"""A machine that runs: its monitor, its agent, and the news of its end.

A machine outlives its process (:mod:`torpor.vm.machine_process`) when the guest reboots: it is
started again from its disk, as the same :class:`Machine` (:mod:`torpor.vm.aftermath`).
"""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torpor.vm.agent import AgentCode, GuestAgent
from torpor.vm.attaching import attach_agent
from torpor.vm.cgroups import Group
from torpor.vm.console import Console
from torpor.vm.disk import Layer
from torpor.vm.endings import Cause
from torpor.vm.errors import (
    ChannelLostError,
    GuestError,
    LaunchError,
    MachineDiedError,
    RebootedError,
    VmError,
    told,
)
from torpor.vm.holding import Holding
from torpor.vm.launch import MONITOR, Launched
from torpor.vm.machine_process import MachineProcess
from torpor.vm.manifest import Drive, MachineRecord, write_record
from torpor.vm.qmp import Qmp, QmpError, connect_unix
from torpor.vm.releasing import Release
from torpor.vm.statistics import GUEST_LIMIT, Statistics, take_statistics
from torpor.vm.thaw_times import ThawTimes
from torpor.vm.wire import Wired

END_LIMIT = 30.0
"""Seconds that a process which was killed may take to go."""
ATTACH_LIMIT = 15.0
"""Seconds that an agent may take to answer in a machine that runs."""

Succession = Callable[["Machine", Cause, MachineDiedError], Awaitable[VmError | None]]
"""Decides what comes after a process that ended by itself: the machine's end, or None if it goes
on."""


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
        wired: Wired | None = None,
    ) -> None:
        self.directory = directory
        self.record = record
        self.wired = wired or Wired()
        """What its network card is connected to."""
        self._end: asyncio.Future[VmError] = asyncio.get_running_loop().create_future()
        self.holding = Holding()
        """Whether it is held because the host's disk is full."""
        self.thawed: ThawTimes | None = None
        """How long its thaw took; None if it was booted or adopted."""
        self.agent_kept: str | None = None
        """Why the agent of its snapshot could not be replaced by a newer one, or None."""
        self.not_mounted: str | None = None
        """Why a disk in a slot could not be mounted when it was started, or None."""
        self.no_card: str | None = None
        """Why its network card could not be set up when it was woken, or None."""
        self._qmp: Qmp | None = None
        self._agent: GuestAgent | None = None
        self._ending = False
        self._attaching, self._exclusive = asyncio.Lock(), asyncio.Lock()
        self.release = Release(
            record.id, directory, self.holding, self._exclusive, self._continue, self._resume
        )
        self._letting_go: asyncio.Future[None] | None = None
        self._succession: Succession | None = None
        self._reporting: asyncio.Task[None] | None = None
        self._reaping: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        self._up.set()
        self._reboot_calls: list[Callable[[Machine], None]] = []
        if started is not None:
            self.have_process(started)
        else:
            self._process = MachineProcess(directory, record, self._died, group=group)

    def have_process(self, started: Launched) -> None:
        """Watch over a new process."""
        self.record = replace(self.record, process=started.process)
        self.holding.end()
        self._process = MachineProcess(
            self.directory, self.record, self._died, started.child, started.group
        )

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
    def group(self) -> Group | None:
        """The control group of its process, if there is one."""
        return self._process.group

    @property
    def console(self) -> Console:
        """What its guest prints."""
        return self._process.console

    @property
    def held(self) -> str | None:
        """Why the machine is held at the moment (the host's disk is full), or None."""
        return self.holding.why

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return not self._end.done()

    @property
    def boots(self) -> int:
        """How often it was rebooted from inside, and started again from its disk."""
        return self.record.boots

    @property
    def agent(self) -> GuestAgent:
        """Its guest agent. Raises the machine's end, or :exc:`ChannelLostError` if not attached."""
        if self._end.done():
            raise self._end.result()
        if self._agent is None:
            if self._process.gone is not None:
                raise self._process.gone
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
            await self._process.follow(fd)
            monitor = connect_unix(fd, MONITOR)
        except OSError as error:
            raise LaunchError(f"Machine {self.id} cannot be reached: {error}.") from error
        finally:
            os.close(fd)
        self._qmp = await self._process.or_gone(Qmp.connect(monitor, self._event))

    async def attach(self, limit: float) -> GuestAgent:
        """Begin a new epoch with the guest agent. Raises :exc:`ChannelLostError`,
        :exc:`HeldError` or the end."""
        self.holding.check()
        if self._agent is not None:
            await self._agent.channel.close()
            self._agent = None
        self._agent = await attach_agent(
            self.directory, self._process, self.explain, self.holding, limit
        )
        return self._agent

    async def replace_agent(self, newer: AgentCode, limit: float) -> GuestAgent:
        """Put ``newer`` in the place of an agent of other code, and return the one that runs then.

        If it cannot be, the older one works on, and :attr:`agent_kept` says why. Raises as
        :meth:`attach`.
        """
        agent = self.agent
        if agent.welcome.code == newer.digest:
            return agent
        try:
            await agent.replace(newer)
        except GuestError as error:
            self.agent_kept = str(error)
            return agent
        return await self.attach(limit)

    async def attached(self) -> GuestAgent:
        """Return the guest agent, attached anew if the channel was lost. Raises as
        :meth:`attach`. Waits while the machine is being started again after a reboot."""
        if not self._up.is_set():
            await self.holding.unless_held(self._up.wait())
        async with self._attaching:  # QEMU hears one channel at a time
            if self.running and (self._agent is None or self._agent.channel.lost is not None):
                return await self.attach(ATTACH_LIMIT)
        return self.agent

    async def statistics(self, guest_limit: float = GUEST_LIMIT) -> Statistics:
        """Return what it uses, as the host sees it, and as the guest does if it answers within
        ``guest_limit`` seconds. Raises the machine's end, :exc:`HeldError` or
        :exc:`QmpError`."""
        if not self._up.is_set():
            await self.holding.unless_held(self._up.wait())
        top = self.top_file(self.record.drives[0])
        try:
            return await take_statistics(self.pid, top, self.qmp, self._agent, guest_limit)
        except (QmpError, FileNotFoundError, ProcessLookupError) as error:
            raise await self.explain(VmError(told(error))) from error

    # The record

    def update(self, **changes: Any) -> None:
        """Change the machine's record, in memory and then on disk."""
        self.record = replace(self.record, **changes)
        write_record(self.directory, self.record)

    def promote(self, tops: Mapping[str, Layer]) -> None:
        """Note that ``tops``, by slot, are the writable layers now, over those that were.

        Their files stay in the directory until the store's are ones that QEMU has never had open
        (:mod:`torpor.vm.detach`).
        """
        self.record = self.record.with_tops(tops)
        write_record(self.directory, self.record)

    def top_file(self, drive: Drive) -> Path:
        """Return the file of the layer on top of one of its disks."""
        return self.directory / drive.top.file_name

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
            self._process.shutdown = str(data.get("reason", name.lower()))
        elif name == "BLOCK_IO_ERROR" and data.get("nospace") and data.get("action") == "stop":
            self.release.hold()

    async def _continue(self) -> None:
        await self.qmp.cont()

    async def _resume(self) -> None:
        await (await self.attached()).resume()

    def _died(self) -> None:
        if self._up.is_set():
            self._reporting = asyncio.create_task(self._report_end(), name="end of a machine")
        else:  # while it is being started again, whoever does that decides
            self._reaping = asyncio.create_task(self._reap(), name="end of a boot")

    async def _reap(self) -> None:
        process = self._process
        process.tell((await self._explain_end())[1])

    async def _report_end(self) -> None:
        cause, reason = await self._explain_end()
        end: VmError | None = reason
        if self._succession is not None and not self._ending:
            try:
                end = await self._succession(self, cause, reason)
            except asyncio.CancelledError:
                end = (await self._explain_end())[1]
                if not self._ending:  # we let go of a machine that is being started again
                    raise
        if end is not None:
            await self._finish(end)

    async def _explain_end(self) -> tuple[Cause, MachineDiedError]:
        cause, reason = await self._process.explain_end()
        if self._ending:
            reason = MachineDiedError(f"Machine {self.id} was ended.")
        return cause, reason

    async def _finish(self, end: VmError) -> None:
        self._process.tell(end)
        if not self._end.done():
            self._end.set_result(end)
        self._up.set()
        if self._agent is not None:
            self._agent.channel.lose(end)
        await self.disconnect()

    async def leave_group(self) -> None:
        """Remove the control group of a process that has gone."""
        await self._process.leave_group()

    async def explain(self, error: VmError) -> VmError:
        """Return the machine's end if that is why ``error`` came about, else ``error``; waits for a
        moment."""
        return await self._process.explain(error)

    # Going on after a reboot

    def succeed_with(self, succession: Succession) -> None:
        """Let ``succession`` decide what comes after a process of this machine that ended by
        itself."""
        self._succession = succession

    @asynccontextmanager
    async def rebooting(self, reason: RebootedError) -> AsyncIterator[None]:
        """Be without a process: tell it to all who wait for one, and let them wait for the next.

        They wait until the block has come to its end, or the machine to its own.
        """
        self._up.clear()
        self._process.tell(reason)
        if self._agent is not None:
            self._agent.channel.lose(reason)
        async with self._exclusive:  # what was under way fails now, and cleans up
            await self._let_go_of_process()
            yield
            self._up.set()
        for call in self._reboot_calls:
            call(self)

    async def take_process(self, started: Launched) -> None:
        """Go on with a new process, and connect to it. Raises as :meth:`connect`."""
        self.have_process(started)
        self.update(process=started.process)
        await self.connect()

    async def end_process(self) -> None:
        """End the process, if there is one, and not the machine."""
        await self._process.end()
        await self._let_go_of_process()

    def on_reboot(self, call: Callable[["Machine"], None]) -> None:
        """Call ``call`` with this machine each time that it was rebooted and runs again."""
        self._reboot_calls.append(call)

    async def kill(self) -> None:
        """End the machine at once, as if its power were cut, and wait until its process is gone."""
        self._ending = True
        deciding = self._deciding()
        if deciding is not None:
            deciding.cancel()  # its reboot too; that ends what has been started
        else:
            self._process.kill()
        await self.wait_end()

    def _deciding(self) -> asyncio.Task[None] | None:
        """Return what starts it again, or waits for the space to do so or to keep its disk."""
        if self._reporting is None or self._reporting.done():
            return None
        return None if self._up.is_set() and self.held is None else self._reporting

    async def disconnect(self) -> None:
        """Let go of the machine; one that runs runs on."""
        if self._letting_go is None:
            self._letting_go = asyncio.ensure_future(self._disconnect())
        await asyncio.shield(self._letting_go)

    async def _disconnect(self) -> None:
        deciding = self._deciding()
        if self.running and deciding is not None:
            # The next program finds that it has no process, or is being started again.
            deciding.cancel()
            await asyncio.wait([deciding])
        if self.running:
            self._process.outlive()
        await self._let_go_of_process()
        self.wired.let_go()

    async def _let_go_of_process(self) -> None:
        self._process.unwatch()
        self.release.close()
        if self._agent is not None:
            await self._agent.channel.close()
            self._agent = None
        if self._qmp is not None:
            await self._qmp.disconnect()
        await self._process.close()

    async def remove(self) -> None:
        """End the machine and remove its directory. Raises :exc:`VmError` if its process does not
        end, and OSError if it cannot be told to."""
        if self.running:
            with contextlib.suppress(OSError):  # a full disk keeps no machine from its end
                self.update(removing=True)
            try:
                async with asyncio.timeout(END_LIMIT):
                    await self.kill()
            except TimeoutError:
                raise VmError(
                    f"Machine {self.id} did not end within {END_LIMIT:g} s: its process {self.pid}"
                    " is stuck in the host's kernel.",
                    state="It has been killed, and goes as soon as the kernel lets it.",
                ) from None
        await self.disconnect()
        shutil.rmtree(self.directory, ignore_errors=True)

    def on_end(self, call: Callable[["Machine", VmError], None]) -> None:
        """Call ``call`` with this machine and its end, from the event loop, as soon as it ends."""
        self._end.add_done_callback(lambda ended: call(self, ended.result()))
