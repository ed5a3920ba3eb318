"""What a policy lets a machine reach, decision by decision."""

import sys
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address
from types import FrameType
from typing import Any

import pytest

from torpor.network.errors import PolicyError
from torpor.network.judge import PolicyJudge, judge
from torpor.network.policy import parse
from torpor.network.verdicts import Destination, Spoken, Transport, Verdict

STANDS = IPv4Address("198.18.7.7")
"""Stands for whatever name a destination has."""
HOST = {ip_address("203.0.113.80"), ip_address("10.9.9.9"), ip_address("2001:db8::80")}


def judging(said: object, packages: tuple[str, ...] = ()) -> PolicyJudge:
    return judge(parse(said), own=lambda: HOST, packages=packages)


def named(name: str, port: int = 443, transport: Transport = "tcp") -> Destination:
    return Destination(name, STANDS, port, transport)


def at(address: str, port: int = 443, transport: Transport = "tcp") -> Destination:
    return Destination(None, IPv4Address(address), port, transport)


def ends(
    by: PolicyJudge, to: Destination, how: Spoken, said: str | None, address: str | None = None
) -> Verdict:
    """Ask all that the wall asks of one connection, and return the first refusal or the last."""
    verdict = by.destination(to)
    if verdict.allowed:
        verdict = by.spoken(to, how, said)
    if not verdict.allowed:
        return verdict
    if verdict.name:
        to = Destination(verdict.name, to.address, to.port, to.transport)
    found = ip_address(address) if address else to.address
    dialled = by.dialled(to, IPv4Address("198.51.100.1") if found == STANDS else found)
    return verdict if dialled.allowed else dialled


# Names


def test_a_host_is_itself_and_a_domain_is_what_is_in_it() -> None:
    by = judging(["a.test", "*.b.test"])
    allowed = ["a.test", "x.b.test", "y.x.b.test"]
    denied = ["b.test", "evilb.test", "x.a.test", "a.test.evil.test", "test", "c.test"]
    assert [each for each in allowed + denied if by.name(each).allowed] == allowed


def test_nothing_of_a_denied_name_may_reach_a_resolver() -> None:
    """E1: data in the labels of a name is denied with the name."""
    verdict = judging(["good.test"]).name("mfrggzdfmztwq2lk.evil.test")
    assert verdict == Verdict(
        False,
        "list",
        "mfrggzdfmztwq2lk.evil.test is not in the list of what may be reached",
        "mfrggzdfmztwq2lk.evil.test",
    )


@pytest.mark.parametrize("said", ["none", "unrestricted", ["a.test"], {"deny": ["b.test"]}])
def test_the_sessions_own_services_are_always_there_and_nothing_else_of_their_domain(
    said: object,
) -> None:
    by = judging(said)
    for name in ("gateway.torpor.internal", "models.torpor.internal"):
        assert by.name(name).allowed
        assert by.destination(named(name, 80)).allowed
        assert by.spoken(named(name, 443), "tls", name).allowed
        assert not by.destination(named(name, 22)).allowed
        assert not by.destination(named(name, 443, "udp")).allowed
        assert not by.dialled(named(name), IPv4Address("198.51.100.1")).allowed
    for name in ("torpor.internal", "x.torpor.internal", "x.gateway.torpor.internal"):
        assert not by.name(name).allowed
        assert not by.destination(named(name)).allowed


@pytest.mark.parametrize("name", ["127.1", "a..b", "-x.test", "", "a b", "ü.test", "A.test"])
def test_what_is_no_name_is_never_looked_up(name: str) -> None:
    assert not judging("unrestricted").name(name).allowed


# The modes


def test_open_is_the_public_internet_and_nothing_else() -> None:
    by = judging("unrestricted")
    assert by.name("a.test").allowed
    assert ends(by, named("a.test"), "tls", "a.test").allowed
    assert ends(by, named("a.test", 25), "raw", None).allowed
    assert ends(by, at("198.51.100.7", 443), "tls", None).allowed
    assert ends(by, at("198.51.100.7", 22), "raw", None).allowed
    assert ends(by, at("198.51.100.7", 443), "tls", "b.test").allowed
    assert by.destination(at("198.51.100.7", 123, "udp")).allowed


@pytest.mark.parametrize("said", ["unrestricted", ["*.test", "0.0.0.0/0:443"]])
@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "169.254.169.254", "10.0.0.1", "192.168.1.1", "100.64.0.1", "0.0.0.9",
        "203.0.113.80", "10.9.9.9", "224.0.0.1", "198.18.9.9", "168.63.129.16",
    ],
)  # fmt: skip
def test_what_is_not_public_is_reached_by_no_address_and_no_name(
    said: object, address: str
) -> None:
    by = judging(said)
    assert not by.destination(at(address)).allowed
    assert not by.dialled(at(address), IPv4Address(address)).allowed
    assert ends(by, named("a.test"), "tls", "a.test", "198.51.100.1").allowed
    refused = ends(by, named("a.test"), "tls", "a.test", address)
    assert not refused.allowed
    assert address in refused.why


@pytest.mark.parametrize(
    "address",
    ["::1", "fe80::1", "fd00::1", "::ffff:127.0.0.1", "::ffff:10.9.9.9", "64:ff9b::7f00:1",
     "2001:db8::80", "::ffff:203.0.113.80"],
)  # fmt: skip
def test_a_name_leads_to_no_such_address_of_the_other_version(address: str) -> None:
    """E7: a check that knows IPv4 alone is gone round by an address of IPv6."""
    for said in ("unrestricted", ["a.test"]):
        assert not judging(said).dialled(named("a.test"), IPv6Address(address)).allowed


def test_a_name_may_have_public_addresses_of_the_other_version() -> None:
    assert judging(["a.test"]).dialled(named("a.test"), IPv6Address("2001:db8::1")).allowed


def test_none_is_nothing() -> None:
    by = judging("none")
    assert not by.name("a.test").allowed
    for to in (named("a.test"), at("198.51.100.7"), at("198.51.100.7", 123, "udp")):
        assert not by.destination(to).allowed
        assert not by.spoken(to, "tls", "a.test").allowed
        assert not by.dialled(to, IPv4Address("198.51.100.7")).allowed


@pytest.mark.parametrize("said", ["unrestricted", "none", ["a.test", "0.0.0.0/0:443"]])
def test_quic_is_refused_so_that_clients_use_what_the_wall_reads(said: object) -> None:
    """E5."""
    by = judging(said)
    assert not by.destination(named("a.test", 443, "udp")).allowed
    assert not by.destination(at("198.51.100.7", 443, "udp")).allowed


# What each form of rule verifies

CASES: list[tuple[str, int, Spoken, str | None, bool]] = [
    ("a.test", 443, "tls", "a.test", True),
    ("a.test", 443, "tls", "b.test", False),
    ("a.test", 443, "tls", None, False),
    ("a.test", 443, "raw", None, False),
    ("a.test", 80, "http", "a.test", True),
    ("a.test", 80, "http", "b.test", False),
    ("a.test", 80, "http", None, False),
    ("a.test", 80, "raw", None, False),
    ("a.test", 8080, "http", "a.test", False),
    ("a.test:443", 80, "http", "a.test", False),
    ("a.test:443", 443, "raw", None, False),
    ("a.test:22", 22, "raw", None, True),
    ("a.test:22", 22, "tls", "b.test", False),
    ("a.test:22", 22, "tls", None, False),
    ("a.test:8443", 8443, "tls", "a.test", True),
    ("a.test:8443", 8443, "http", "a.test", True),
    ("a.test:8443", 8443, "http", "b.test", False),
    ("tls://a.test:5432", 5432, "tls", "a.test", True),
    ("tls://a.test:5432", 5432, "tls", None, False),
    ("tls://a.test:5432", 5432, "raw", None, False),
    ("tls://a.test:5432", 5432, "http", "a.test", False),
    ("tcp://a.test:443", 443, "tls", "b.test", True),
    ("tcp://a.test:443", 443, "tls", None, True),
    ("tcp://a.test:443", 443, "raw", None, True),
    ("tcp://a.test:443", 443, "http", "b.test", True),
    ("tcp://a.test:443", 22, "raw", None, False),
    ("udp://a.test:123", 123, "tls", "a.test", False),
]


@pytest.mark.parametrize(("rule", "port", "how", "said", "allowed"), CASES)
def test_what_a_rule_verifies(
    rule: str, port: int, how: Spoken, said: str | None, allowed: bool
) -> None:
    verdict = ends(judging([rule]), named("a.test", port), how, said)
    assert verdict.allowed is allowed
    assert verdict.rule == (rule if allowed else "list")
    assert allowed or verdict.why


def test_all_rules_that_match_are_evaluated_whatever_their_order() -> None:
    for rules in (["a.test", "tcp://a.test:443"], ["tcp://a.test:443", "a.test"]):
        assert ends(judging(rules), named("a.test"), "raw", None).allowed
        assert ends(judging(rules), named("a.test"), "tls", "a.test").allowed
    for rules in (["0.0.0.0/0:80", "10.0.0.5:80"], ["10.0.0.5:80", "0.0.0.0/0:80"]):
        assert ends(judging(rules), at("10.0.0.5", 80), "raw", None).allowed


def test_udp_is_reached_by_its_own_rules_alone() -> None:
    by = judging(["udp://a.test:123", "a.test:123", "udp://198.51.100.0/24:99"])
    assert by.destination(named("a.test", 123, "udp")).rule == "udp://a.test:123"
    assert by.destination(named("a.test", 123)).rule == "a.test:123"
    assert by.destination(at("198.51.100.9", 99, "udp")).allowed
    assert not by.destination(at("198.51.100.9", 99)).allowed
    quic = judging(["a.test"]).destination(named("a.test", 443, "udp"))
    assert (quic.allowed, quic.add) == (False, ""), "no rule opens it"


def test_inspection_is_where_any_rule_that_permits_it_says_so() -> None:
    inspected: dict[str, Any] = {"host": "a.test", "inspect": True}
    by = judging([inspected, "*.test", "tcp://b.test:443"])
    assert ends(by, named("a.test"), "tls", "a.test").inspect
    assert not ends(by, named("b.test"), "tls", "b.test").inspect
    assert ends(judging(["*.test", inspected]), named("a.test"), "tls", "a.test").inspect
    ported = {"host": "a.test:8443", "inspect": True}
    assert not ends(judging([ported]), named("a.test", 8443), "raw", None).allowed


# Addresses that the machine dials itself


def test_a_name_that_is_said_to_some_address_must_be_that_addresses() -> None:
    """E2: with an allowed name in its TLS, another address is still another address."""
    by = judging(["a.test"])
    to = at("198.51.100.66")
    assert by.destination(to).allowed, "what is said decides"
    verdict = by.spoken(to, "tls", "a.test")
    assert verdict.allowed
    assert verdict.name == "a.test", "whose address it must be"
    assert not by.dialled(to, to.address).allowed, "as itself it is reached by no rule"
    assert by.dialled(Destination("a.test", to.address, 443), to.address).allowed


@pytest.mark.parametrize(
    ("how", "said"), [("tls", "b.test"), ("tls", None), ("raw", None), ("http", "b.test")]
)
def test_an_address_without_an_allowed_name_is_not_reached(how: Spoken, said: str | None) -> None:
    assert not ends(judging(["a.test"]), at("198.51.100.66"), how, said).allowed


def test_what_is_not_verified_is_no_name_for_an_address() -> None:
    by = judging(["tcp://a.test:443"])
    assert not by.destination(at("198.51.100.66")).allowed
    both = judging(["tcp://a.test:443", "b.test"])
    assert not both.spoken(at("198.51.100.66"), "tls", "a.test").allowed


def test_a_port_at_which_no_name_is_verified_is_refused_at_once() -> None:
    assert judging(["a.test"]).destination(at("198.51.100.66", 8080)) == Verdict(
        False, "list", "no rule is for 198.51.100.66 at this port", "198.51.100.66:8080"
    )


def test_an_address_and_its_port_on_the_local_network() -> None:
    """E13."""
    by = judging(["10.0.0.5:5432"])
    assert ends(by, at("10.0.0.5", 5432), "raw", None).allowed
    assert ends(by, at("10.0.0.5", 5432), "tls", None).allowed
    for other in (at("10.0.0.5", 5433), at("10.0.0.6", 5432), at("10.0.0.5", 5432, "udp")):
        assert not by.destination(other).allowed


def test_a_name_reaches_a_private_address_by_a_rule_for_both() -> None:
    by = judging(["db.test:5432", "10.0.0.0/8:5432"])
    assert ends(by, named("db.test", 5432), "raw", None, "10.0.0.5").allowed
    alone = judging(["db.test:5432"])
    refused = ends(alone, named("db.test", 5432), "raw", None, "10.0.0.5")
    assert refused.add == "10.0.0.5:5432"
    elsewhere = judging(["db.test:5432", "10.0.0.0/8:5433"])
    assert not ends(elsewhere, named("db.test", 5432), "raw", None, "10.0.0.5").allowed


@pytest.mark.parametrize(
    ("rule", "address", "opened"),
    [
        ("0.0.0.0/0:80", "10.0.0.5", False),
        ("8.0.0.0/6:80", "10.0.0.5", False),
        ("10.0.0.0/8:80", "10.0.0.5", True),
        ("10.0.0.0/30:80", "10.0.0.5", False),
        ("169.254.0.0/16:80", "169.254.5.5", True),
        ("169.254.0.0/16:80", "169.254.169.254", False),
        ("169.254.169.254:80", "169.254.169.254", True),
        ("100.64.0.0/10:80", "100.100.100.200", False),
        ("10.0.0.0/8:80", "10.9.9.9", False),
        ("10.9.9.9:80", "10.9.9.9", False),
        ("203.0.113.0/24:80", "203.0.113.80", False),
        ("203.0.113.0/24:80", "203.0.113.81", True),
    ],
)
def test_what_a_range_opens(rule: str, address: str, opened: bool) -> None:
    by = judging([rule])
    assert by.destination(at(address, 80)).allowed is opened
    assert by.dialled(at(address, 80), IPv4Address(address)).allowed is opened


def test_only_the_address_that_was_asked_for_is_dialled() -> None:
    by = judging(["198.51.100.0/24:80"])
    assert by.dialled(at("198.51.100.1", 80), IPv4Address("198.51.100.1")).allowed
    assert not by.dialled(at("198.51.100.1", 80), IPv4Address("198.51.100.2")).allowed


def test_everything_public_and_a_part_of_what_is_not() -> None:
    by = judging({"unrestricted": True, "allow": ["10.1.0.0/16:5432", "udp://10.1.0.0/16:123"]})
    assert by.name("db.test").allowed
    assert ends(by, named("a.test"), "tls", "a.test").allowed
    assert ends(by, at("198.51.100.7", 25), "raw", None).rule == "open"
    assert ends(by, at("10.1.0.5", 5432), "raw", None).rule == "10.1.0.0/16:5432"
    assert ends(by, named("db.test", 5432), "raw", None, "10.1.0.5").allowed
    assert by.destination(at("10.1.0.5", 123, "udp")).allowed
    for other in (at("10.1.0.5", 5433), at("10.2.0.5", 5432), at("198.51.100.7", 443, "udp")):
        assert not by.destination(other).allowed
        assert not by.dialled(other, other.address).allowed


# Denials


def test_a_denied_name_is_denied_in_every_way_that_names_it() -> None:
    """E5: a name among what is denied is honoured."""
    by = judging({"deny": ["evil.test", "*.evil.test"]})
    for name in ("evil.test", "x.evil.test"):
        assert by.name(name).rule in ("deny evil.test", "deny *.evil.test")
        assert not by.destination(named(name)).allowed
        assert not by.destination(named(name, 443, "udp")).allowed
        assert not by.spoken(at("198.51.100.7"), "tls", name).allowed
        assert not by.spoken(at("198.51.100.7", 80), "http", name).allowed
        assert not by.spoken(named("a.test"), "tls", name).allowed
    assert by.name("a.test").allowed
    assert by.name("notevil.test").allowed


def test_a_denial_wins_over_every_rule() -> None:
    by = judging({"allow": ["*.a.test", "b.a.test", "0.0.0.0/0:443"], "deny": ["b.a.test"]})
    assert by.name("c.a.test").allowed
    verdict = by.name("b.a.test")
    assert (verdict.allowed, verdict.rule, verdict.add) == (False, "deny b.a.test", "")
    assert not by.spoken(at("198.51.100.7"), "tls", "b.a.test").allowed


def test_a_denied_port_leaves_the_others() -> None:
    by = judging({"deny": ["a.test:25", "198.51.100.0/24:25"]})
    assert by.name("a.test").allowed
    assert not by.destination(named("a.test", 25)).allowed
    assert by.destination(named("a.test", 26)).allowed
    assert not by.destination(at("198.51.100.1", 25)).allowed
    assert by.destination(at("198.51.100.1", 26)).allowed


def test_a_denied_address_is_not_reached_by_a_name() -> None:
    by = judging({"allow": ["a.test"], "deny": ["198.51.100.0/24"]})
    assert not by.dialled(named("a.test"), IPv4Address("198.51.100.1")).allowed
    assert not by.dialled(named("a.test"), IPv6Address("::ffff:198.51.100.1")).allowed
    assert by.dialled(named("a.test"), IPv4Address("203.0.113.1")).allowed


# What is told


def test_what_is_denied_tells_the_rule_to_add_only_where_rules_add() -> None:
    assert judging(["b.test"]).name("a.test").add == "a.test"
    assert judging("none").name("a.test").add == ""
    assert judging("unrestricted").destination(at("10.0.0.1", 80)).add == ""
    assert judging(["b.test"]).destination(at("127.0.0.1", 80)).add == "", "no rule would do it"
    assert judging(["b.test"]).destination(named("a.test", 123, "udp")).add == "udp://a.test:123"
    fronted = judging(["a.test", "b.test"]).spoken(named("a.test"), "tls", "b.test")
    assert (fronted.why, fronted.add) == ("it says b.test on a connection to a.test", "")


def test_rules_of_presets_say_where_they_are_from() -> None:
    by = judging({"presets": ["packages", "openai"]}, ("index.example", "files.example:8080"))
    assert by.name("index.example").rule == "packages: index.example"
    assert by.name("api.openai.com").rule == "openai: api.openai.com"
    assert by.destination(named("files.example", 8080)).allowed
    assert not by.name("other.example").allowed


def test_without_the_preset_an_images_hosts_are_nothing() -> None:
    assert not judging(["a.test"], ("index.example",)).name("index.example").allowed


def test_hosts_of_an_image_that_are_no_rules_are_refused() -> None:
    with pytest.raises(PolicyError, match="packages"):
        judging({"presets": ["packages"]}, ("127.0.0.1:80",))


# What is said


@pytest.mark.parametrize(
    ("said", "to", "heeds"),
    [
        (["a.test"], named("a.test"), True),
        (["a.test:22"], named("a.test", 22), True),
        (["tcp://a.test:443"], named("a.test"), False),
        (["tcp://a.test:443", "a.test"], named("a.test"), False),
        (["tcp://a.test:443", {"host": "a.test", "inspect": True}], named("a.test"), True),
        (["198.51.100.0/24:443"], at("198.51.100.1"), False),
        (["a.test"], at("198.51.100.1"), True),
        ({"allow": ["tcp://a.test:443"], "deny": ["b.test"]}, named("a.test"), True),
        ("unrestricted", named("a.test"), False),
        ("unrestricted", at("198.51.100.1"), False),
        ({"ech": "deny"}, named("a.test"), True),
        ({"deny": ["b.test"]}, named("a.test"), True),
        ({"deny": ["10.0.0.0/8"]}, named("a.test"), False),
    ],
)
def test_whether_it_matters_what_is_said(said: object, to: Destination, heeds: bool) -> None:
    by = judging(said)
    assert by.heeds(to) is heeds
    if not heeds:
        speeches: list[tuple[Spoken, str | None]] = [
            ("raw", None), ("tls", None), ("tls", "x.test"), ("http", "x.test"),
        ]  # fmt: skip
        assert len({by.spoken(to, *speech) for speech in speeches}) == 1


def lines_run(do: Callable[[], object]) -> int:
    """Return how many lines of Python run while something is done."""
    count = 0

    def trace(_frame: FrameType, event: str, _arg: object) -> Callable[..., Any]:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        do()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(
    ("to", "rule"),
    [(named("a.b.w.test"), "*.w.test"), (at("198.51.100.7", 5432), "198.51.100.7:5432")],
)
def test_two_thousand_rules_are_not_gone_through(to: Destination, rule: str) -> None:
    """E17: a decision takes the same steps under many rules of the same kinds as under one."""
    others = [f"*.h{number}.test" for number in range(1000)]
    others += [f"198.51.{number % 100}.{number // 100}:5432" for number in range(1000)]
    one = ["*.other.test", "203.0.113.7:5432", rule]
    few, many = judging(one), judging([*others, *one])

    def decide(by: PolicyJudge) -> None:
        assert by.destination(to).allowed
        by.spoken(to, "tls", to.name)
        by.name(to.name or "a.b.w.test")

    assert lines_run(lambda: decide(many)) == lines_run(lambda: decide(few))
