"""HTTP in the clear from a machine, request by request.

Each head is judged by itself, and each body followed to its end, so that nothing passes as a part
of one request that is another. What comes back is not read: all requests of a connection go to one
destination, over one connection, so answers are in order, and whatever they say is for the machine.
The one answer that matters is the one to an upgrade: only once it has said 101 is what follows no
request any more.
"""

import asyncio
import re
import socket

from torpor.network.flow import Flow
from torpor.network.heads import LARGEST, Head, HeadError, judge, whole
from torpor.network.readiness import readable
from torpor.network.relay import NoMoreError, carry_up, send_down, send_up
from torpor.network.turns import PIECE

HEAD_SECONDS = 15.0
"""How long the head of a request may take from its first byte on."""
ANSWER_SECONDS = 120.0
"""How long the answer to an upgrade may take."""

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t -~]*)?\r\n")
_TRAILER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*?)[ \t]*\r\n")
_LONGEST_LINE = 4 << 10
_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})[ \r]")
_HOP = frozenset(
    (
        b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate",
        b"proxy-authorization", b"te", b"upgrade", b"http2-settings", b"host",
        b"content-length", b"transfer-encoding",
    )
)  # fmt: skip
"""What is of one connection alone, and what is said anew here."""
_FRAMING = _HOP | {b"trailer", b"expect", b"authorization", b"cookie"}
"""What may not come behind a body (RFC 9110, 6.5.1)."""
_NOT_UPGRADES = re.compile(rb"h2|h2c|https?(?:/.*)?|tls(?:/.*)?", re.IGNORECASE)
"""What would make requests of what follows that nobody here could read."""


class BodyError(Exception):
    """A body that has no end which all would see at the same place."""


class Requests:
    """The requests on one connection, read from the machine."""

    def __init__(self, machine: socket.socket) -> None:
        self.machine = machine
        self._pending = b""
        """What was read and belongs to no request yet."""

    async def head(self) -> Head | None:
        """Return the next head, None at the end. Raises :exc:`HeadError`, and OSError when the
        machine has reset its connection."""
        if not self._pending and not await self._more():
            return None
        looked = 0
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                while True:
                    end = whole(self._pending, looked)
                    looked = len(self._pending)
                    if end is not None:
                        raw, self._pending = self._pending[:end], self._pending[end:]
                        return judge(raw)
                    if not await self._more():
                        raise HeadError(400, "the request ends within its head")
        except TimeoutError:
            raise HeadError(400, f"its head was not there after {HEAD_SECONDS:g} s") from None

    async def _more(self) -> bool:
        """Read more; return whether there was any."""
        while True:
            try:
                data = self.machine.recv(LARGEST)
            except BlockingIOError:
                await readable(self.machine)
                continue
            self._pending += data
            return bool(data)

    async def body(self, head: Head, upstream: socket.socket, flow: Flow) -> None:
        """Carry the body of a request. Raises :exc:`BodyError`, and what :func:`carry_up` does."""
        if head.length is not None:
            await self._carry(head.length, upstream, flow)
            return
        while size := await self._size():
            await self._send(b"%x\r\n" % size, upstream, flow)
            await self._carry(size, upstream, flow)
            if await self._line() != b"\r\n":
                raise BodyError("a chunk is longer than it says")
            await self._send(b"\r\n", upstream, flow)
        await self._send(b"0\r\n" + await self._trailers() + b"\r\n", upstream, flow)

    async def _carry(self, length: int, upstream: socket.socket, flow: Flow) -> None:
        if self._pending and length:
            piece, self._pending = self._pending[:length], self._pending[length:]
            length -= len(piece)
            await self._send(piece, upstream, flow)
        while length:
            count = await carry_up(self.machine, upstream, flow, min(length, PIECE))
            if not count:
                raise BodyError("it ends before its body does")
            length -= count

    async def _send(self, data: bytes, upstream: socket.socket, flow: Flow) -> None:
        flow.sent(len(data))
        await send_up(upstream, data)

    async def _size(self) -> int:
        found = _SIZE.fullmatch(await self._line())
        if found is None:
            raise BodyError("a chunk has no size")
        return int(found[1], 16)

    async def _trailers(self) -> bytes:
        passed = b""
        read = 0
        while (line := await self._line()) != b"\r\n":
            read += len(line)
            found = _TRAILER.fullmatch(line)
            if found is None or read > LARGEST:
                raise BodyError("what follows its body is no header")
            if found[1].lower() not in _FRAMING:
                passed += found[1] + b": " + found[2] + b"\r\n"
        return passed

    async def _line(self) -> bytes:
        """Return the next line, with its end."""
        while (end := self._pending.find(b"\n")) < 0:
            if len(self._pending) > _LONGEST_LINE:
                raise BodyError("a line in it is too long")
            if not await self._more():
                raise BodyError("it ends before its body does")
        line, self._pending = self._pending[: end + 1], self._pending[end + 1 :]
        if len(line) > _LONGEST_LINE:
            raise BodyError("a line in it is too long")
        return line

    async def rest(self, upstream: socket.socket, flow: Flow) -> None:
        """Carry what was read already and is no request any more."""
        if self._pending:
            data, self._pending = self._pending, b""
            await self._send(data, upstream, flow)


def upgrade_of(head: Head) -> bytes | None:
    """Return what a request wants its connection to become, None if nothing that may pass."""
    wanted = [value for name, value in head.headers if name == b"upgrade"]
    if len(wanted) != 1 or b"upgrade" not in _named(head) or head.version == 0:
        return None
    protocols = [each.strip() for each in wanted[0].split(b",")]
    passed = [each for each in protocols if each and not _NOT_UPGRADES.fullmatch(each)]
    return b", ".join(passed) or None


def written(head: Head) -> bytes:
    """Return a head as it goes on: the same request, without what is between two ends of one
    connection, said so that it can be read in one way only."""
    named = _named(head)
    lines = [f"{head.method} {head.target} HTTP/1.{head.version}".encode("ascii")]
    lines.append(b"host: " + head.authority.encode("latin-1"))
    lines += [
        name + b": " + value
        for name, value in head.headers
        if name not in _HOP and (name not in named or name == b"expect")
    ]
    connection: list[bytes] = [each for each in (b"close", b"keep-alive") if each in named]
    upgrade = upgrade_of(head)
    if upgrade is not None:
        lines.append(b"upgrade: " + upgrade)
        connection.append(b"upgrade")
    if connection:
        lines.append(b"connection: " + b", ".join(connection))
    if head.length is None:
        lines.append(b"transfer-encoding: chunked")
    elif any(name == b"content-length" for name, _ in head.headers):
        lines.append(b"content-length: %d" % head.length)
    return b"\r\n".join((*lines, b"", b""))


def _named(head: Head) -> set[bytes]:
    """Return what Connection names."""
    said = b",".join(value for name, value in head.headers if name == b"connection")
    return {each.strip().lower() for each in said.split(b",") if each.strip()}


def host_of(head: Head) -> tuple[str, int | None]:
    """Return the host that a request is for, in small letters and without a last dot, and its port
    if it names one."""
    host, colon, port = head.authority.lower().rpartition(":")
    if not colon or port.endswith("]"):
        host, port = head.authority.lower(), ""
    return host.strip("[]").removesuffix("."), int(port) if port else None


async def switched(upstream: socket.socket, machine: socket.socket, flow: Flow) -> bool:
    """Pass on answers until the one to an upgrade, which is the first on its connection, and return
    whether it says that what follows is no HTTP any more. Raises OSError and :exc:`NoMoreError`."""
    answer = b""
    while True:
        while (end := answer.find(b"\r\n\r\n")) < 0:
            if len(answer) > LARGEST:
                raise NoMoreError
            try:
                data = upstream.recv(LARGEST)
            except BlockingIOError:
                await readable(upstream)
                continue
            if not data:
                raise NoMoreError
            flow.received(len(data))
            answer += data
        found = _STATUS.match(answer)
        if found is None:
            raise NoMoreError
        informational = found[1].startswith(b"1") and found[1] != b"101"
        head, rest = answer[: end + 4], answer[end + 4 :]
        if not informational:
            await send_down(machine, answer, flow)
            return found[1] == b"101"
        await send_down(machine, head, flow)
        answer = rest
