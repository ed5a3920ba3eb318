"""Decisions become lines: those that are alike one, and of too many it is said how many."""

import itertools

from tests.sessions.decided import START, allowed, denied, ended, later
from torpor.network.decisions import Decision
from torpor.sessions.egress_batch import MOST_LINES, Batch
from torpor.store.records import EgressEntry


def lines(*decisions: Decision, into: Batch | None = None) -> list[EgressEntry]:
    batch = into or Batch()
    for decision in decisions:
        batch.take(decision)
    numbers = itertools.count()
    return list(batch.lines("s", lambda: f"l{next(numbers)}"))


def test_what_is_alike_is_one_line_that_says_how_often_and_what_it_comes_to() -> None:
    (line,) = lines(*(ended(at=later(number), seconds=2.0) for number in range(10_000)))
    assert (line.count, line.at, line.until) == (10_000, START, later(10_001))
    assert (line.sent_bytes, line.received_bytes, line.seconds) == (100_000, 200_000, 20_000.0)
    assert (line.host, line.port, line.rule, line.address) == ("a.test", 443, "a.test", "192.0.2.1")


def test_what_differs_in_anything_that_was_decided_is_a_line_of_its_own() -> None:
    different = [
        denied(),
        denied(port=80),
        denied(transport="udp"),
        denied(rule="deny evil.test"),
        denied(why="its address is private"),
        denied(add=""),
        denied("other.test"),
        allowed(at=later(1)),
        ended(at=later(2)),
        ended(at=later(2), inspected=True),
        ended(at=later(2), secrets=("key",)),
        ended(at=later(2), spoken="http"),
    ]
    found = lines(*different, *different)
    assert [line.count for line in found] == [2] * len(different)


def test_a_connection_that_has_ended_before_anything_was_written_has_not_begun_too() -> None:
    both = [(allowed(at=later(n)), ended(at=later(n))) for n in range(3)]
    still_open = allowed(at=later(9))
    found = lines(*(each for pair in both for each in pair), still_open)
    assert [(line.ended, line.count) for line in found] == [(True, 3), (False, 1)]


def test_a_connection_that_began_in_an_earlier_batch_takes_no_other_beginning_away() -> None:
    found = lines(allowed(at=later(5)), ended(at=later(0)))
    assert sorted((line.ended, line.count) for line in found) == [(False, 1), (True, 1)]


def test_more_hosts_than_are_kept_apart_are_counted_and_denials_apart_from_the_rest() -> None:
    scanned = [denied(f"h{number}.test") for number in range(10_000)]
    reached = [ended(f"r{number}.test", sent=7) for number in range(100)]
    found = lines(*scanned, *reached)
    assert len(found) <= MOST_LINES + 2
    assert sum(line.count for line in found if not line.allowed) == 10_000
    assert sum(line.count for line in found if line.allowed) == 100
    assert sum(line.sent_bytes for line in found) == 700
    rest = [line for line in found if not line.host]
    assert sorted(line.allowed for line in rest) == [False, True]
    assert all(line.address is None and line.port == 0 for line in rest)


def test_connections_that_are_counted_together_end_together_too() -> None:
    batch = Batch()
    lines(*(denied(f"h{number}.test") for number in range(MOST_LINES)), into=batch)
    found = lines(allowed("late.test"), ended("late.test"), into=batch)
    assert [(line.ended, line.count) for line in found if line.allowed] == [(True, 1)]


def test_what_could_not_be_written_is_counted_with_what_came_after_it() -> None:
    first, second = Batch(), Batch()
    lines(denied(), ended(at=later(1)), into=first)
    lines(denied(at=later(3)), denied("other.test"), ended(secrets=("key",)), into=second)
    first.join(second)
    found = lines(into=first)
    assert {(line.host, line.count) for line in found if not line.allowed} == {
        ("evil.test", 2), ("other.test", 1),
    }  # fmt: skip
    assert sum(line.count for line in found) == 5
    evil = first.contacts["evil.test"]
    assert (evil.denied, evil.first, evil.last) == (2, START, later(3))
    assert first.contacts["a.test"].secrets == {"key"}


def test_a_name_is_what_a_line_is_about_and_its_address_that_which_was_dialled() -> None:
    named, bare, refused = lines(
        ended(connected_to="192.0.2.7"),
        ended(None, at=later(1), address="192.0.2.8", connected_to="192.0.2.8"),
        denied(None, at=later(2), address="192.0.2.9"),
    )
    assert (named.host, named.address) == ("a.test", "192.0.2.7")
    assert (bare.host, bare.address) == ("192.0.2.8", "192.0.2.8")
    assert (refused.host, refused.address) == ("192.0.2.9", "192.0.2.9")
    (looked_up,) = lines(denied(address="198.18.3.4"))
    assert looked_up.address is None  # what stands for a name is the machine's own affair
