"""One machine's wall: all that it says to the network arrives here, and what may goes on."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address
from typing import Protocol

from torpor.network.datagrams import Datagrams
from torpor.network.decisions import Tell, Telling
from torpor.network.dns import Answering
from torpor.network.dns_server import DnsServer, Pace
from torpor.network.flows import Flows
from torpor.network.hold import Hold, drained
from torpor.network.limits import Limits, Rate
from torpor.network.names import Names
from torpor.network.proxy import Proxy
from torpor.network.resolver import Resolved, Resolver
from torpor.network.services import Handler, Services
from torpor.network.terminating import Terminator
from torpor.network.traffic import Traffic
from torpor.network.turns import Share, Turns
from torpor.network.verdicts import Destination, Judge, Verdict

DRAIN = 0.5
"""Seconds for which a freeze waits until the machine has taken what was written to it."""
DNS_PORT = 53


class Ends(Protocol):
    """The sockets at which everything arrives that a machine sends to the network. None blocks.

    ``tcp`` listens, and an accepted one's own address is what the machine dialled; ``udp`` gets
    datagrams with their destination (``IP_RECVORIGDSTADDR``), ``dns_udp`` and ``dns_tcp`` what goes
    to port 53 anywhere; ``raw`` sends whole packets to the machine.
    """

    @property
    def tcp(self) -> socket.socket: ...
    @property
    def udp(self) -> socket.socket: ...
    @property
    def dns_udp(self) -> socket.socket: ...
    @property
    def dns_tcp(self) -> socket.socket: ...
    @property
    def raw(self) -> socket.socket: ...


class Guard:
    """The wall of the machine of one ``session``."""

    def __init__(
        self,
        session: str,
        ends: Ends,
        judge: Judge,
        names: Names,
        resolver: Resolver,
        *,
        tell: Tell,
        turns: Turns,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        handlers: Mapping[str, Handler] | None = None,
        terminator: Terminator | None = None,
    ) -> None:
        """Make it; it serves while :meth:`run` does. ``tell`` is called with each decision, on
        the event loop. ``turns`` is one for all guards of a loop."""
        self.session = session
        self._ends = ends
        self._judge = judge
        self._share = Share(turns)
        self._hold = Hold()
        if terminator is not None:
            terminator.awake = self._hold.awake
        self._giving_up: asyncio.TimerHandle | None = None
        self._telling = Telling(tell)
        self._flows = Flows(limits, self._share, self._hold, self._telling)
        services = Services(session) if handlers is None else Services(session, handlers)

        async def resolve(name: str) -> Resolved:
            return await resolver.resolve(name, session)

        self._proxy = Proxy(judge, names.name, resolve, self._flows, services, terminator)
        self._datagrams = Datagrams(judge, names.name, resolve, self._flows, ends.udp, ends.raw)
        answering = Answering(lambda: self._judge, names, resolver, session, self._name_denied)
        self._dns = DnsServer(ends.dns_udp, ends.dns_tcp, answering.answer, Pace(limits.lookups))

    async def run(self) -> None:
        """Serve until this is cancelled. Then nothing of the machine's is open."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._dns.run())
                tasks.create_task(self._datagrams.run())
                await self._accept(tasks)
        finally:
            if self._giving_up is not None:
                self._giving_up.cancel()
            self._hold.end()
            self._telling.rest()

    async def policy(self, judge: Judge, limits: Limits | None = None) -> int:
        """Have another policy decide from now on, with other limits if there are any. What it
        denies is ended, and told, when this returns; returns how many connections and flows that
        were. (How many datagrams and lookups there may be stays as it was.)"""
        if limits is not None:
            self._flows.spending.limit(limits)
        self._judge = self._proxy.judge = self._datagrams.judge = judge
        cut = self._flows.judge_anew(judge)
        if cut:
            await asyncio.wait([flow.task for flow in cut])
        return len(cut)

    async def hold(self, seconds: float | None = None) -> bool:
        """Write nothing to the machine any more, for it is about to be frozen, and wait a little
        until it has taken what was written before; returns whether it has.

        What others send waits with them, for ``seconds`` at most (else as the limits say); then
        their ends are closed.
        """
        self._hold.begin()
        limit = self._flows.limits.hold if seconds is None else seconds
        if self._giving_up is None:
            self._giving_up = asyncio.get_running_loop().call_later(limit, self._give_up, limit)
        return await drained((each.machine for each in self._flows if each.machine), DRAIN)

    def go_on(self) -> None:
        """Go on, for the machine runs again."""
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
        for flow in self._flows:
            flow.watch()
        self._hold.end()

    def traffic(self) -> tuple[Traffic, ...]:
        """Return what went where since this was made, up to now."""
        return tuple(self._flows.counts)

    @property
    def connections(self) -> int:
        """How many TCP connections of the machine are open."""
        return self._flows.connections

    def _give_up(self, limit: float) -> None:
        """End what has been held for too long."""
        self._giving_up = None
        for flow in self._flows:
            flow.cut(f"The machine slept for longer than {limit:g} s.")

    async def _accept(self, tasks: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        rate = Rate(0, 0)
        while True:
            if rate.per_second != (most := self._flows.limits.new_connections):
                rate = Rate(most, 2 * most)
            await self._share.turn()
            try:
                machine, _ = await loop.sock_accept(self._ends.tcp)
            except OSError:
                # It is gone already; or descriptors are used up, and then others must go first.
                await asyncio.sleep(0.1)
                continue
            tasks.create_task(self._serve(machine))
            if (wait := rate.take()) > 0:
                await asyncio.sleep(wait)

    async def _serve(self, machine: socket.socket) -> None:
        with self._reported():
            await self._proxy.serve(machine)

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Have a fault of ours end the one connection that it is about, and be told."""
        try:
            yield
        except Exception as error:
            message = f"A connection of {self.session} ended by a fault of the wall."
            asyncio.get_running_loop().call_exception_handler(
                {"message": message, "exception": error}
            )

    def _name_denied(self, name: str, verdict: Verdict) -> None:
        self._flows.denied(Destination(name, IPv4Address(0), DNS_PORT, "udp"), verdict)
