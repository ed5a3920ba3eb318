"""How uploads are split."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.test_transfers import transfer
from torpor.sessions.errors import ConflictError, InvalidError, TooLargeError
from torpor.sessions.parts import (
    LARGEST,
    MOST,
    SMALLEST,
    check_length,
    check_number,
    check_whole,
    part_size_for,
)
from torpor.store.records import Part, Transfer
from torpor.vm import MIB

LIMIT = 50 << 30


def upload(size: int | None, part_size: int) -> Transfer:
    return transfer("t", size=size, part_size=part_size)


def parts(*sizes: int, **at: Any) -> list[Part]:
    return [Part("t", number, size, "") for number, size in enumerate(sizes, 1)]


@given(st.integers(0, LIMIT))
def test_parts_are_of_a_size_that_memory_holds_and_not_too_many(size: int) -> None:
    part = part_size_for(size)
    assert SMALLEST <= part <= LARGEST
    assert part % MIB == 0
    assert -(-size // part) <= MOST


def test_parts_of_an_unknown_size_are_the_largest() -> None:
    assert part_size_for(None) == LARGEST
    assert part_size_for(LIMIT) == 52 * MIB
    assert part_size_for(8000 * MIB) == 8 * MIB
    assert part_size_for(8000 * MIB + 1) == 9 * MIB


@given(st.integers(1, 100), st.integers(1, 7))
def test_the_lengths_of_all_parts_are_the_whole(size: int, part: int) -> None:
    of = upload(size, part)
    last = -(-size // part)
    lengths = [part] * (last - 1) + [size - part * (last - 1)]
    for number, length in enumerate(lengths, 1):
        check_length(of, number, length)
        for other in {length - 1, length + 1}:
            with pytest.raises(InvalidError, match=f"has {length} bytes"):
                check_length(of, number, other)
    for number in (0, -1, last + 1):
        with pytest.raises(InvalidError, match="has no part"):
            check_number(of, number)
    assert check_whole(of, parts(*lengths), LIMIT) == size


def test_of_an_unknown_size_any_part_may_be_the_last() -> None:
    of = upload(None, 8)
    check_length(of, 3, 8)
    check_length(of, 3, 1)
    for length in (0, 9):
        with pytest.raises(InvalidError, match="1 to 8 bytes"):
            check_length(of, 3, length)
    with pytest.raises(InvalidError, match="no part 1001"):
        check_number(of, MOST + 1)
    assert check_whole(of, parts(8, 8, 3), LIMIT) == 19
    assert check_whole(of, [], LIMIT) == 0
    with pytest.raises(ConflictError, match="short, and not the last: 1") as refused:
        check_whole(of, parts(7, 8), LIMIT)
    assert (refused.value.code, refused.value.facts) == ("parts_missing", {"missing": [1]})


def test_missing_parts_are_named() -> None:
    of = upload(30, 8)
    with pytest.raises(ConflictError, match=r"have not come: 2, 3\.") as refused:
        check_whole(of, [Part("t", 1, 8, ""), Part("t", 4, 6, "")], LIMIT)
    assert refused.value.code == "parts_missing"
    assert refused.value.facts == {"missing": [2, 3]}
    with pytest.raises(ConflictError, match=r"1, 2, .*20\.\.\.") as refused:
        check_whole(upload(800, 8), [], LIMIT)
    assert len(refused.value.facts["missing"]) == 100


def test_an_empty_upload_has_no_part() -> None:
    of = upload(0, 8)
    assert check_whole(of, [], LIMIT) == 0
    with pytest.raises(InvalidError, match="It is empty: commit it"):
        check_number(of, 1)


def test_more_than_the_limit_is_refused_at_the_latest_when_it_is_committed() -> None:
    with pytest.raises(TooLargeError):
        check_whole(upload(None, 8), parts(8, 8), 15)
