"""Echoes: a value of a secret that comes back is made unreadable before the machine sees it.

Each byte of it becomes a star, so that lengths that were announced before stay true. It is found
over the borders of pieces, and no more is held back than what may yet turn out to be its beginning:
an event of a stream is not kept waiting for the next one. For the same reason a beginning of less
than four bytes is shown: many a message ends with such a one by chance, and its sender may wait for
an answer before it sends more.
"""

import base64
import html
import json
import re
from collections.abc import Iterable

STAR = b"*"
SHORTEST_HELD = 4
"""Bytes of a beginning that is held back."""


class Redactor:
    """Takes values out of one stream of bytes."""

    def __init__(self, values: Iterable[str]) -> None:
        self._echoes = [_Echoes(each) for each in dict.fromkeys(values)]
        self._kept = b""
        self._shown = b""
        self._sent = 0
        self.found = 0
        """How many were found; one that is found in two spellings at once counts twice."""

    def feed(self, piece: bytes) -> bytes:
        """Take a piece in, and return what can be shown of it and those before."""
        if not self._echoes:
            return piece
        data = self._kept + piece
        shown = self._redacted(data, self._shown + piece)
        begun = max(each.beginning_at_end(data) for each in self._echoes)
        # What may be its beginning is looked at again with what follows, also if it was shown.
        until = max(self._sent, len(data) - (begun if begun >= SHORTEST_HELD else 0))
        shows = shown[self._sent : until]
        self._kept, self._shown = data[len(data) - begun :], shown[len(data) - begun :]
        self._sent = until - (len(data) - begun)
        return shows

    def end(self) -> bytes:
        """Return what was held back: nothing comes after it."""
        shown, self._kept, self._shown = self._shown[self._sent :], b"", b""
        self._sent = 0
        return shown

    def whole(self, data: bytes) -> bytes:
        """Return something that is no part of the stream, as a header's value, redacted."""
        return self._redacted(data, data) if self._echoes else data

    def _redacted(self, data: bytes, shown: bytes) -> bytes:
        spans = [span for each in self._echoes for span in each.spans(data)]
        if not spans:
            return shown
        self.found += len(spans)
        stars = bytearray(shown)
        for start, end in spans:
            stars[start:end] = STAR * (end - start)
        return bytes(stars)


class _Echoes:
    """The spellings of one value."""

    def __init__(self, value: str) -> None:
        self._value = value.encode()
        spellings = {
            self._value,
            json.dumps(value)[1:-1].encode(),
            html.escape(value).encode(),
            self._value.hex().encode(),
            self._value.hex().upper().encode(),
            *_base64(self._value),
        }
        self._spellings = sorted(spellings)
        tokens = (_percent(byte) for byte in self._value)
        self._percent = re.compile(b"".join(tokens))
        self._longest = max(3 * len(self._value), *map(len, self._spellings))

    def spans(self, data: bytes) -> Iterable[tuple[int, int]]:
        """Yield where it is, overlaps too."""
        for each in self._spellings:
            at = data.find(each)
            while at >= 0:
                yield at, at + len(each)
                at = data.find(each, at + 1)
        if b"%" in data or b"+" in data:
            found = self._percent.search(data)
            while found is not None:
                yield found.span()
                found = self._percent.search(data, found.start() + 1)

    def beginning_at_end(self, data: bytes) -> int:
        """Return how many bytes at the end may be the beginning of it, and are not all of it."""
        tail = data[max(0, len(data) - self._longest + 1) :]
        most = 0
        for each in self._spellings:
            at = tail.find(each[:1], max(0, len(tail) - len(each) + 1))
            while 0 <= at < len(tail) - most:
                if each.startswith(tail[at:]):
                    most = len(tail) - at
                    break
                at = tail.find(each[:1], at + 1)
        for at in range(len(tail) - most):
            if tail[at] in (0x25, 0x2B, self._value[0]) and self._begins(tail[at:]):
                return len(tail) - at
        return most

    def _begins(self, data: bytes) -> bool:
        """Say whether data is the beginning of a percent-encoded spelling."""
        at = 0
        for byte in self._value:
            if at >= len(data):
                return True
            rest = data[at : at + 3]
            if rest[:1] == b"%" and (len(rest) < 3 or byte != 0x25 or rest[1:] == b"25"):
                if not (b"%%%02x" % byte).startswith(rest.lower()):
                    return False
                at += 3
            elif rest[0] == byte or (byte == 0x20 and rest[0] == 0x2B):
                at += 1
            else:
                return False
        return at > len(data)


def _percent(byte: int) -> bytes:
    """Return the pattern of a byte as it stands in a URL: some clients encode all, some little."""
    coded = b"".join(b"[%c%c]" % pair for pair in zip(b"%02x" % byte, b"%02X" % byte, strict=True))
    plain = rb"[ +]" if byte == 0x20 else re.escape(bytes([byte]))
    return b"(?:%" + coded + b"|" + plain + b")"


def _base64(value: bytes) -> Iterable[bytes]:
    """Yield what base64 makes of a value wherever it stands in what is encoded: all characters
    that depend on it alone."""
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + value)
        first, last = -(-8 * before // 6), 8 * (before + len(value)) // 6
        whole = encoded[first:last]
        yield whole
        yield whole.translate(bytes.maketrans(b"+/", b"-_"))
