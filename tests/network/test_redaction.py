"""Echoes of secrets: none is left, however it is spelt and cut, and nothing else is touched."""

import base64
import html
import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torpor.network.redaction import Redactor

VALUE = "s3cr3t <v@lue>/+ %&\"'\\"
values = st.text(
    alphabet=st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=8, max_size=24
)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    return [*pieces, data[at:]]


def streamed(redactor: Redactor, pieces: list[bytes]) -> bytes:
    return b"".join(map(redactor.feed, pieces)) + redactor.end()


def spellings(value: str) -> list[bytes]:
    raw = value.encode()
    every = "".join(f"%{byte:02x}" for byte in raw)
    return [
        raw, quote(value, safe="").encode(), quote(value).encode(), quote_plus(value).encode(),
        quote(value, safe="").lower().encode() if value == value.lower() else raw,
        every.encode(), every.upper().encode(), json.dumps(value)[1:-1].encode(),
        html.escape(value).encode(), raw.hex().encode(), raw.hex().upper().encode(),
    ]  # fmt: skip


@given(
    values, st.binary(max_size=20), st.binary(max_size=20), st.lists(st.integers(0, 9), max_size=20)
)
@example(VALUE, b"", b"", [1] * 60)
def test_no_spelling_is_left_over_any_borders(
    value: str, before: bytes, after: bytes, sizes: list[int]
) -> None:
    for each in spellings(value):
        data = before + each + after
        shown = streamed(Redactor([value]), cut(data, sizes))
        assert len(shown) == len(data)
        hidden = shown[len(before) : len(before) + len(each)]
        # Of what was cut off early, the first three may have been shown.
        assert set(hidden[3:]) == {0x2A}
        whole = Redactor([value]).whole(data)
        assert whole[len(before) : len(before) + len(each)] == b"*" * len(each)


@given(
    values, st.binary(max_size=12), st.binary(max_size=12), st.lists(st.integers(0, 9), max_size=9)
)
def test_base64_shows_nothing_of_it_that_can_be_read_back(
    value: str, before: bytes, after: bytes, sizes: list[int]
) -> None:
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        data = b"Basic " + encode(before + value.encode() + after)
        shown = streamed(Redactor([value]), cut(data, sizes))
        assert len(shown) == len(data)
        hidden = encode(before + value.encode() + after)
        left = [a for a, b in zip(hidden, shown[6:], strict=True) if a == b and a != 0x2A]
        # What is left is of what stands around it, and a character at each border.
        assert len(left) <= len(encode(before)) + len(encode(after)) + 7


@given(st.binary(max_size=200), st.lists(st.integers(0, 40), max_size=9))
def test_what_has_nothing_to_do_with_it_comes_through_as_it_was(
    data: bytes, sizes: list[int]
) -> None:
    redactor = Redactor([VALUE, "another-value-000"])
    assert streamed(redactor, cut(data, sizes)) == data
    assert redactor.found == 0


@given(
    st.text(alphabet="ab", min_size=8, max_size=10),
    st.text(alphabet="ab%6+12", max_size=60),
    st.lists(st.integers(0, 9), max_size=20),
)
def test_where_it_is_cut_shows_no_more_than_three_bytes_of_one(
    value: str, text: str, sizes: list[int]
) -> None:
    data = text.encode()
    whole = Redactor([value]).whole(data)
    shown = streamed(Redactor([value]), cut(data, sizes))
    assert len(shown) == len(data)
    for at in range(3, len(data)):
        if whole[at - 3 : at + 1] == b"****":
            assert shown[at] == 0x2A or b"*" not in shown[at - 3 : at]
    assert all(a == b for a, b in zip(whole, shown, strict=True) if a != 0x2A)
    assert value.encode() not in shown


def test_overlapping_ones_are_all_hidden() -> None:
    assert streamed(Redactor(["aaaaaaaa"]), [b"aaaaaaaaa", b"aaa"]) == b"*" * 12


@pytest.mark.parametrize("end", [b"\n\n", b"}", b"", b"data: x\n\n"])
def test_an_event_is_not_kept_waiting(end: bytes) -> None:
    redactor = Redactor([VALUE])
    assert redactor.feed(b"data: hello" + end) == b"data: hello" + end


def test_what_may_be_its_beginning_waits_and_comes_if_it_is_not() -> None:
    redactor = Redactor([VALUE])
    assert redactor.feed(b"x s3c") == b"x s3c"
    assert redactor.feed(b"r") == b""
    assert redactor.feed(b"3t <") == b""
    assert redactor.feed(b"b") == b"r3t <b"
    assert redactor.feed(b"%73%3") == b""
    assert redactor.end() == b"%73%3"


def test_a_beginning_that_was_shown_is_still_one() -> None:
    redactor = Redactor([VALUE])
    shown = b"".join(redactor.feed(each.encode()) for each in VALUE)
    assert shown + redactor.end() == b"s3c" + b"*" * (len(VALUE) - 3)


def test_without_values_nothing_is_done() -> None:
    redactor = Redactor([])
    assert (redactor.feed(b"abc"), redactor.end(), redactor.whole(b"x")) == (b"abc", b"", b"x")


def test_a_part_alone_is_redacted_beside_the_stream() -> None:
    redactor = Redactor([VALUE])
    assert redactor.feed(b"s3cr") == b""
    assert redactor.whole(b"set " + VALUE.encode()) == b"set " + b"*" * len(VALUE)
    assert redactor.end() == b"s3cr"
    assert redactor.found > 0
