"""What a machine's first bytes on a connection are, before any of them goes on.

Nothing is decided by silence. Whoever may speak anything but TLS and HTTP to a place is still heard
until what it speaks is certain, for what begins as something else could go on as a request for
another host.
"""

import re
from dataclasses import dataclass

from torpor.network.hello import Hello, HelloError, looks_like_tls, parse
from torpor.network.verdicts import Spoken

LINE = 8 << 10
"""Bytes of text without a line end that begin no HTTP request any more."""
MOST = 32 << 10
"""Bytes that are enough to be certain."""

_BINARY = re.compile(rb"[^\t\r -~]")
_WORD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}(?:[ \t]|$)")
_BEGINNING = b"\r\n \t"
"""What servers skip before a request."""
_OLD = re.compile(rb"(?:GET|HEAD|POST)[ \t]+/")
"""HTTP/0.9, which names no version."""
_VERSION = re.compile(rb"HTTP/[0-9]", re.IGNORECASE)


@dataclass(frozen=True)
class Heard:
    """What is spoken: for TLS with its ``hello``, or a ``problem`` if it has none that can be
    read."""

    how: Spoken
    hello: Hello | None = None
    problem: str = ""

    @property
    def said(self) -> str | None:
        """The name that was said, if one was."""
        return self.hello.name if self.hello is not None else None


def heard(data: bytes, *, ended: bool = False) -> Heard | None:
    """Return what bytes from the beginning of a connection are, None if that is not certain yet.
    ``ended``: nothing follows."""
    if looks_like_tls(data):
        if len(data) == 1 and not ended:
            return None  # the second byte tells TLS from what begins with the same one
        try:
            hello = parse(data)
        except HelloError as error:
            return Heard("tls", problem=str(error))
        if hello is not None:
            return Heard("tls", hello)
        return Heard("tls", problem="the hello was cut off") if ended else None
    http = _is_http(data)
    if http:
        return Heard("http")
    return Heard("raw") if http is False or ended else None


def _is_http(data: bytes) -> bool | None:
    """Say whether this begins an HTTP request, None if it may yet. What a lenient server could take
    for one, with control characters in its first line for example, is one here."""
    start = data.lstrip(_BEGINNING)
    if not start:
        return None if len(data) < LINE else False
    line, end, _ = start.partition(b"\n")
    binary = None if _WORD.match(line) else _BINARY.search(line)
    text = line if binary is None else line[: binary.start()]
    if _VERSION.search(text) or (end and _OLD.match(text)):
        return True
    return False if end or binary is not None or len(line) >= LINE else None
