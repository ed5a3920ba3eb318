"""How a machine is told that it may not, or that there is no way: so that whoever reads it knows
what to do. Its other end gets nothing."""

import asyncio
import contextlib
import socket
from dataclasses import dataclass

from torpor.network.readiness import writable
from torpor.network.relay import linger
from torpor.network.verdicts import Destination, Spoken, Verdict

ACCESS_DENIED = b"\x15\x03\x03\x00\x02\x02\x31"
"""A fatal alert, before there are any keys (RFC 8446, 6.2)."""
INTERNAL_ERROR = b"\x15\x03\x03\x00\x02\x02\x50"
SECONDS = 2.0
_REASONS = {
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    417: "Expectation Failed",
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    502: "Bad Gateway",
    505: "HTTP Version Not Supported",
}


@dataclass(frozen=True)
class Answer:
    """What is said over HTTP: a ``status`` and plain text. Programs find the rule that would allow
    it in the header ``torpor-add``."""

    status: int
    text: str
    add: str = ""

    def encoded(self) -> bytes:
        """Return the whole answer, after which the connection ends."""
        body = f"{self.text}\n".encode()
        lines = [
            f"HTTP/1.1 {self.status} {_REASONS.get(self.status, 'Refused')}",
            "content-type: text/plain; charset=utf-8",
            f"content-length: {len(body)}",
            "cache-control: no-store",
            "connection: close",
            "server: torpor",
        ]
        if self.add:
            lines.append(f"torpor-add: {self.add}")
        return "\r\n".join((*lines, "", "")).encode() + body


def denial(to: Destination, verdict: Verdict, status: int = 403) -> Answer:
    """Return what is said of a verdict: the reason, and the rule to add."""
    place = f"{to.name or to.address}:{to.port}"
    why = verdict.why or "nothing allows it"
    text = f"Torpor did not let this through to {place}: {why}."
    if verdict.add:
        text += f" A rule that would: {verdict.add}"
    return Answer(status, text, verdict.add)


async def refuse(machine: socket.socket, how: Spoken | None, answer: Answer) -> None:
    """Tell the machine in what it speaks, as far as that has a word for it. Else what remains is
    the reset with which its connection is closed."""
    if how == "tls":
        denied = answer.status != 502
        await say(machine, ACCESS_DENIED if denied else INTERNAL_ERROR)
    elif how == "http":
        await say(machine, answer.encoded())


async def say(machine: socket.socket, data: bytes) -> None:
    """Send the last that is said on a connection, and see that it arrives."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(SECONDS):
            left = memoryview(data)
            while left:
                try:
                    left = left[machine.send(left) :]
                except BlockingIOError:
                    await writable(machine)
        await linger(machine)
