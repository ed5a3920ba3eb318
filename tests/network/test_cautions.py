"""What may be written and may not be meant is told."""

import pytest

from torpor.network.policy import parse


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (["*.com"], "every name in .com"),
        (["*.co.uk"], "anyone can have a name in co.uk"),
        (["*.github.io:443"], "anyone can have a name in github.io"),
        (["*.windows.net"], "a part of windows.net"),
        (["10.0.0.0/8:5432"], "private"),
        (["169.254.169.254:80"], "metadata"),
        (["0.0.0.0/0:443"], "4,294,967,296 addresses"),
        ({"deny": ["a.test"]}, "not from its addresses"),
    ],
)
def test_what_reaches_further_than_it_looks(said: object, told: str) -> None:
    (caution,) = parse(said).cautions()
    assert told in caution


@pytest.mark.parametrize(
    "said",
    [
        ["*.example.com", "example.com", "a.b.github.io", "198.51.100.0/24:443"],
        {"deny": ["10.0.0.0/8"]},
        {"allow": ["*.a.test"], "deny": ["b.a.test"]},
        "none",
        "unrestricted",
    ],
)
def test_nothing_is_told_of_the_ordinary(said: object) -> None:
    assert parse(said).cautions() == ()
