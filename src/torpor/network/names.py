"""Which addresses stand for which names in one session.

A machine that looks up an allowed name gets an address of 198.18.0.0/15 that stands for it, so the
wall knows from the address that is dialled which name was meant, whatever is spoken. Programs in
the machine remember addresses, over pauses and in forks too: so the map is kept with the session
and copied to forks, and an address never comes to stand for another name.
"""

import hashlib
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address, IPv4Network
from typing import Final

from torpor.network.errors import NetworkError
from torpor.network.hostnames import OWN_SERVICES, is_normal

STANDING: Final = IPv4Network("198.18.0.0/15")
"""For benchmarks of network devices by RFC 2544: nothing on the internet has such an address."""
LINK: Final = IPv4Network("198.19.255.0/24")
"""The part that machines and the wall have themselves."""
OWN_ADDRESSES: Final = {
    name: STANDING.network_address + number for number, name in enumerate(OWN_SERVICES, 1)
}
"""Where the session's own services are, in every session."""
MOST: Final = 4096
"""A rule such as ``*.example.com`` lets a machine make up names."""
_FIRST: Final = 256
"""The addresses before it are for own services."""


class TooManyNamesError(NetworkError):
    """A session has looked up as many names as it may."""


class Names:
    """The names of one session and the addresses that stand for them.

    ``changed`` is called after each name that is added, for whoever keeps the map.
    """

    def __init__(
        self,
        known: Mapping[str, IPv4Address] | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._addresses = {**OWN_ADDRESSES, **(known or {})}
        self._names = {address: name for name, address in self._addresses.items()}
        self._changed = changed

    def __len__(self) -> int:
        return len(self._addresses) - len(OWN_ADDRESSES)

    def address(self, name: str) -> IPv4Address:
        """Return the address that stands for a name from now on.

        It follows from the name, as long as no other name has it: so it is mostly the same again,
        should what was kept be lost. Raises :exc:`TooManyNamesError`.
        """
        known = self._addresses.get(name)
        if known is not None:
            return known
        if len(self) >= MOST:
            raise TooManyNamesError(
                f"this session has looked up {MOST} names, and no more can be told apart.",
                state=f"{name} was not resolved; names that were looked up before still are.",
                todo="Start a new session.",
            )
        address = self._free(name)
        self._addresses[name] = address
        self._names[address] = name
        self._changed()
        return address

    def name(self, address: IPv4Address) -> str | None:
        """Return the name that an address stands for."""
        return self._names.get(address)

    def plain(self) -> dict[str, str]:
        """Return the map as plain data: addresses by names."""
        return {
            name: str(address)
            for name, address in self._addresses.items()
            if name not in OWN_ADDRESSES
        }

    @classmethod
    def from_plain(cls, said: object, changed: Callable[[], None] = lambda: None) -> "Names":
        """Read what :meth:`plain` gave. Raises ValueError if it cannot be such a map."""
        if not isinstance(said, Mapping) or len(said) > MOST:
            raise ValueError(f"a map of names is no mapping of at most {MOST}")
        known: dict[str, IPv4Address] = {}
        for name, text in said.items():
            if not isinstance(name, str) or not isinstance(text, str) or not is_normal(name):
                raise ValueError(f"{name!r}: {text!r} is no name and its address")
            address = IPv4Address(text)
            if name in OWN_ADDRESSES or not _may_stand(address):
                raise ValueError(f"{address} cannot stand for {name}")
            known[name] = address
        if len(set(known.values())) != len(known):
            raise ValueError("an address stands for two names")
        return cls(known, changed)

    def _free(self, name: str) -> IPv4Address:
        room = STANDING.num_addresses
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) % room
        # At most one address in thirty is taken, so this is seldom a second one.
        while True:
            address = STANDING.network_address + number
            if _may_stand(address) and address not in self._names:
                return address
            number = (number + 1) % room


def _may_stand(address: IPv4Address) -> bool:
    return (
        address in STANDING
        and address not in LINK
        and int(address) - int(STANDING.network_address) >= _FIRST
    )
