"""What is read from the log of a counter."""

import pytest

from torpor.lab.checks.counter import Line, around, gaps, parse

SECOND = 1_000_000_000
LOG = ["46 08:05:41", "47 08:05:42", "48 08:10:10", "49 08:10:11"]


def at(time: str, day: int = 20_000) -> int:
    """A wall clock in ns at a time of some day."""
    hours, minutes, seconds = map(int, time.split(":"))
    return ((day * 24 + hours) * 3600 + minutes * 60 + seconds) * SECOND


@pytest.mark.parametrize("began", ["08:05:42", "08:05:43", "08:07:00", "08:10:09"])
def test_the_lines_around_a_pause_are_found(began: str) -> None:
    assert around(parse(LOG), at(began)) == (Line(47, "08:05:42"), Line(48, "08:10:10"))


def test_a_pause_over_midnight_has_its_lines() -> None:
    log = parse(["1 23:59:57", "2 23:59:58", "3 00:00:20", "4 00:00:21"])
    assert around(log, at("23:59:59")) == (log[1], log[2])


@pytest.mark.parametrize("began", ["08:05:40", "08:10:12"])
def test_a_pause_outside_the_log_is_refused(began: str) -> None:
    with pytest.raises(ValueError, match="no line on one of the two sides"):
        around(parse(LOG), at(began))


def test_numbers_from_one_on_have_no_gap() -> None:
    assert gaps(parse(["1 08:00:00", "2 08:00:01", "3 09:00:00"])) == []


@pytest.mark.parametrize(
    "log",
    [
        ["1 08:00:00", "3 08:00:02"],
        ["1 08:00:00", "1 08:00:01", "2 08:00:02"],
        ["1 08:00:00", "2 08:00:01", "1 08:00:02"],
        ["2 08:00:00", "3 08:00:01"],
    ],
    ids=["missing", "twice", "started anew", "first missing"],
)
def test_every_other_log_has_one(log: list[str]) -> None:
    assert gaps(parse(log))


@pytest.mark.parametrize("line", ["", "1", "x 08:00:00", "1 8:00", "1 08:00:00 2 08:00:01"])
def test_a_line_that_is_none_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not a line"):
        parse([line])
