"""The frames that cross the guest channel, version 1 (``docs/channel.md`` has them byte by byte).

The channel is one virtio-serial port: a byte stream that loses what is sent before the guest has
opened the port, and that a snapshot can cut anywhere. So a frame must be recognisable with no
knowledge of what came before. Frames end with a byte that occurs nowhere inside them (the
byte-stuffing of HDLC, RFC 1662 section 4.2) and carry a CRC-32: a receiver that starts in the
middle skips to the next flag, and a frame cut in two fails its checksum.

    frame   := stuffed(body + crc32(body) as u32) 0x7e
    body    := kind u8, stream u32, payload         (integers are little-endian)
    stuffed := 0x7d -> 0x7d 0x5d, 0x7e -> 0x7d 0x5e

On top of frames lie *epochs*: each time the host attaches it sends HELLO with a random epoch, again
and again until WELCOME echoes it; what either side receives before that belongs to an earlier
attachment and is dropped.
"""

import json
import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

VERSION = 1
FLAG = b"\x7e"
MAX_BODY = 1 << 20
"""Largest body in bytes that a receiver takes; what is longer is dropped, so that a peer which
never sends a flag cannot fill memory."""
MAX_CHUNK = 128 << 10
"""Largest run of stream or file bytes that a sender puts into one frame, so that streams take
turns."""

_HEAD = struct.Struct("<BI")
_CRC = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_CHUNK = struct.Struct("<QB")
_ESCAPED = {b"\x5d": b"\x7d", b"\x5e": b"\x7e"}


class Kind(IntEnum):
    """What a frame is; the direction is host to guest (h), guest to host (g) or both."""

    HELLO = 1  # h: {"version", "epoch"}
    WELCOME = 2  # g: {"version", "epoch", "boot_id", "agent_id", "mono_ns"}
    REQUEST = 3  # h: document + blob; stream is the request's number
    REPLY = 4  # g: document + blob, or {"error": {"code", "message"}}
    CHUNK = 5  # both: u64 sequence number of the first byte, u8 source, bytes
    ACK = 6  # both: u64 sequence number up to which all was consumed
    END = 7  # g: {"exit", "signal", "bytes"}; h: standard input ends at {"bytes"}
    BORN = 9  # g: an agent has started, which knows nothing of what went before; no payload
    GAP = 8  # g: {"from", "to"}: bytes of a stream that are no longer kept


class Frame(NamedTuple):
    """One frame, checked and unstuffed."""

    kind: int
    stream: int
    payload: bytes


class Chunk(NamedTuple):
    """A run of stream bytes; ``seq`` counts bytes from 0 over all sources of the stream."""

    seq: int
    source: int
    data: bytes


class WireError(ValueError):
    """A payload that does not have the form its kind promises."""


def _finite(text: str) -> float:
    number = float(text)
    if not -float("inf") < number < float("inf"):
        raise WireError(f"{text} is no number")
    return number


# Python's JSON takes NaN, Infinity and 1e999, which int() then answers with other errors.
_JSON = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def encode(kind: int, stream: int, payload: bytes = b"") -> bytes:
    """Return the bytes of one frame, its flag included."""
    body = _HEAD.pack(kind, stream) + payload
    body += _CRC.pack(zlib.crc32(body))
    return body.replace(b"\x7d", b"\x7d\x5d").replace(b"\x7e", b"\x7d\x5e") + FLAG


def document(value: dict[str, Any], blob: bytes = b"") -> bytes:
    """Return a payload of a JSON object and raw bytes: u32 length of the JSON, JSON, bytes."""
    text = json.dumps(value, separators=(",", ":")).encode()
    return _CRC.pack(len(text)) + text + blob


def parse_document(payload: bytes) -> tuple[dict[str, Any], bytes]:
    """Take apart what :func:`document` made. Raises :exc:`WireError`."""
    try:
        (length,) = _CRC.unpack_from(payload)
        if length > len(payload) - _CRC.size:
            raise WireError("the document is longer than its frame")
        value = _JSON.decode(payload[_CRC.size : _CRC.size + length].decode())
    except (struct.error, ValueError, RecursionError) as error:
        raise WireError(f"not a document: {error}") from None
    if not isinstance(value, dict):
        raise WireError("a document is a JSON object")
    return value, payload[_CRC.size + length :]


def chunk(seq: int, source: int, data: bytes) -> bytes:
    """Return the payload of a CHUNK."""
    return _CHUNK.pack(seq, source) + data


def parse_chunk(payload: bytes) -> Chunk:
    """Take apart what :func:`chunk` made. Raises :exc:`WireError`."""
    try:
        seq, source = _CHUNK.unpack_from(payload)
    except struct.error:
        raise WireError("a chunk without its sequence number") from None
    return Chunk(seq, source, payload[_CHUNK.size :])


def ack(seq: int) -> bytes:
    """Return the payload of an ACK."""
    return _U64.pack(seq)


def parse_ack(payload: bytes) -> int:
    """Take apart what :func:`ack` made. Raises :exc:`WireError`."""
    try:
        return int(_U64.unpack(payload)[0])
    except struct.error:
        raise WireError("an acknowledgement is eight bytes") from None


class Decoder:
    """Bytes in, whole frames out; anything cut, damaged or oversized is dropped and counted."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._skipping = False
        self.dropped = 0

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that ``data`` completes."""
        *ended, rest = data.split(FLAG)
        for piece in ended:
            if not piece and not self._buffer and not self._skipping:
                continue  # a flag after a flag: a flood of them is to cost little
            self._buffer += piece
            frame = None if self._skipping else _unstuff(bytes(self._buffer))
            if frame is not None:
                yield frame
            elif self._buffer or self._skipping:
                self.dropped += 1
            self._buffer.clear()
            self._skipping = False
        if self._skipping:
            return
        self._buffer += rest
        if len(self._buffer) > 2 * (MAX_BODY + _HEAD.size + _CRC.size):
            self._buffer.clear()
            self._skipping = True


def _unescape(stuffed: bytes) -> bytes:
    """Undo the stuffing; nothing if an escape is none.

    Pieces are looked up: to replace the two-byte escapes in two passes takes 2 times as long on
    random bytes, and 5 times on text, for the search for two bytes is no memchr(3).
    """
    first, *escaped = stuffed.split(b"\x7d")
    try:
        return b"".join([first, *[_ESCAPED[piece[:1]] + piece[1:] for piece in escaped]])
    except KeyError:
        return b""


def _unstuff(stuffed: bytes) -> Frame | None:
    body = _unescape(stuffed)
    if not _HEAD.size + _CRC.size <= len(body) <= MAX_BODY + _HEAD.size + _CRC.size:
        return None
    view = memoryview(body)[: -_CRC.size]
    if zlib.crc32(view) != _CRC.unpack_from(body, len(view))[0]:
        return None
    kind, stream = _HEAD.unpack_from(body)
    return Frame(kind, stream, bytes(view[_HEAD.size :]))
