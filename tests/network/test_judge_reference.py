"""The judge agrees with one that is written naively, from the texts of the rules alone."""

import ipaddress
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from torpor.network.judge import PolicyJudge, judge
from torpor.network.policy import parse
from torpor.network.verdicts import Destination, Spoken, Verdict

OWN = ("203.0.113.80", "10.0.0.9")
CLOSED = ("127.0.0.0/8", "198.18.0.0/15")
OPENED = ("10.0.0.0/8", "169.254.169.254/32", "169.254.0.0/16")
"""Ranges from which the addresses below are, the narrowest first where they nest."""
NAMES = ["test", "a.test", "b.a.test", "c.b.a.test", "ba.test"]
ADDRESSES = [
    "198.51.100.1", "198.51.100.200", "203.0.113.1", "203.0.113.80", "10.0.0.5", "10.0.0.9",
    "10.200.0.1", "127.0.0.1", "169.254.1.1", "169.254.169.254", "198.18.5.5",
]  # fmt: skip
PORTS = [80, 443, 5432]
NETWORKS = [
    "198.51.100.0/24", "198.51.100.1", "0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/24", "10.0.0.5",
    "8.0.0.0/6", "169.254.0.0/16", "169.254.169.254", "203.0.113.0/24", "10.0.0.9",
]  # fmt: skip

hosts = st.sampled_from(NAMES[1:]) | st.sampled_from(NAMES).map("*.{}".format)
ports = st.sampled_from(PORTS)
ported = st.tuples(hosts | st.sampled_from(NETWORKS), ports).map(
    lambda each: f"{each[0]}:{each[1]}"
)
rules = st.one_of(
    hosts,
    ported,
    ported.map("tcp://{}".format),
    ported.filter(lambda each: not each.endswith(":443")).map("udp://{}".format),
    st.tuples(hosts, ports).map(lambda each: f"tls://{each[0]}:{each[1]}"),
)
entries = rules | hosts.map(lambda host: {"host": host, "inspect": True})
denials = st.one_of(hosts, st.sampled_from(NETWORKS), ported)
listed = st.fixed_dictionaries(
    {"allow": st.lists(entries, min_size=1, max_size=10)},
    optional={"deny": st.lists(denials, min_size=1, max_size=2)},
)
openings = st.sampled_from(
    ["10.0.0.0/8:5432", "udp://10.0.0.0/24:123", "169.254.0.0/16:80", "169.254.169.254:80"]
)
documents = st.one_of(
    listed,
    listed,
    listed,
    st.sampled_from(["none", "unrestricted"]),
    st.lists(openings, min_size=1, max_size=3).map(
        lambda each: {"unrestricted": True, "allow": each}
    ),
    st.lists(denials, min_size=1, max_size=2).map(lambda each: {"deny": each}),
)
destinations = st.builds(
    Destination,
    st.none() | st.sampled_from(NAMES[1:]),
    st.sampled_from(ADDRESSES).map(IPv4Address),
    ports,
    st.sampled_from(["tcp", "tcp", "udp"]),
)
speeches = st.one_of(
    st.just(("raw", None)),
    st.tuples(
        st.sampled_from(["tls", "http"]),
        st.none() | st.just("the name") | st.sampled_from(NAMES[1:]),
    ),
)


def said_to(to: Destination, speech: tuple[Spoken, str | None]) -> tuple[Spoken, str | None]:
    """Return what is spoken, with the destination's own name where it is to be that."""
    how, said = speech
    return how, (to.name if said == "the name" else said)


class Naive:
    """Answers as the pages say, one rule after the other, and knows nothing of how rules are
    kept."""

    def __init__(self, document: Any) -> None:
        self.none = document == "none"
        entries = document.get("allow", []) if isinstance(document, dict) else []
        self.listed = bool(entries) and "unrestricted" not in document
        self.denied = document.get("deny", []) if isinstance(document, dict) else []
        self.rules = [
            (each["host"], each.get("inspect", False)) if isinstance(each, dict) else (each, False)
            for each in entries
        ]

    def name(self, name: str) -> bool:
        if self.none or any(same(each, name) for each in self.denied):
            return False
        return not self.listed or any(
            same(text.split("://")[-1].split(":")[0], name) for text, _ in self.rules
        )

    def matching(self, place: str, port: int, transport: str) -> list[tuple[str, bool]]:
        """The rules that are about a name or an address at a port."""
        found = []
        for text, inspect in self.rules:
            scheme, _, rest = text.rpartition("://")
            host, _, said = rest.partition(":")
            if not (same(host, place) or inside(host, place)):
                continue
            if (scheme == "udp") == (transport == "udp") and port in (
                [int(said)] if said else [80, 443]
            ):
                found.append((text, inspect))
        return found

    def is_denied(self, place: str, port: int) -> bool:
        return any(
            (same(host, place) or inside(host, place)) and said in ("", str(port))
            for host, _, said in (each.partition(":") for each in self.denied)
        )

    def closed(self, address: str, port: int, transport: str) -> bool:
        """Whether an address is one that nobody reaches without a rule for it, and has none."""
        if self.none or address in OWN or self.is_denied(address, port):
            return True
        if any(inside(each, address) for each in CLOSED):
            return True
        narrowest = next((each for each in OPENED if inside(each, address)), None)
        if narrowest is None:
            return False
        return not any(
            IPv4Network(text.split("://")[-1].split(":")[0]).subnet_of(IPv4Network(narrowest))
            for text, _ in self.matching(address, port, transport)
        )

    def destination(self, to: Destination) -> bool:
        if self.none:
            return False
        place = to.name or str(to.address)
        if self.is_denied(place, to.port):
            return False
        if to.name is None and self.closed(place, to.port, to.transport):
            return False
        if self.matching(place, to.port, to.transport):
            return True
        if not self.listed:
            return not (to.transport == "udp" and to.port == 443)
        return to.name is None and to.transport == "tcp" and any(
            verified(text) for text, _ in self.rules if to.port in ports_of(text)
        )  # fmt: skip

    def spoken(self, to: Destination, how: str, said: str | None) -> tuple[bool, str, bool]:
        """Whether it may, as whose address, and inspected."""
        if not self.destination(to) or (said is not None and self.is_denied(said, to.port)):
            return False, "", False
        if not self.listed:
            return True, "", False
        if to.name is None and self.matching(str(to.address), to.port, to.transport):
            return True, "", False
        name = to.name or said or ""
        good = [
            (text, inspect)
            for text, inspect in self.matching(name, to.port, to.transport)
            if permits(text, name, how, said, inspect) and (to.name or verified(text))
        ]
        as_whose = name if good and to.name is None else ""
        return bool(good), as_whose, any(inspect for _, inspect in good)

    def dialled(self, to: Destination, address: str) -> bool:
        if to.name is None and address != str(to.address):
            return False
        place = to.name or address
        if to.name is not None and not self.destination(to):
            return False
        if not self.matching(place, to.port, to.transport) and (
            self.listed or (to.transport == "udp" and to.port == 443)
        ):
            return False
        return not self.closed(address, to.port, to.transport)


def same(host: str, name: str) -> bool:
    if host.startswith("*."):
        return name.endswith(host[1:]) and name != host[2:]
    return host == name


def inside(network: str, address: str) -> bool:
    try:
        return IPv4Address(address) in IPv4Network(network)
    except (ipaddress.AddressValueError, ipaddress.NetmaskValueError, ValueError):
        return False


def ports_of(text: str) -> list[int]:
    said = text.split("://")[-1].partition(":")[2]
    return [int(said)] if said else [80, 443]


def verified(text: str) -> bool:
    """Whether a rule looks at the name that is said."""
    host = text.split("://")[-1].split(":")[0]
    return not text.startswith(("tcp://", "udp://")) and not host[0].isdigit()


def permits(text: str, name: str, how: str, said: str | None, inspect: bool) -> bool:
    if text.startswith(("tcp://", "udp://")):
        return True
    if text.startswith("tls://"):
        return how == "tls" and said == name
    if how == "raw":
        return not inspect and ports_of(text)[0] not in (80, 443)
    return said == name


def both(document: Any) -> tuple[PolicyJudge, Naive]:
    own = frozenset(map(IPv4Address, OWN))
    return judge(parse(document), own=lambda: own), Naive(document)


@settings(deadline=None, max_examples=400)
@given(documents, st.sampled_from(NAMES[1:]))
def test_names(document: Any, name: str) -> None:
    fast, naive = both(document)
    assert fast.name(name).allowed == naive.name(name)


@settings(deadline=None, max_examples=400)
@given(documents, destinations)
def test_destinations(document: Any, to: Destination) -> None:
    fast, naive = both(document)
    verdict = fast.destination(to)
    event(f"allowed {verdict.allowed}, named {to.name is not None}")
    assert verdict.allowed == naive.destination(to)


def agree_on_what_is_spoken(
    document: Any, to: Destination, speech: tuple[Spoken, str | None]
) -> None:
    fast, naive = both(document)
    speech = said_to(to, speech)
    verdict = fast.spoken(to, *speech)
    event(f"allowed {verdict.allowed}, inspect {verdict.inspect}, as {bool(verdict.name)}")
    allowed, name, inspect = naive.spoken(to, *speech)
    assert verdict.allowed == allowed
    if allowed:
        assert verdict.name == name
    if allowed and to.transport == "tcp":
        assert verdict.inspect == inspect


@settings(deadline=None, max_examples=400)
@given(documents, destinations, speeches)
def test_what_is_spoken(document: Any, to: Destination, speech: tuple[Spoken, str | None]) -> None:
    agree_on_what_is_spoken(document, to, speech)


few = st.sampled_from(["a.test", "*.test"])
near = st.one_of(
    few,
    *(few.map(f"{{}}:{port}".format) for port in (443, 5432)),
    *(
        few.map(f"{scheme}://{{}}:{port}".format)
        for scheme in ("tcp", "tls")
        for port in (443, 5432)
    ),
)


@settings(deadline=None, max_examples=400)
@given(
    st.lists(
        near | few.map(lambda host: {"host": host, "inspect": True}), min_size=1, max_size=4
    ).map(lambda each: {"allow": each}),
    st.builds(
        Destination,
        st.none() | st.sampled_from(["a.test", "b.a.test"]),
        st.just(IPv4Address("198.51.100.1")),
        st.sampled_from([443, 5432]),
    ),
    st.tuples(
        st.sampled_from(["tls", "tls", "http", "raw"]),
        st.sampled_from(["the name", "the name", "a.test", "b.a.test"]),
    ).map(lambda each: (each[0], None if each[0] == "raw" else each[1])),
)
def test_what_is_verified(
    document: Any, to: Destination, speech: tuple[Spoken, str | None]
) -> None:
    """The same, where most of what is asked is close to what is allowed."""
    agree_on_what_is_spoken(document, to, speech)


@settings(deadline=None, max_examples=400)
@given(documents, destinations, st.sampled_from(ADDRESSES))
def test_what_is_dialled(document: Any, to: Destination, address: str) -> None:
    fast, naive = both(document)
    verdict = fast.dialled(to, IPv4Address(address))
    event(f"allowed {verdict.allowed}, named {to.name is not None}")
    assert verdict.allowed == naive.dialled(to, address)


@settings(deadline=None, max_examples=400)
@given(
    st.lists(entries, min_size=1, max_size=4),
    destinations,
    speeches,
    st.sampled_from(ADDRESSES[:4]),
)
def test_the_rule_that_is_told_is_one_that_allows(
    allow: list[Any], to: Destination, speech: tuple[Spoken, str | None], address: str
) -> None:
    """Whoever adds what they are told, and again what they are told then, gets through."""

    def asked(by: PolicyJudge) -> Verdict:
        verdict = by.destination(to) if to.transport == "udp" else by.spoken(to, *speech)
        if not verdict.allowed:
            return verdict
        name = to.name or verdict.name or None
        dialled = IPv4Address(address) if to.name else to.address
        return by.dialled(Destination(name, to.address, to.port, to.transport), dialled)

    own = frozenset(map(IPv4Address, OWN))
    speech = said_to(to, speech)
    for _ in range(4):
        verdict = asked(judge(parse(allow), own=lambda: own))
        if verdict.allowed or not verdict.add:
            break
        assert verdict.add not in allow
        allow = [*allow, verdict.add]
    if not verdict.allowed:
        event("no rule would do it")
        closed = [*OWN, "127.0.0.1", "198.18.5.5"]
        fronted = to.name is not None and speech[1] not in (None, to.name)
        quic = to.transport == "udp" and to.port == 443
        assert fronted or quic or any(each in verdict.why for each in closed), verdict
