"""What counts as a right first timestamp, and as a small error."""

import pytest

from torpor.lab.checks.clock import LIMIT_MS, Error, Stamps

MS = 1_000_000
OLD, NEW = 1_000_000 * MS, 1_005_000 * MS
"""Wall clock less monotonic clock before and after a pause of 5 s."""


def stamps(wall_after: int, *, at: int = 700 * MS, took: int = 0) -> Stamps:
    """A first timestamp ``wall_after`` at a monotonic time, the reading ``took`` so long."""
    old = (600 * MS, 600 * MS + OLD, 600 * MS)
    return Stamps(old, (at - took, wall_after, at), OLD, NEW)


def test_a_timestamp_of_the_new_time_fits() -> None:
    assert stamps(700 * MS + NEW).fits_new()


@pytest.mark.parametrize("off", [-10 * MS, 10 * MS, -4000 * MS])
def test_a_timestamp_between_old_and_new_does_not(off: int) -> None:
    assert not stamps(700 * MS + NEW + off).fits_new()


def test_a_reading_that_was_interrupted_fits_anywhere_within() -> None:
    assert stamps(660 * MS + NEW, took=80 * MS).fits_new()
    assert not stamps(600 * MS + NEW, took=80 * MS).fits_new()


def test_a_freeze_in_the_middle_of_a_reading_does_not_make_its_timestamp_later() -> None:
    # The wall clock was read at 600 ms, right after `before`; then came a freeze of 500 ms.
    old = (600 * MS, 600 * MS + OLD, 1100 * MS)
    new = (1101 * MS, 1101 * MS + NEW, 1101 * MS)
    seen = Stamps(old, new, OLD, NEW)
    assert (seen.last_old_at, seen.first_new_at) == (600 * MS, 1101 * MS)


def test_what_is_not_known_counts_as_error() -> None:
    assert Error(30 * MS, 10 * MS).at_most_ms == 40
    assert Error(-45 * MS, 10 * MS).at_most_ms > LIMIT_MS
