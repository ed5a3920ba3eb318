"""No address that is not the public internet counts as public, however it is written."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torpor.network.special import SPECIALS, plainly, special, special_around


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.9", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "100.100.100.200",
        "127.0.0.1", "127.255.255.255", "168.63.129.16", "169.254.0.1", "169.254.169.254",
        "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.0.192", "192.88.99.1", "192.168.0.1",
        "198.18.0.1", "198.19.255.255", "224.0.0.1", "239.255.255.255", "240.0.0.1",
        "255.255.255.255",
        "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254",
        "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2001::1",
        "100::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1", "5f00::1", "4000::1",
    ],
)  # fmt: skip
def test_what_is_not_the_public_internet(address: str) -> None:
    assert special(ip_address(address)) is not None


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255",
        "128.0.0.0", "168.63.129.15", "168.63.129.17", "169.253.255.255", "169.255.0.0",
        "172.15.255.255", "172.32.0.0", "192.0.1.0", "192.167.255.255", "192.169.0.0",
        "198.17.255.255", "198.20.0.0", "223.255.255.255",
        "2606:4700::1111", "2a00::1", "::ffff:1.1.1.1", "64:ff9b::101:101",
    ],
)  # fmt: skip
def test_what_is(address: str) -> None:
    assert special(ip_address(address)) is None


@pytest.mark.parametrize("address", ["192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1"])
def test_ranges_for_documentation_count_as_public(address: str) -> None:
    assert special(ip_address(address)) is None


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("169.254.169.254", "169.254.169.254/32"),
        ("169.254.169.253", "169.254.0.0/16"),
        ("100.100.100.200", "100.100.100.200/32"),
        ("100.100.100.201", "100.64.0.0/10"),
        ("192.0.0.192", "192.0.0.192/32"),
        ("255.255.255.255", "255.255.255.255/32"),
    ],
)
def test_the_narrowest_range_is_told(address: str, network: str) -> None:
    found = special(ip_address(address))
    assert found is not None
    assert str(found.network) == network


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 2**32 - 1).map(IPv4Address))
def test_looking_by_halves_finds_what_looking_through_all_finds(address: IPv4Address) -> None:
    around = [each for each in SPECIALS if address in each.network]
    narrowest = max(around, key=lambda each: each.network.prefixlen, default=None)
    assert special(address) == narrowest


@settings(deadline=None, max_examples=300)
@given(
    st.one_of(
        st.integers(0, 2**128 - 1),
        st.sampled_from(SPECIALS).flatmap(
            lambda each: st.integers(
                max(0, int(each.network.network_address) - 2),
                int(each.network.broadcast_address) + 2,
            )
        ),
    ).map(lambda number: IPv6Address(number % 2**128))
)
def test_the_same_holds_for_the_other_version(address: IPv6Address) -> None:
    if isinstance(plainly(address), IPv4Address):
        assert special(address) == special(plainly(address))
        return
    around = [each for each in SPECIALS if address in each.network]
    assert (special(address) is not None) == (bool(around) or int(address) >> 125 != 1)


def test_a_network_lies_in_a_range_only_if_all_of_it_does() -> None:
    inside = special_around(IPv4Network("10.1.0.0/16"))
    assert inside is not None
    assert str(inside.network) == "10.0.0.0/8"
    assert special_around(IPv4Network("10.0.0.0/7")) is None
    assert special_around(IPv4Network("0.0.0.0/0")) is None
    metadata = special_around(IPv4Network("169.254.169.254/32"))
    assert metadata is not None
    assert metadata.network.prefixlen == 32
