"""A ClientHello: what a client says in the clear when it begins TLS (RFC 8446, 4.1.2; RFC 6066, 3).

Read as strictly as a server reads it, so that none takes another name from it than is found here.
What has no name, two names or two extensions of one kind has no second reading: it is refused.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

LARGEST = 16 << 10
"""Bytes of a whole hello. One with keys against quantum computers has about 2 KiB."""

_HANDSHAKE, _CLIENT_HELLO = 22, 1
_RECORD = 5
_LARGEST_RECORD = 1 << 14
_MOST_RECORDS = 64
_SERVER_NAME, _ALPN = 0, 16
_ENCRYPTED = frozenset((0xFE0D, 0xFFCE))
"""Encrypted ClientHello, and the draft before it that encrypted the name alone."""
_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(?:\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*")


class HelloError(Exception):
    """What was said is no ClientHello that can be read in one way only."""


@dataclass(frozen=True)
class Hello:
    """What a hello says: the ``name`` of the server in small letters, or None if it says none; the
    protocols that it offers (ALPN); whether there is an encrypted hello in it, or what looks like
    one (browsers send noise of that form, which cannot be told from it)."""

    name: str | None
    protocols: tuple[bytes, ...]
    encrypted: bool


def looks_like_tls(data: bytes) -> bool:
    """Say whether bytes begin as a TLS record does, of any kind: a server that takes what comes
    before a hello for noise would else be told another name behind it."""
    return bool(data) and 20 <= data[0] <= 24 and (len(data) < 2 or data[1] == 3)


def parse(data: bytes) -> Hello | None:
    """Return what a hello at the beginning of ``data`` says, None if it is not all there yet.
    Raises :exc:`HelloError`."""
    message = _message(data)
    return None if message is None else _hello(_Reader(message))


def _message(data: bytes) -> bytes | None:
    """Return the body of the first handshake message, put together from its records."""
    message = b""
    for number, (piece, whole) in enumerate(_records(data)):
        message += piece
        if number >= _MOST_RECORDS:
            raise HelloError("the hello comes in too many records")
        if message and message[0] != _CLIENT_HELLO:
            raise HelloError("the first message is no ClientHello")
        if len(message) < 4:
            continue
        wanted = 4 + int.from_bytes(message[1:4])
        if wanted > LARGEST:
            raise HelloError("the hello is too large")
        if len(message) > wanted or (len(message) == wanted and not whole):
            # A hello ends its record (RFC 8446, 5.1).
            raise HelloError("something follows the hello in its record")
        if len(message) == wanted:
            return message[4:]
    return None


def _records(data: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yield what there is of each record of a handshake, and whether that is all of it."""
    while data:
        if data[0] != _HANDSHAKE:
            raise HelloError("the first record is no handshake")
        if len(data) > 1 and data[1] != 3:
            raise HelloError("this is no version of TLS")
        if len(data) < _RECORD:
            return
        length = int.from_bytes(data[3:_RECORD])
        if not 0 < length <= _LARGEST_RECORD:
            raise HelloError("a record has a length that none has")
        piece, data = data[_RECORD : _RECORD + length], data[_RECORD + length :]
        yield piece, len(piece) == length


class _Reader:
    """Takes fields from the front; what goes beyond the end is an error."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    def __bool__(self) -> bool:
        return self._place < len(self._data)

    def take(self, count: int) -> bytes:
        end = self._place + count
        if end > len(self._data):
            raise HelloError("a field goes beyond what it is in")
        found = self._data[self._place : end]
        self._place = end
        return found

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def vector(self, size: int, least: int = 0, most: int = 1 << 16) -> bytes:
        """Take a vector whose length stands before it in ``size`` bytes."""
        length = self.number(size)
        if not least <= length <= most:
            raise HelloError("a field has a length that it may not have")
        return self.take(length)


def _hello(reader: _Reader) -> Hello:
    if reader.number(2) >> 8 != 3:
        raise HelloError("this is no version of TLS")
    reader.take(32)
    reader.vector(1, most=32)  # the session
    if len(reader.vector(2, least=2)) % 2:
        raise HelloError("half a cipher suite is none")
    reader.vector(1, least=1)  # compression
    if not reader:
        return Hello(None, (), False)  # TLS 1.2 may have no extensions at all
    extensions = _extensions(_Reader(reader.vector(2)))
    if reader:
        raise HelloError("something follows the extensions")
    name = extensions.get(_SERVER_NAME)
    protocols = extensions.get(_ALPN)
    return Hello(
        None if name is None else _name(name),
        () if protocols is None else _protocols(protocols),
        any(kind in extensions for kind in _ENCRYPTED),
    )


def _extensions(reader: _Reader) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    while reader:
        kind = reader.number(2)
        if kind in found:
            raise HelloError("an extension is there twice")
        found[kind] = reader.vector(2)
    return found


def _name(data: bytes) -> str:
    outer = _Reader(data)
    inner = _Reader(outer.vector(2, least=1))
    if outer:
        raise HelloError("something follows the names")
    if inner.number(1) != 0:
        raise HelloError("a name is of a kind that there is not")
    try:
        name = inner.vector(2, least=1, most=255).decode("ascii")
    except UnicodeDecodeError:
        raise HelloError("a name is not ASCII") from None
    if inner:
        raise HelloError("there are two names")
    if not _NAME.fullmatch(name):
        raise HelloError("a name is none")
    return name.lower()


def _protocols(data: bytes) -> tuple[bytes, ...]:
    outer = _Reader(data)
    inner = _Reader(outer.vector(2, least=2))
    if outer:
        raise HelloError("something follows the protocols")
    found = []
    while inner:
        found.append(inner.vector(1, least=1))
    return tuple(found)
