"""Ranges of addresses that are never the public internet.

A list of our own: what ``ipaddress`` counts as global changes from one Python to the next. From the
registries of special-purpose addresses (RFC 6890 and those that update it), and from what the
clouds document of their metadata services. Ranges that are for documentation (RFC 5737, RFC 3849)
are not in it: nothing is there that could be harmed.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Final


@dataclass(frozen=True)
class Special:
    """A range and what it is for. ``opens`` says that a rule for addresses inside may open it."""

    network: IPv4Network | IPv6Network
    what: str
    opens: bool = False


def _of(*rows: tuple[str, str, bool]) -> tuple[Special, ...]:
    return tuple(Special(ip_network(network), what, opens) for network, what, opens in rows)


SPECIALS: Final = _of(
    ("0.0.0.0/8", "this host", False),
    ("10.0.0.0/8", "private", True),
    ("100.64.0.0/10", "between a carrier and its customers", True),
    ("100.100.100.200/32", "a metadata service of a cloud", True),
    ("127.0.0.0/8", "the host itself", False),
    ("168.63.129.16/32", "a metadata service of a cloud", True),
    ("169.254.0.0/16", "link-local", True),
    ("169.254.169.254/32", "a metadata service of clouds", True),
    ("169.254.170.2/32", "a metadata service of a cloud", True),
    ("172.16.0.0/12", "private", True),
    ("192.0.0.0/24", "for protocols", False),
    ("192.0.0.192/32", "a metadata service of a cloud", True),
    ("192.88.99.0/24", "6to4 relays", False),
    ("192.168.0.0/16", "private", True),
    ("198.18.0.0/15", "for benchmarks, and in a machine for names", False),
    ("224.0.0.0/4", "multicast", False),
    ("240.0.0.0/4", "reserved", False),
    ("255.255.255.255/32", "broadcast", False),
    ("::/96", "this host, the host itself, and addresses of old", False),
    ("64:ff9b:1::/48", "translated to IPv4 by the local network", False),
    ("100::/64", "discarded", False),
    ("2001::/23", "for protocols, Teredo among them", False),
    ("2002::/16", "6to4", False),
    ("5f00::/16", "segment routing", False),
    ("fc00::/7", "private", False),
    ("fe80::/10", "link-local", False),
    ("fec0::/10", "site-local", False),
    ("ff00::/8", "multicast", False),
)
"""Ranges of IPv6 cannot be opened: rules name addresses of IPv4, since machines have no others."""

_MAPPED = int(IPv6Address("::ffff:0:0")) >> 32
_TRANSLATED = int(IPv6Address("64:ff9b::")) >> 32
_GLOBAL_UNICAST = 1
"""The first three bits of every address of IPv6 that is given out (RFC 4291, 2.4)."""


def plainly(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the address of IPv4 that one of IPv6 carries, as the kernel (mapped, RFC 4291) or a
    translator (NAT64, RFC 6052) would take it out; any other as it is."""
    if isinstance(address, IPv6Address) and int(address) >> 32 in (_MAPPED, _TRANSLATED):
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def special(address: IPv4Address | IPv6Address) -> Special | None:
    """Return the narrowest special range that an address is in, None if it is public."""
    address = plainly(address)
    number = int(address)
    if isinstance(address, IPv4Address):
        return _V4.of(number)
    found = _V6.of(number)
    if found is None and number >> 125 != _GLOBAL_UNICAST:
        return _UNASSIGNED
    return found


def special_around(network: IPv4Network) -> Special | None:
    """Return the narrowest special range that all of a network lies in, None if there is none."""
    around = [
        each
        for each in SPECIALS
        if isinstance(each.network, IPv4Network) and network.subnet_of(each.network)
    ]
    return max(around, key=lambda each: each.network.prefixlen, default=None)


_UNASSIGNED = Special(ip_network("::/0"), "not given out")


class _Ranges:
    """Nested ranges, cut into pieces that do not overlap, so that one is found by halving."""

    def __init__(self, specials: Iterable[Special]) -> None:
        ordered = sorted(specials, key=lambda each: each.network.prefixlen)
        edges = sorted({edge for each in ordered for edge in _edges(each)})
        self._starts = edges
        self._pieces = [
            next((each for each in reversed(ordered) if _holds(each, edge)), None) for edge in edges
        ]

    def of(self, number: int) -> Special | None:
        found = bisect_right(self._starts, number)
        return self._pieces[found - 1] if found else None


def _edges(each: Special) -> Iterator[int]:
    yield int(each.network.network_address)
    yield int(each.network.broadcast_address) + 1


def _holds(each: Special, number: int) -> bool:
    return int(each.network.network_address) <= number <= int(each.network.broadcast_address)


_V4 = _Ranges(each for each in SPECIALS if each.network.version == 4)
_V6 = _Ranges(each for each in SPECIALS if each.network.version == 6)
