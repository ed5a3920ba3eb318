import json
import struct
import zlib
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from torpor.guest import wire
from torpor.guest.wire import Decoder, Frame, Kind

bounded = settings(max_examples=100, derandomize=True)

# Bytes that the stuffing is about, among others.
payloads = st.binary(max_size=200) | st.lists(
    st.sampled_from([b"\x7d", b"\x7e", b"\x5d", b"\x5e", b"\x00", b"x"]), max_size=60
).map(b"".join)
frames = st.lists(
    st.builds(Frame, st.integers(0, 255), st.integers(0, 2**32 - 1), payloads), max_size=8
)


def encoded(sent: list[Frame]) -> bytes:
    return b"".join(wire.encode(*frame) for frame in sent)


def decoded(*pieces: bytes) -> list[Frame]:
    decoder = Decoder()
    return [frame for piece in pieces for frame in decoder.feed(piece)]


def is_subsequence(part: list[Frame], whole: list[Frame]) -> bool:
    rest = iter(whole)
    return all(frame in rest for frame in part)


def pack(text: bytes, blob: bytes = b"") -> bytes:
    return struct.pack("<I", len(text)) + text + blob


@bounded
@given(frames, st.data())
def test_frames_arrive_however_the_stream_is_split(sent: list[Frame], data: st.DataObject) -> None:
    stream = encoded(sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    edges = [0, *cuts, len(stream)]
    assert decoded(*(stream[a:b] for a, b in pairwise(edges))) == sent
    assert decoded(*(bytes([byte]) for byte in stream)) == sent


@bounded
@given(frames)
def test_the_flag_is_nowhere_but_at_the_end(sent: list[Frame]) -> None:
    for frame in sent:
        assert wire.encode(*frame).count(wire.FLAG) == 1
    assert encoded(sent).count(wire.FLAG) == len(sent)


@bounded
@given(frames, frames, frames, st.data())
def test_a_frame_cut_anywhere_takes_at_most_the_next_one_with_it(
    before: list[Frame], cut: list[Frame], after: list[Frame], data: st.DataObject
) -> None:
    broken = encoded(cut[:1])
    broken = broken[: data.draw(st.integers(0, len(broken)))]
    seen = decoded(encoded(before) + broken + encoded(after))
    assert seen[: len(before)] == before
    assert is_subsequence(seen, [*before, *cut[:1], *after])
    assert seen[len(seen) - max(0, len(after) - 1) :] == after[1:]
    # With a flag before it, as each attachment begins, nothing of the new is lost.
    seen = decoded(encoded(before) + broken + wire.FLAG + encoded(after))
    assert seen[len(seen) - len(after) :] == after


@bounded
@given(frames, st.data())
def test_a_decoder_that_starts_in_the_middle_loses_the_first_frame_only(
    sent: list[Frame], data: st.DataObject
) -> None:
    first = encoded(sent[:1])
    start = data.draw(st.integers(0, max(0, len(first) - 1)))
    seen = decoded(first[start:] + encoded(sent[1:]))
    assert seen in (sent[1:], sent)


@bounded
@given(frames, st.data())
def test_flipped_bits_never_make_a_frame_that_was_not_sent(
    sent: list[Frame], data: st.DataObject
) -> None:
    stream = bytearray(encoded(sent))
    for place in (
        data.draw(st.lists(st.integers(0, 8 * len(stream) - 1), max_size=6)) if stream else ()
    ):
        stream[place // 8] ^= 1 << place % 8
    assert is_subsequence(decoded(bytes(stream)), sent)


def test_every_single_flipped_bit_is_noticed() -> None:
    frame = Frame(Kind.CHUNK, 7, b"\x7d\x7e output \x00")
    stream = wire.encode(*frame)
    for place in range(8 * len(stream)):
        broken = bytearray(stream)
        broken[place // 8] ^= 1 << place % 8
        assert decoded(bytes(broken)) == []


@bounded
@given(st.binary(max_size=400))
def test_noise_is_dropped_and_what_follows_is_read(noise: bytes) -> None:
    after = Frame(Kind.REPLY, 1, b"all is well")
    assert decoded(noise + wire.FLAG + wire.encode(*after)) == [after]


def test_dropped_frames_are_counted() -> None:
    decoder = Decoder()
    good = wire.encode(Kind.ACK, 1, wire.ack(5))
    list(decoder.feed(good[3:] + good + b"\x7e\x7e\x7e" + good[:4] + b"\x7e"))
    assert decoder.dropped == 2


@pytest.mark.parametrize("fill", [b"x", b"\x7d", b"\x7d\x5d"])
def test_the_largest_body_arrives_and_a_larger_one_does_not(fill: bytes) -> None:
    largest = (fill * wire.MAX_BODY)[: wire.MAX_BODY]
    after = Frame(1, 2, b"after")
    assert decoded(wire.encode(1, 1, largest)) == [Frame(1, 1, largest)]
    assert decoded(wire.encode(1, 1, largest + b"x") + wire.encode(*after)) == [after]


def test_a_peer_that_never_ends_a_frame_cannot_fill_memory() -> None:
    decoder = Decoder()
    for _ in range(100):
        assert list(decoder.feed(b"x" * (1 << 20))) == []
        assert len(decoder._buffer) < 4 * wire.MAX_BODY
    after = Frame(1, 2, b"after")
    assert list(decoder.feed(wire.FLAG + wire.encode(*after))) == [after]
    assert decoder.dropped == 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@bounded
@given(st.dictionaries(st.text(), json_values, max_size=5), st.binary(max_size=50))
def test_documents_come_back_with_their_bytes(value: dict[str, Any], blob: bytes) -> None:
    assert wire.parse_document(wire.document(value, blob)) == (value, blob)


def test_names_of_files_that_are_not_unicode_cross_in_documents() -> None:
    name = b"/tmp/\xff\xfe".decode("utf-8", "surrogateescape")
    assert wire.parse_document(wire.document({"path": name}))[0] == {"path": name}


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\1\0",
        struct.pack("<I", 5) + b"{}",
        struct.pack("<I", 2**32 - 1) + b"{}",
        pack(b""),
        pack(b"{"),
        pack(b"[]"),
        pack(b"null"),
        pack(b'"text"'),
        pack(b"7"),
        pack(b"{}{}"),
        pack(b"\xff"),
        pack('{"a":1}'.encode("utf-16")),
        pack(b'{"a":NaN}'),
        pack(b'{"a":Infinity}'),
        pack(b'{"a":-Infinity}'),
        pack(b'{"a":1e999}'),
        pack(b'{"a":-1e999}'),
        pack(b'{"a":' + b"9" * 5000 + b"}"),
        pack(b'{"a":' * 100_000),
        pack(b"[" * 1_000_000),
        pack(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    ],
    ids=range(22),
)
def test_what_is_no_document_is_one_kind_of_error(payload: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.parse_document(payload)


@bounded
@given(st.binary(max_size=100))
@example(pack(b'{"a":1}')[:-1])
def test_any_payload_is_parsed_or_refused(payload: bytes) -> None:
    for parse in (wire.parse_document, wire.parse_chunk, wire.parse_ack):
        try:
            parse(payload)
        except wire.WireError:
            continue


@bounded
@given(st.integers(0, 2**64 - 1), st.integers(0, 255), st.binary(max_size=50))
def test_chunks_and_acknowledgements_come_back(seq: int, source: int, data: bytes) -> None:
    assert wire.parse_chunk(wire.chunk(seq, source, data)) == (seq, source, data)
    assert wire.parse_ack(wire.ack(seq)) == seq


def test_the_format_is_the_documented_one() -> None:
    body = b"\x05" + b"\x7e\0\0\0" + b"data"
    body += struct.pack("<I", zlib.crc32(body))
    stuffed = body.replace(b"\x7d", b"\x7d\x5d").replace(b"\x7e", b"\x7d\x5e")
    assert wire.encode(Kind.CHUNK, 0x7E, b"data") == stuffed + b"\x7e"
    text = json.dumps({"a": 1}, separators=(",", ":")).encode()
    assert wire.document({"a": 1}, b"blob") == pack(text, b"blob")
