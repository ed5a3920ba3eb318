import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from torpor.store.ulids import Ulids

TIMES = st.integers(0, (1 << 48) - 1)


@given(st.lists(TIMES, min_size=1))
def test_ids_rise_whatever_the_clock_does(times: list[int]) -> None:
    clock = iter(times)
    ulids = Ulids(clock=lambda: next(clock) * 1_000_000)
    made = [ulids.new_id() for _ in times]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


@given(TIMES, TIMES)
def test_ids_go_on_after_those_of_before_a_restart(before: int, after: int) -> None:
    last = Ulids(clock=lambda: before * 1_000_000).new_id()
    assert Ulids(last, clock=lambda: after * 1_000_000).new_id() > last


def test_an_id_has_the_time_in_it() -> None:
    made = Ulids(clock=lambda: 1_772_366_400_123_456_789).new_id()
    assert re.fullmatch(r"[0-9A-HJKMNP-TV-Z]{26}", made)
    assert ULID.from_str(made).datetime == datetime(2026, 3, 1, 12, 0, 0, 123000, UTC)


def test_ids_of_two_servers_differ() -> None:
    made = {Ulids(clock=lambda: 0).new_id() for _ in range(1000)}
    assert len(made) == 1000


def test_what_is_no_ulid_is_refused() -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the words are the library's
        Ulids("yesterday")
