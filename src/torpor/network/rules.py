"""Rules of a policy: what one line of it says, and how it is written.

Whatever is read here is honoured by :mod:`torpor.network.judge`; whatever would not be is refused,
with what to write instead. The grammar is explained in ``docs/network-policy.md``.
"""

import re
from dataclasses import dataclass, replace
from ipaddress import AddressValueError, IPv4Address, IPv4Network
from typing import Final, Literal

from torpor.network.errors import PolicyError
from torpor.network.hostnames import OWN_DOMAIN, is_below, is_own, normal
from torpor.network.special import Special, special_around
from torpor.network.verdicts import Transport

Says = Literal["name", "tls", "name if it can", "anything"]
"""What must be said on a connection before it may go on: the rule's name, in TLS or in HTTP; the
name, in TLS; the name if it is TLS or HTTP, else anything; anything."""

WEB_PORTS: Final = (80, 443)
LONGEST: Final = 512
"""Characters of a rule: more than any name and port have."""


@dataclass(frozen=True)
class Rule:
    """What may be reached: a host by its name (``below``: all that is in this domain, not the
    domain itself), or a ``network`` of addresses.

    ``written`` is its normal form, and equal rules have the same. ``source`` is the preset that it
    is from, empty for one that was written. ``opens`` is the special range that all of ``network``
    lies in, which this rule therefore opens.
    """

    written: str
    ports: tuple[int, ...]
    name: str = ""
    below: bool = False
    network: IPv4Network | None = None
    transport: Transport = "tcp"
    says: Says = "anything"
    inspect: bool = False
    source: str = ""
    opens: Special | None = None

    def __str__(self) -> str:
        return f"{self.source}: {self.written}" if self.source else self.written


@dataclass(frozen=True)
class Denial:
    """What may not be reached, whatever else is said; ``port`` None is all of them. It holds for
    every transport."""

    written: str
    name: str = ""
    below: bool = False
    network: IPv4Network | None = None
    port: int | None = None

    def __str__(self) -> str:
        return f"deny {self.written}"


QUIC = 443
"""The port of UDP that is never opened."""


def read_rule(where: str, text: object, *, inspect: bool = False) -> Rule:
    """Understand a rule that allows. ``where`` is its place in the policy. Raises
    :exc:`PolicyError`."""
    place = _place(where, text)
    if place.scheme not in ("", "tcp", "tls", "udp"):
        raise PolicyError(
            where, f"{text!r} has the scheme {place.scheme!r}", todo=_instead_of_scheme(place)
        )
    if place.scheme == "udp" and place.port == QUIC:
        raise PolicyError(
            where,
            f"{text!r} is QUIC, which says no name that the wall could read: it is always refused,"
            " so that programs take TCP",
            todo=f"Write {place.host}, or {place.host}:443 for an address.",
        )
    rule = _addresses(where, place) if place.network else _host(where, place, inspect)
    if inspect and rule.says == "name if it can":
        # What cannot be inspected is not let past: neither TLS nor HTTP has no name.
        rule = replace(rule, says="name")
    if inspect and rule.says == "anything":
        raise PolicyError(
            where,
            f"{text!r} cannot be inspected: the wall does not look at what is said there",
            todo="Write the host's name, with tls:// before it if it has a port of its own.",
        )
    return rule


def read_denial(where: str, text: object) -> Denial:
    """Understand a rule that denies. Raises :exc:`PolicyError`."""
    place = _place(where, text)
    if place.scheme:
        raise PolicyError(
            where,
            f"{text!r} has the scheme {place.scheme!r}, and what is denied is denied for every"
            " transport",
            todo=f"Write {place.host}{_colon(place.port)}.",
        )
    written = f"{place.host}{_colon(place.port)}"
    if place.network:
        return Denial(written, network=place.network, port=place.port)
    if is_own(place.name):
        raise PolicyError(where, f"{text!r} is served by the wall itself, whatever a policy says")
    return Denial(written, place.name, place.below, port=place.port)


@dataclass(frozen=True)
class _Place:
    """A rule taken apart. ``host`` is its normal form without scheme and port."""

    scheme: str
    host: str
    port: int | None
    name: str = ""
    below: bool = False
    network: IPv4Network | None = None


def _host(where: str, place: _Place, inspect: bool) -> Rule:
    if is_own(place.name):
        raise PolicyError(
            where,
            f"{place.host!r} needs no rule: what is in {OWN_DOMAIN} is the session's own, served by"
            " the wall",
        )
    if place.scheme and place.port is None:
        raise PolicyError(
            where,
            f"{place.scheme}://{place.host} has no port",
            todo=f"Write {place.scheme}://{place.host}:{123 if place.scheme == 'udp' else 443}, or"
            " the port that it is.",
        )
    written = f"{place.scheme and place.scheme + '://'}{place.host}{_colon(place.port)}"
    ports = WEB_PORTS if place.port is None else (place.port,)
    transport: Transport = "udp" if place.scheme == "udp" else "tcp"
    says: Says
    if place.scheme == "tls":
        says = "tls"
    elif place.scheme:
        says = "anything"
    else:
        says = "name" if ports[0] in WEB_PORTS else "name if it can"
    return Rule(written, ports, place.name, place.below, None, transport, says, inspect)


def _addresses(where: str, place: _Place) -> Rule:
    assert place.network is not None
    if place.scheme == "tls":
        raise PolicyError(
            where,
            f"tls://{place.host} has no name that could be verified",
            todo=f"Write tls:// and the host's name, or {place.host}{_colon(place.port or 443)}.",
        )
    if place.port is None:
        raise PolicyError(
            where,
            f"{place.host} has no port, and addresses have none by themselves",
            todo=f"Write {place.host}:443, one rule for each port.",
        )
    around = special_around(place.network)
    if around is not None and not around.opens:
        raise PolicyError(
            where,
            f"{place.host} is never reached from a machine: {around.network} is {around.what}",
        )
    transport: Transport = "udp" if place.scheme == "udp" else "tcp"
    scheme = "udp://" if transport == "udp" else ""
    written = f"{scheme}{place.host}:{place.port}"
    return Rule(written, (place.port,), network=place.network, transport=transport, opens=around)


# Taking a rule apart

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_FOUR = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}")
_PORT = re.compile(r"[1-9][0-9]{0,4}")


def _place(where: str, text: object) -> _Place:
    if not isinstance(text, str):
        raise PolicyError(where, f"{text!r} is no text", todo="Write a rule such as example.com.")
    if not text or len(text) > LONGEST:
        raise PolicyError(where, f"a rule has 1 to {LONGEST} characters, and this has {len(text)}")
    if any(each.isspace() or not each.isprintable() for each in text):
        raise PolicyError(
            where, f"{text!r} has a space or a control character", todo="Leave it out."
        )
    found = _SCHEME.fullmatch(text)
    scheme, rest = (found[1].lower(), found[2]) if found else ("", text)
    rest, prefix = _without_path(where, text, rest)
    if rest.startswith("[") or rest.count(":") > 1:
        raise PolicyError(
            where,
            f"{text!r} is an address of IPv6, and machines have none",
            todo="Write the host's name: the wall reaches it over IPv6 where it must.",
        )
    host, colon, said = rest.partition(":")
    port = _port(where, text, host, said) if colon else None
    if port == 53:
        raise PolicyError(
            where,
            f"{text!r} names port 53, which the wall answers itself whatever the address is",
            todo="Names that a rule allows are resolved without a rule for port 53.",
        )
    if prefix is not None or _FOUR.fullmatch(host):
        network = _network(where, text, host, prefix)
        shown = str(network.network_address if network.prefixlen == 32 else network)
        return _Place(scheme, shown, port, network=network)
    below = host.startswith("*.")
    name = _name(where, text, host.removeprefix("*.") if below else host, below)
    return _Place(scheme, f"*.{name}" if below else name, port, name, below)


def _without_path(where: str, text: str, rest: str) -> tuple[str, str | None]:
    """Return host and port, and the length of a network's prefix if there is one."""
    if "@" in rest:
        host = re.split("[:/]", rest.rpartition("@")[2])[0]
        raise PolicyError(
            where,
            f"{text!r} has a user: the wall decides by names and ports alone",
            todo=f"Write {host}, or {host}:22 for SSH.",
        )
    for sign, what in (("?", "a query"), ("#", "a fragment"), ("\\", "a '\\'")):
        if sign in rest:
            raise PolicyError(
                where,
                f"{text!r} has {what}: the wall decides by names and ports alone",
                todo=f"Write {re.split('[:/?#]', rest)[0]}, which allows all of it.",
            )
    host, slash, path = rest.partition("/")
    if not slash:
        return rest, None
    if _FOUR.fullmatch(host):
        prefix, colon, port = path.partition(":")
        return f"{host}{colon}{port}", prefix
    if host.startswith("[") or host.count(":") > 1:
        return host, None
    name, _, port = host.partition(":")
    if not _PORT.fullmatch(port):
        host = name  # host:organisation/repository, as git has it
    raise PolicyError(
        where,
        f"{text!r} has a path: the wall decides by names and ports alone",
        todo=f"Write {host}, which allows all of it. What a secret is used for can be bound to"
        " paths.",
    )


def _port(where: str, text: str, host: str, said: str) -> int:
    port = int(said) if _PORT.fullmatch(said) else 0
    if not 0 < port <= 65535:
        several = re.fullmatch(r"([0-9]+)[-,].*|\*", said)
        raise PolicyError(
            where,
            f"{text!r} has no port from 1 to 65535 behind its colon",
            todo=f"Write one rule for each port, such as {host}:{several[1] or 8080}."
            if several
            else f"Write {host or 'the host'} alone for ports 80 and 443.",
        )
    return port


def _network(where: str, text: str, host: str, prefix: str | None) -> IPv4Network:
    try:
        address = IPv4Address(host)
        if prefix is None:
            return IPv4Network(address)
        if not re.fullmatch(r"[0-9]|[12][0-9]|3[0-2]", prefix):
            raise AddressValueError("a prefix is a number from 0 to 32")
        network = IPv4Network((address, int(prefix)), strict=False)
    except ValueError as error:
        raise PolicyError(
            where,
            f"{text!r} is no address or network of IPv4: {error}",
            todo="Write it as 192.0.2.7:443 or 192.0.2.0/24:443.",
        ) from None
    if network.network_address != address:
        raise PolicyError(
            where,
            f"{text!r} is an address and a network at once",
            todo=f"Write {network} for the network, or {address} for the address.",
        )
    return network


def _name(where: str, text: str, host: str, below: bool) -> str:
    if "*" in host:
        raise PolicyError(
            where,
            f"{text!r} has a '*' that is not its first part alone",
            todo="Write unrestricted for everything."
            if host == "*"
            else "Write *.example.com for all that is in example.com, at any depth.",
        )
    try:
        name = normal(host)
    except ValueError as error:
        raise PolicyError(where, f"{text!r} is no name of a host: {error}") from None
    if name == "localhost" or is_below(name, "localhost"):
        raise PolicyError(where, f"{text!r} is the machine itself, which the wall does not see")
    if "." not in name and not below:
        raise PolicyError(
            where,
            f"{text!r} has no dot, so what it means depends on the network that asks",
            todo=f"Write its whole name, such as {name}.example.com, or, if it is a preset,"
            f" presets: [{name}].",
        )
    return name


_SCHEME_PORTS = {
    "ftp": 21, "git": 9418, "http": 80, "https": 443, "mongodb": 27017, "mysql": 3306,
    "postgres": 5432, "postgresql": 5432, "redis": 6379, "rediss": 6379, "ssh": 22, "ws": 80,
    "wss": 443,
}  # fmt: skip


def _instead_of_scheme(place: _Place) -> str:
    port = place.port or _SCHEME_PORTS.get(place.scheme)
    if place.scheme in ("http", "https", "ws", "wss") and port in WEB_PORTS and place.name:
        return f"Write {place.host} for ports 80 and 443, or {place.host}:{port} for one of them."
    return f"Write {place.host}:{port or 'PORT'}, or tls://, tcp:// or udp:// before it."


def _colon(port: int | None) -> str:
    return "" if port is None else f":{port}"
