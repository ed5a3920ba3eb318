"""The addresses that this host has itself: a machine never reaches the host by any of them."""

import time
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final

FRESH: Final = 2.0
"""Seconds after which the kernel is asked again: addresses come and go with networks."""


def host_addresses(proc: Path = Path("/proc")) -> frozenset[IPv4Address | IPv6Address]:
    """Return the addresses of all interfaces of this network namespace, broadcasts among them.

    From the routing table of the kernel (``/proc/net/fib_trie``, in which each address that is
    local or a broadcast stands as a leaf before its kind) and ``/proc/net/if_inet6``, which is not
    there without IPv6.
    """
    found: set[IPv4Address | IPv6Address] = set()
    leaf = ""
    for line in (proc / "net/fib_trie").read_text("ascii").splitlines():
        words = line.split()
        if words[:1] == ["|--"]:
            leaf = words[1]
        elif words[:1] == ["/32"] and words[-1] in ("LOCAL", "BROADCAST"):
            found.add(IPv4Address(leaf))
    try:
        lines = (proc / "net/if_inet6").read_text("ascii").splitlines()
    except FileNotFoundError:
        lines = []
    found.update(IPv6Address(int(line.split()[0], 16)) for line in lines)
    return frozenset(found)


class OwnAddresses:
    """Keeps :func:`host_addresses` for a moment, so that each connection does not ask for it."""

    def __init__(
        self,
        read: Callable[[], frozenset[IPv4Address | IPv6Address]] = host_addresses,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._clock = clock
        self._at = -FRESH
        self._found: frozenset[IPv4Address | IPv6Address] = frozenset()

    def __call__(self) -> frozenset[IPv4Address | IPv6Address]:
        """Return the addresses, at most :data:`FRESH` seconds old."""
        now = self._clock()
        if now - self._at >= FRESH:
            self._found, self._at = self._read(), now
        return self._found
