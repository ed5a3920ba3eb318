"""One machine's TCP: what it dials is judged, heard, judged again, and connected to what was
checked. docs/network-proxy.md tells the order, and what the machine sees."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from ipaddress import IPv4Address

from torpor.network.answers import Answer, denial, refuse
from torpor.network.cleartext import Cleartext, RefusedError
from torpor.network.dial import DeniedError, NameOf, Resolve, UnreachableError, dial
from torpor.network.flow import CutError, Flow
from torpor.network.flows import Flows
from torpor.network.heard import MOST, Heard, heard
from torpor.network.peek import peek
from torpor.network.readiness import (
    close_in_order,
    either_readable,
    in_order,
    outlast_sleep,
    prepare,
    readable,
    unacknowledged,
)
from torpor.network.relay import NoMoreError, downward, linger, relay, upward
from torpor.network.services import PORT, Services
from torpor.network.terminating import Terminator
from torpor.network.verdicts import Destination, Judge, Spoken, Verdict

REFUSING = 0.3
"""Seconds for which what is denied anyway may say what it speaks, to be told in those words."""
SLOWEST_LOOK = 0.5


class Proxy:
    """Serves one machine's connections. ``judge`` may be exchanged at any time."""

    def __init__(
        self,
        judge: Judge,
        name_of: NameOf,
        resolve: Resolve,
        flows: Flows,
        services: Services,
        terminator: Terminator | None = None,
    ) -> None:
        self.judge = judge
        self._name_of = name_of
        self._resolve = resolve
        self._flows = flows
        self._services = services
        self._terminator = terminator

    async def serve(self, machine: socket.socket) -> None:
        """Serve a connection that was accepted, and close it: in order, or with a reset."""
        hold = self._flows.hold
        try:
            prepare(machine)
            outlast_sleep(machine, self._flows.limits.hold + 3600.0)
            address, port = machine.getsockname()
            to = Destination(self._name_of(IPv4Address(address)), IPv4Address(address), port)
            if await self._told(machine, to):
                await hold.awake()
                close_in_order(machine)
        except (OSError, CutError, NoMoreError):
            pass  # an end was reset, and so the other one is
        finally:
            hold.close(machine)

    async def _told(self, machine: socket.socket, to: Destination) -> bool:
        """Serve a connection; return whether it is to be closed in order."""
        verdict = self._may_begin(to)
        if not verdict.allowed:
            await self._refuse(machine, to, verdict)
            return False
        with self._flows.opened(to, verdict, machine) as flow:
            try:
                await _ungrouped(self._serve(machine, to, flow))
            except DeniedError as error:
                flow.deny(error.verdict)
                answer = denial(to, error.verdict)
            except UnreachableError as error:
                flow.told(str(error))
                answer = Answer(502, f"Torpor: {error}")
            except RefusedError as error:
                flow.deny(error.verdict or Verdict(False, "http", error.answer.text))
                answer = error.answer
            else:
                if machine.fileno() < 0:  # whoever served it has closed it
                    return False
                if flow.unread:
                    await linger(machine)
                await _taken(machine)
                return True
        # What the other side has begun to say cannot be followed by words of ours.
        if not flow.received_bytes:
            await refuse(machine, flow.spoken or await self._what(machine), answer)
        return False

    def _may_begin(self, to: Destination) -> Verdict:
        flows = self._flows
        if flows.connections >= flows.limits.connections:
            most = flows.limits.connections
            return Verdict(False, "limits", f"{most} connections are open, and no more may be")
        if flows.spending.all_spent:
            return Verdict(False, "limits", f"all {flows.limits.total} bytes have been moved")
        if self._services.knows(to) and not self._services.serves(to):
            return Verdict(False, "own", f"{to.name} is served at port {PORT}, without TLS")
        return self.judge.destination(to)

    async def _serve(self, machine: socket.socket, to: Destination, flow: Flow) -> None:
        judge = self.judge
        if self._services.serves(to):
            await self._services.serve(machine, to, flow)
            return
        upstreams = _Upstreams(lambda by: self._dial(by, flow))
        try:
            anything = judge.spoken(to, "raw", None).allowed
            if anything:
                # Whoever may speak anything may also wait for the other side to begin.
                flow.anything = True
                upstream = await upstreams.ahead(to)
                if await either_readable(machine, upstream) is upstream:
                    self._flows.begun(flow)
                    with in_order(await upstreams.next(to)):
                        await self._other_side_began(machine, to, flow, upstream)
                    return
            said = await self._hear(machine, to, anything=anything)
            flow.spoken = said.how
            if said.how == "http" and judge.heeds(to):
                await self._cleartext(machine, to, flow, upstreams)
                return
            verdict = self._judge_heard(to, said, flow)
            by_name = replace(to, name=verdict.name) if verdict.name else to
            if said.how == "tls" and await self._terminates(by_name, verdict):
                assert self._terminator is not None
                flow.inspected = True
                self._flows.begun(flow)
                await self._terminator.serve(
                    machine, by_name, lambda: upstreams.next(by_name), flow
                )
                return
            upstream = await upstreams.next(by_name)
            self._flows.begun(flow)
            with in_order(upstream):
                await relay(machine, upstream, flow)
        finally:
            upstreams.close()

    async def _other_side_began(
        self, machine: socket.socket, to: Destination, flow: Flow, upstream: socket.socket
    ) -> None:
        """Pass on what the other side says, and hold back what the machine does until it is heard:
        however late it speaks, it says no other name."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(downward(upstream, machine, flow))
            await readable(machine)
            said = await self._hear(machine, to, anything=True)
            flow.spoken = said.how
            if self.judge.heeds(to) and said.how == "http":
                why = "the other side spoke first, and nobody does who is asked by HTTP"
                raise DeniedError(Verdict(False, flow.verdict.rule, why))
            verdict = self._judge_heard(to, said, flow)
            if said.how == "tls" and await self._terminates(to, verdict):
                why = "the other side spoke first, so TLS to it cannot be ended at the wall"
                raise DeniedError(Verdict(False, verdict.rule, why))
            await upward(machine, upstream, flow)

    async def _hear(self, machine: socket.socket, to: Destination, *, anything: bool) -> Heard:
        """Return what the machine speaks. Where nothing depends on it, what it has said so far is
        enough."""
        if anything and self._terminator is None and not self.judge.heeds(to):
            found = await peek(machine, lambda data, _: heard(data, ended=True), MOST)
            return found or Heard("raw")
        limit = self._flows.limits.hello
        try:
            async with asyncio.timeout(limit):
                found = await peek(machine, lambda data, ended: heard(data, ended=ended), MOST)
        except TimeoutError:
            why = f"within {limit:g} s it did not say what it speaks"
            raise DeniedError(Verdict(False, "hello", why)) from None
        return found or Heard("raw")

    def _judge_heard(self, to: Destination, said: Heard, flow: Flow) -> Verdict:
        """Return the verdict on what was heard. Raises :exc:`DeniedError`."""
        judge = self.judge
        flow.said = said.said
        flow.encrypted = said.hello is not None and said.hello.encrypted
        verdict = judge.spoken(to, said.how, said.said)
        if judge.heeds(to) or verdict.inspect:
            if said.problem:
                why = f"its TLS cannot be read in one way only: {said.problem}"
                verdict = Verdict(False, verdict.rule, why)
            elif verdict.allowed and flow.encrypted and not judge.hidden_names:
                verdict = Verdict(False, verdict.rule, "its TLS hides the name that it says (ECH)")
        if not verdict.allowed:
            raise DeniedError(verdict)
        flow.verdict = verdict
        return verdict

    async def _terminates(self, to: Destination, verdict: Verdict) -> bool:
        """Say whether TLS to a destination is ended here. Raises :exc:`DeniedError` if it is to
        be and nobody can."""
        if self._terminator is not None:
            return verdict.inspect or await self._terminator.wanted(to)
        if verdict.inspect:
            why = "it is to be inspected, and nobody here can"
            raise DeniedError(replace(verdict, allowed=False, why=why))
        return False

    async def _cleartext(
        self, machine: socket.socket, to: Destination, flow: Flow, upstreams: "_Upstreams"
    ) -> None:
        by_name = to

        def ask(to: Destination, host: str) -> Verdict:
            nonlocal by_name
            verdict = self.judge.spoken(to, "http", host)
            if verdict.allowed:
                flow.verdict = verdict
                if flow.address is not None and verdict.name and verdict.name != by_name.name:
                    why = f"the connection was made for {by_name.name or by_name.address}"
                    return Verdict(False, verdict.rule, why)
                by_name = replace(to, name=verdict.name) if verdict.name else to
            return verdict

        requests = Cleartext(machine, to, flow, ask)
        first = await requests.first()
        if first is None:
            return
        await upstreams.ahead(by_name)
        self._flows.begun(flow)
        await requests.serve(first, lambda: upstreams.next(by_name))

    async def _dial(self, to: Destination, flow: Flow) -> socket.socket:
        """Connect to a destination. Raises :exc:`DeniedError` and :exc:`UnreachableError`."""
        judge, limit = self.judge, self._flows.limits.connect
        # By a name that was said alone, it must be the name's own address that was dialled.
        only = to.address if flow.to.name is None and to.name is not None else None
        upstream = await dial(to, judge, self._resolve, limit, only=only)
        flow.address = upstream.address
        if judge is not self.judge:  # the policy was changed meanwhile
            verdict = self.judge.dialled(to, upstream.address)
            if not verdict.allowed:
                upstream.sock.close()
                raise DeniedError(verdict)
        return upstream.sock

    async def _refuse(self, machine: socket.socket, to: Destination, verdict: Verdict) -> None:
        """Tell the machine what was denied before anything was said."""
        said = await self._what(machine)
        self._flows.denied(to, verdict, said)
        await refuse(machine, said, denial(to, verdict))

    async def _what(self, machine: socket.socket) -> Spoken | None:
        """Return what a machine speaks, if it does within a short time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REFUSING):
                found = await peek(machine, lambda data, ended: heard(data, ended=ended), MOST)
                return None if found is None else found.how
        return None


class _Upstreams:
    """The connections that are made for one of a machine's. One may be there ahead."""

    def __init__(self, make: Callable[[Destination], Awaitable[socket.socket]]) -> None:
        self._make = make
        self._ahead: socket.socket | None = None

    async def ahead(self, to: Destination) -> socket.socket:
        """Return the one that the next who asks will get."""
        if self._ahead is None:
            self._ahead = await self._make(to)
        return self._ahead

    async def next(self, to: Destination) -> socket.socket:
        """Return one, the caller's to close."""
        if self._ahead is not None:
            sock, self._ahead = self._ahead, None
            return sock
        return await self._make(to)

    def close(self) -> None:
        """Close what nobody asked for."""
        if self._ahead is not None:
            self._ahead.close()


async def _ungrouped(work: Awaitable[None]) -> None:
    """Do something with tasks of its own, and raise what one of them has raised as it is: what is
    told to the machine before an end that was reset."""
    try:
        await work
    except BaseExceptionGroup as group:
        told = group.subgroup((DeniedError, UnreachableError, RefusedError))
        raise _first(told or group) from None


def _first(group: BaseExceptionGroup) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _taken(machine: socket.socket) -> None:
    """Wait until the machine has taken all that was said to it. A connection that were closed
    before would be the kernel's alone, which gives up on it when the machine sleeps."""
    pause = 0.002
    while unacknowledged(machine):
        await asyncio.sleep(pause)
        pause = min(2 * pause, SLOWEST_LOOK)
