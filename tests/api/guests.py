"""A host whose machines are guest agents: processes of this host, spoken to through a socket.

Everything is real but the machine: sessions, database, channel, agent, commands and files. What is
paused has its agent stopped, and its channel cut; what is resumed is the same agent again.
"""

import asyncio
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.guest.conftest import Guest
from tests.sessions.world import WorldHost
from torpor.sessions.hosts import PUBLIC, Kept, Running, StartEvent, Wall
from torpor.vm import ChannelLostError, GuestAgent, MachineDiedError
from torpor.vm.guest_statistics import GuestStatistics
from torpor.vm.holding import Holding
from torpor.vm.statistics import HostStatistics, Statistics


class GuestHost(WorldHost):
    """A world in which each machine has an agent as soon as somebody asks for it."""

    def __init__(self, root: Path, step: float = 0.0) -> None:
        super().__init__(root, step)
        self._guests: dict[str, Guest] = {}
        self._agents: dict[str, GuestAgent] = {}
        self._attaching = asyncio.Lock()
        self._holdings: dict[str, Holding] = {}
        self._boots = 0

    async def boot(self, machine: str) -> None:
        """Have a machine's agent be another one, which knows nothing of what was before."""
        await self._cut(machine)
        self._guests.pop(self._whose(machine)).end()

    def stop(self, machine: str) -> None:
        """Have a machine stand still, and nobody know."""
        self._guests[self._whose(machine)].process.send_signal(signal.SIGSTOP)

    def hold(self, machine: str) -> None:
        """Have a machine stand still, because its disk is full."""
        self.stop(machine)
        self.holding_of(machine).begin(machine, self.root)

    def release(self, machine: str) -> None:
        """Let it go on."""
        self._guests[self._whose(machine)].process.send_signal(signal.SIGCONT)
        self.holding_of(machine).end()

    def lose_channel(self, machine: str) -> None:
        """Lose the channel to a machine, as when a program ends."""
        self._agents[machine].channel.lose(ChannelLostError("It was lost."))

    def holding_of(self, machine: str) -> Holding:
        """Return what knows whether a machine is held."""
        return self._holdings.setdefault(machine, Holding())

    def held(self, machine: str) -> str | None:
        return self.holding_of(machine).why

    def _whose(self, machine: str) -> str:
        """Return which agent a machine has: it stays over pauses."""
        return str(self._read("machines", machine)["guest"])

    async def start(
        self,
        snapshot: str,
        labels: Mapping[str, str],
        event: StartEvent,
        hostname: str | None = None,
        disk: str | None = None,
        wall: Wall = PUBLIC,
    ) -> Running:
        running = await super().start(snapshot, labels, event, hostname, disk, wall)
        content = self._read("machines", running.id)
        if hostname is not None:
            content["guest"] = running.id
            self._write("machines", running.id, content)
        guest = self._guests.get(content["guest"])
        if guest is not None:
            guest.process.send_signal(signal.SIGCONT)
        return running

    async def freeze(
        self,
        machine: str,
        snapshot: str,
        labels: Mapping[str, str],
        *,
        stop: bool,
        children: int = 1,
    ) -> Kept:
        guest = self._guests.get(self._whose(machine))
        if stop and guest is not None:
            guest.process.send_signal(signal.SIGSTOP)
            await self._cut(machine)
        return await super().freeze(machine, snapshot, labels, stop=stop, children=children)

    async def end(self, machine: str) -> None:
        await self._cut(machine)
        await super().end(machine)

    async def _cut(self, machine: str) -> None:
        agent = self._agents.pop(machine, None)
        if agent is not None:
            await agent.channel.close(MachineDiedError(f"Machine {machine} was ended."))

    async def agent(self, machine: str) -> Any:
        await self._step("agent")
        async with self._attaching:
            whose = self._whose(machine)
            if whose not in self._guests:
                self._boots += 1
                place = self.root / "guests" / f"{whose}-{self._boots}"
                place.mkdir(parents=True)
                self._guests[whose] = Guest(place)
            found = self._agents.get(machine)
            if found is None or found.channel.lost is not None:
                if found is not None:
                    await found.channel.close()
                holding = self.holding_of(machine)
                found = self._agents[machine] = await self._guests[whose].attach(holding)
            return found

    async def statistics(self, machine: str) -> Any:
        host = HostStatistics((1.5,), 0.1, 0.2, 80 << 20, 40 << 20, 1, 2, 3, 4, 5, 6, 7, 8)
        guest: GuestStatistics | None = None
        return Statistics(host, guest)

    async def close(self) -> None:
        """End all agents."""
        for machine in list(self._agents):
            await self._cut(machine)
        for guest in self._guests.values():
            os.kill(guest.process.pid, signal.SIGCONT)
            guest.end()
        await asyncio.sleep(0)
