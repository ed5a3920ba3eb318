"""GOAWAY frames (RFC 9113, 6.8), kept from h2: it takes one for the end of the connection, also of
the streams that were begun before it, and those are to be served to their end."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

HEAD = 9
LARGEST = 16 << 10
"""Bytes of a frame that we accept; h2 tells whoever sends a larger one."""
PREFACE = len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
GOAWAY = 7
EVERY_STREAM = (1 << 31) - 1


@dataclass(frozen=True)
class GoingAway:
    """The other side serves no stream above ``last``; ``code`` 0 is no error."""

    last: int
    code: int


class Frames:
    """Cuts what comes of one side into what is for h2, and what is GOAWAY."""

    def __init__(self, *, with_preface: bool) -> None:
        self._kept = b""
        self._preface = PREFACE if with_preface else 0

    def feed(self, data: bytes) -> Iterator[bytes | GoingAway]:
        """Take bytes in, and yield them as far as they are whole frames."""
        data = self._kept + data
        at = 0
        if self._preface:
            at = min(self._preface, len(data))
            self._preface -= at
        start = 0
        while len(data) - at >= HEAD:
            length = int.from_bytes(data[at : at + 3], "big")
            if length > LARGEST:
                at = len(data)
                break
            if len(data) - at < HEAD + length:
                break
            if data[at + 3] == GOAWAY and length >= 8 and data[at + 5 : at + 9] == bytes(4):
                if at > start:
                    yield data[start:at]
                last, code = struct.unpack_from("!II", data, at + HEAD)
                yield GoingAway(last & EVERY_STREAM, code)
                start = at + HEAD + length
            at += HEAD + length
        self._kept = data[at:]
        if at > start:
            yield data[start:at]


def going_away(last: int, code: int = 0) -> bytes:
    """Return the frame that says so."""
    return (8).to_bytes(3, "big") + bytes([GOAWAY, 0, 0, 0, 0, 0]) + struct.pack("!II", last, code)
