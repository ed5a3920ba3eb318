"""One machine's UDP: flows between a port of the machine's and a destination, each over a socket of
its own to what was checked."""

import asyncio
import contextlib
import itertools
import socket
from collections import deque
from ipaddress import IPv4Address

from torpor.network.dial import DeniedError, NameOf, Resolve, UnreachableError, found
from torpor.network.flow import CutError, Flow
from torpor.network.flows import Flows
from torpor.network.limits import Rate
from torpor.network.packets import Place, datagram, nobody_listens
from torpor.network.readiness import readable
from torpor.network.verdicts import Destination, Judge, Verdict

ORIGINAL_DESTINATION = 20
"""IP_ORIGDSTADDR in linux/in.h: what came with it, as ``sockaddr_in``."""
QUIC = 443
WAITING = 16
"""Datagrams that wait while a flow is being made."""
LARGEST = 65535
REFUSED = 1.0
"""Seconds for which a denied flow is refused again without being told again."""


class Datagrams:
    """Serves one machine's datagrams. ``judge`` may be exchanged at any time."""

    def __init__(
        self,
        judge: Judge,
        name_of: NameOf,
        resolve: Resolve,
        flows: Flows,
        udp: socket.socket,
        raw: socket.socket,
    ) -> None:
        self.judge = judge
        self._name_of = name_of
        self._resolve = resolve
        self._flows = flows
        self._udp = udp
        self._raw = raw
        self._open: dict[tuple[Place, Place], _Datagrams] = {}
        self._refused: dict[tuple[Place, Place], float] = {}
        self._numbers = itertools.count(1)

    async def run(self) -> None:
        """Take what the machine sends, until this is cancelled."""
        rate = Rate(self._flows.limits.datagrams, self._flows.limits.datagrams)
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._flows.share.turn()
                try:
                    data, about, _, source = self._udp.recvmsg(LARGEST, 64)
                except BlockingIOError:
                    await readable(self._udp)
                    continue
                if (wait := rate.take()) > 0:
                    # What comes meanwhile waits in the socket, or is lost, as datagrams are.
                    await asyncio.sleep(wait)
                to = _destination(about)
                if to is not None:
                    self._take((IPv4Address(source[0]), source[1]), to, data, tasks)

    def _take(self, source: Place, to: Place, data: bytes, tasks: asyncio.TaskGroup) -> None:
        key = source, to
        there = self._open.get(key)
        if there is None:
            if self._was_refused(key):
                return
            destination = Destination(self._name_of(to[0]), to[0], to[1], "udp")
            verdict = self._may_begin(destination)
            if not verdict.allowed:
                self._flows.denied(destination, verdict)
                self._refuse(key)
                return
            there = self._open[key] = _Datagrams()
            tasks.create_task(self._serve(key, destination, verdict, there))
        there.take(data)

    def _may_begin(self, to: Destination) -> Verdict:
        limits = self._flows.limits
        if to.port == QUIC:
            why = "QUIC is refused, so that programs use TCP, where the wall sees names"
            return Verdict(False, "quic", why)
        if len(self._open) >= limits.flows:
            return Verdict(False, "limits", f"{limits.flows} flows are open, and no more may be")
        if self._flows.spending.all_spent:
            return Verdict(False, "limits", f"all {limits.total} bytes have been moved")
        return self.judge.destination(to)

    def _was_refused(self, key: tuple[Place, Place]) -> bool:
        """Say whether a flow was refused a moment ago, and refuse it again if so."""
        until = self._refused.get(key)
        if until is None or until < asyncio.get_running_loop().time():
            return False
        self._to_machine(nobody_listens(key[1], key[0]))
        return True

    def _refuse(self, key: tuple[Place, Place]) -> None:
        if len(self._refused) >= self._flows.limits.flows:
            self._refused.clear()
        self._refused[key] = asyncio.get_running_loop().time() + REFUSED
        self._to_machine(nobody_listens(key[1], key[0]))

    async def _serve(
        self, key: tuple[Place, Place], to: Destination, verdict: Verdict, there: "_Datagrams"
    ) -> None:
        """Serve one flow, to its end."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._open.pop, key)
            flow = stack.enter_context(self._flows.opened(to, verdict))
            flow.watch(self._flows.limits.flow_idle)
            try:
                upstream = stack.enter_context(await self._connected(to, flow))
                self._flows.begun(flow)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._upward(there, upstream, flow))
                    await self._downward(upstream, key, flow)
            except DeniedError as error:
                flow.deny(error.verdict)
                self._refuse(key)
            except UnreachableError as error:
                flow.reason = str(error)
                self._refuse(key)
            except BaseExceptionGroup as group:
                ended, others = group.split((OSError, CutError))
                if others is not None:
                    raise
                assert ended is not None
                flow.reason = flow.reason or str(ended.exceptions[0])
                self._to_machine(nobody_listens(key[1], key[0]))

    async def _connected(self, to: Destination, flow: Flow) -> socket.socket:
        """Return a socket that sends to what was checked, and takes from it alone."""
        judge = self.judge
        (address, _), *_ = await found(to, judge, self._resolve)
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        upstream = socket.socket(family, kind)
        try:
            upstream.connect((str(address), to.port))
            if upstream.getsockname()[0] == upstream.getpeername()[0]:
                raise DeniedError(Verdict(False, "own", f"{address} is this host itself"))
            now = self.judge.dialled(to, address)
            if not now.allowed:  # the policy was changed meanwhile
                raise DeniedError(now)
        except OSError as error:
            upstream.close()
            raise UnreachableError(f"There is no way to {address}: {error.strerror}.") from error
        except BaseException:
            upstream.close()
            raise
        flow.address = address
        return upstream

    async def _upward(self, there: "_Datagrams", upstream: socket.socket, flow: Flow) -> None:
        while True:
            data = await there.next()
            flow.sent(len(data))
            # What does not fit now is lost, as datagrams are; what is refused is heard below.
            with contextlib.suppress(OSError):
                upstream.send(data)
            if flow.owes:
                await flow.pay()

    async def _downward(
        self, upstream: socket.socket, key: tuple[Place, Place], flow: Flow
    ) -> None:
        machine, source = key
        while True:
            await flow.turn()
            try:
                data = upstream.recv(LARGEST)
            except BlockingIOError:
                await readable(upstream)
                continue
            except ConnectionRefusedError:
                self._to_machine(nobody_listens(source, machine))
                continue
            if flow.hold.asleep():
                continue  # nobody is there to take it
            flow.received(len(data))
            for packet in datagram(source, machine, data, next(self._numbers)):
                self._to_machine(packet)
            if flow.owes:
                await flow.pay()

    def _to_machine(self, packet: bytes) -> None:
        to = socket.inet_ntoa(packet[16:20])
        with contextlib.suppress(OSError):  # its queue is full: lost, as datagrams are
            self._raw.sendto(packet, (to, 0))


class _Datagrams:
    """What the machine has sent on a flow and has not gone on yet; the oldest are kept."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._some = asyncio.Event()

    def take(self, data: bytes) -> None:
        if len(self._waiting) < WAITING:
            self._waiting.append(data)
            self._some.set()

    async def next(self) -> bytes:
        while not self._waiting:
            self._some.clear()
            await self._some.wait()
        return self._waiting.popleft()


def _destination(about: list[tuple[int, int, bytes]]) -> Place | None:
    """Return where a datagram was sent to."""
    for level, kind, data in about:
        if (level, kind) == (socket.IPPROTO_IP, ORIGINAL_DESTINATION):
            return IPv4Address(data[4:8]), int.from_bytes(data[2:4])
    return None
