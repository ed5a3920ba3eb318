"""What becomes an event: each host once after each snapshot, and refusals now and then."""

from tests.sessions.decided import allowed, denied, ended
from torpor.sessions.egress_told import (
    CONNECTED,
    DENIED,
    DENIED_SECONDS,
    IN_ONE,
    MOST_HOSTS,
    MOST_KINDS,
    Told,
)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def hosts(told: Told, *, done: bool = True) -> list[str]:
    """Return the hosts that are told of now."""
    found = [each for each in told.due() if each.type == CONNECTED]
    if done:
        told.done(found)
    return [host for each in found for host in each.data["hosts"]]


def test_a_host_is_told_of_once() -> None:
    told = Told()
    for decision in (allowed(), ended(), allowed("b.test"), allowed()):
        told.take("s", decision)
    assert hosts(told) == ["a.test", "b.test"]
    told.take("s", allowed())
    assert hosts(told) == []
    told.take("other", allowed())
    assert hosts(told) == ["a.test"]


def test_what_was_not_written_is_told_of_again() -> None:
    told = Told()
    told.take("s", allowed())
    assert hosts(told, done=False) == hosts(told) == ["a.test"]


def test_after_a_snapshot_each_host_is_new_also_one_that_was_open_over_it() -> None:
    told = Told()
    told.take("s", allowed())
    assert hosts(told) == ["a.test"]
    with told.cutting("s"):
        told.take("s", allowed("b.test"))
        told.connected("s", "a.test")  # bytes, and it is told of already
        assert hosts(told) == []  # before the snapshot, or after it? nobody knows
    assert hosts(told) == ["b.test"]
    told.connected("s", "a.test")
    assert hosts(told) == ["a.test"]


def test_of_too_many_hosts_it_is_said_that_there_were_more() -> None:
    clock = Clock()
    told = Told(clock)
    for number in range(MOST_HOSTS + 30):
        told.take("s", allowed(f"h{number}.test"))
    found = told.due()
    assert [len(each.hosts) for each in found] == [IN_ONE] * (MOST_HOSTS // IN_ONE) + [0]
    assert found[-1].data == {"hosts": [], "more": 30}
    told.done(found)
    told.take("s", allowed("late.test"))
    assert told.due() == []
    assert [each.data for each in told.due(everything=True)] == [{"hosts": [], "more": 1}]
    clock.now += DENIED_SECONDS
    assert [each.data for each in told.due()] == [{"hosts": [], "more": 1}]


def test_the_first_refusal_is_told_at_once_and_a_storm_of_them_now_and_then() -> None:
    clock = Clock()
    told = Told(clock)
    told.take("s", denied())
    (first,) = told.due()
    told.done([first])
    assert first.type == DENIED
    assert first.data["count"] == 1
    assert first.data["denied"][0]["add"] == "evil.test:443"
    for number in range(10_000):
        told.take("s", denied(f"h{number % 100}.test"))
    assert told.due() == []
    assert told.waits()
    clock.now += DENIED_SECONDS
    (second,) = told.due()
    told.done([second])
    assert second.data["count"] == 10_000
    assert len(second.data["denied"]) == MOST_KINDS
    assert not told.waits()


def test_refusals_that_come_while_others_are_written_are_not_lost() -> None:
    told = Told(Clock())
    told.take("s", denied())
    due = told.due()
    told.take("s", denied())
    told.done(due)
    (rest,) = told.due(everything=True)
    assert (rest.data["count"], rest.data["denied"][0]["host"]) == (1, "evil.test")
    told.done([rest])
    assert not told.waits()
