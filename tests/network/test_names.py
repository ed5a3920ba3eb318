"""An address stands for one name of a session for ever, and there is an end to them."""

import json
from ipaddress import IPv4Address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torpor.network.names import (
    LINK,
    MOST,
    OWN_ADDRESSES,
    STANDING,
    Names,
    TooManyNamesError,
)


def test_a_name_keeps_its_address_and_an_address_its_name() -> None:
    names = Names()
    first = names.address("a.test")
    assert names.address("b.test") != first
    assert names.address("a.test") == first
    assert names.name(first) == "a.test"
    assert len(names) == 2


def test_an_address_that_was_given_to_nobody_stands_for_nothing() -> None:
    assert Names().name(IPv4Address("198.18.200.200")) is None
    assert Names().name(IPv4Address("198.51.100.1")) is None


def test_no_address_is_given_twice_or_outside_of_its_range() -> None:
    names = Names()
    given_out = {names.address(f"h{number}.test") for number in range(MOST)}
    assert len(given_out) == MOST
    for address in given_out:
        assert address in STANDING
        assert address not in LINK
        assert address not in OWN_ADDRESSES.values()


def test_one_name_too_many_is_refused_and_the_others_stay() -> None:
    names = Names()
    first = names.address("h0.test")
    for number in range(1, MOST):
        names.address(f"h{number}.test")
    with pytest.raises(TooManyNamesError, match=r"4096 names.*late\.test was not"):
        names.address("late.test")
    assert names.address("h0.test") == first
    assert names.address("gateway.torpor.internal"), "the session's own are not counted"


def test_own_services_are_where_they_are_in_every_session() -> None:
    assert Names().address("gateway.torpor.internal") == IPv4Address("198.18.0.1")
    assert Names().address("models.torpor.internal") == IPv4Address("198.18.0.2")
    assert Names().name(IPv4Address("198.18.0.1")) == "gateway.torpor.internal"


def test_a_fork_has_the_names_of_its_parent_and_then_its_own() -> None:
    parent = Names()
    before = parent.address("a.test")
    child = Names.from_plain(json.loads(json.dumps(parent.plain())))
    child.address("child.test")
    assert child.address("a.test") == before
    assert len(parent) == 1
    assert "child.test" not in parent.plain()


def test_names_whose_address_would_be_the_same_get_others_which_last() -> None:
    names = Names()
    address = names.address("a.test")
    taken = Names({"other.test": address})
    moved = taken.address("a.test")
    assert moved != address
    assert Names.from_plain(taken.plain()).name(moved) == "a.test"
    assert Names.from_plain(taken.plain()).name(address) == "other.test"


def test_what_was_not_kept_is_the_same_again() -> None:
    assert Names().address("a.test") == Names().address("a.test")


def test_whoever_keeps_the_map_is_told_of_each_name_once() -> None:
    told = []
    names = Names(changed=lambda: told.append(len(names)))
    for name in ("a.test", "b.test", "a.test", "gateway.torpor.internal"):
        names.address(name)
    assert told == [1, 2]


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        {"a.test": 5},
        {"a.test": "x"},
        {"A.test": "198.18.7.7"},
        {"a b": "198.18.7.7"},
        {"a.test": "198.51.100.1"},
        {"a.test": "127.0.0.1"},
        {"a.test": "198.19.255.2"},
        {"a.test": "198.18.0.1"},
        {"gateway.torpor.internal": "198.18.7.7"},
        {"a.test": "198.18.7.7", "b.test": "198.18.7.7"},
        {f"h{number}.test": "198.18.7.7" for number in range(MOST + 1)},
    ],
)
def test_a_map_that_cannot_be_one_is_refused(said: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        Names.from_plain(said)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.from_regex(r"[a-z]{1,3}\.[a-z]{1,3}", fullmatch=True), max_size=60))
def test_it_comes_back_from_plain_data_as_it_was(said: list[str]) -> None:
    names = Names()
    for name in said:
        names.address(name)
    again = Names.from_plain(json.loads(json.dumps(names.plain())))
    assert again.plain() == names.plain()
    assert {again.name(names.address(name)) for name in said} == set(said)
