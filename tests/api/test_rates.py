"""How often a token may ask."""

from torpor.api import rates
from torpor.api.rates import Rates


def test_a_bucket_empties_at_once_and_fills_steadily() -> None:
    now = 100.0
    limits = Rates(2, 3, clock=lambda: now)
    assert [limits.take("a").remaining for _ in range(3)] == [2, 1, 0]
    refused = limits.take("a")
    assert (refused.allowed, refused.reset_seconds) == (False, 1)
    assert limits.take("b").allowed
    now += 0.5
    assert limits.take("a").allowed
    assert not limits.take("a").allowed
    now += 1000
    assert [limits.take("a").allowed for _ in range(4)] == [True, True, True, False]


def test_buckets_that_are_full_again_are_forgotten() -> None:
    now = 0.0
    limits = Rates(1, 5, clock=lambda: now)
    for number in range(rates.FORGOTTEN):
        limits.take(str(number))
    now += 3600
    limits.take("one more")
    assert len(limits._buckets) == 1
