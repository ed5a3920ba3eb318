"""A rule is honoured as it reads, or refused with what to write instead; nothing is ignored."""

from ipaddress import IPv4Network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torpor.network.errors import PolicyError
from torpor.network.rules import Rule, read_denial, read_rule

WHERE = "egress.allow[3]"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("a.test", Rule("a.test", (80, 443), "a.test", says="name")),
        ("A.Test.", Rule("a.test", (80, 443), "a.test", says="name")),
        ("*.a.test", Rule("*.a.test", (80, 443), "a.test", True, says="name")),
        ("a.test:443", Rule("a.test:443", (443,), "a.test", says="name")),
        ("a.test:80", Rule("a.test:80", (80,), "a.test", says="name")),
        ("a.test.:22", Rule("a.test:22", (22,), "a.test", says="name if it can")),
        ("*.a.test:22", Rule("*.a.test:22", (22,), "a.test", True, says="name if it can")),
        ("tls://a.test:5432", Rule("tls://a.test:5432", (5432,), "a.test", says="tls")),
        ("TLS://a.test:443", Rule("tls://a.test:443", (443,), "a.test", says="tls")),
        ("tcp://a.test:443", Rule("tcp://a.test:443", (443,), "a.test")),
        ("udp://a.test:123", Rule("udp://a.test:123", (123,), "a.test", transport="udp")),
        ("bücher.test", Rule("xn--bcher-kva.test", (80, 443), "xn--bcher-kva.test", says="name")),
        ("198.51.100.7:25", Rule("198.51.100.7:25", (25,), network=IPv4Network("198.51.100.7"))),
        ("tcp://198.51.100.7:25",
         Rule("198.51.100.7:25", (25,), network=IPv4Network("198.51.100.7"))),
        ("198.51.100.0/24:25",
         Rule("198.51.100.0/24:25", (25,), network=IPv4Network("198.51.100.0/24"))),
        ("198.51.100.7/32:25",
         Rule("198.51.100.7:25", (25,), network=IPv4Network("198.51.100.7"))),
        ("udp://198.51.100.0/24:123",
         Rule("udp://198.51.100.0/24:123", (123,), network=IPv4Network("198.51.100.0/24"),
              transport="udp")),
    ],
)  # fmt: skip
def test_what_is_written_is_read_as_it_was_meant(said: str, meant: Rule) -> None:
    assert read_rule(WHERE, said) == meant
    assert read_rule(WHERE, meant.written) == meant


REFUSED = [
    ("github.com/org/*", "has a path", "Write github.com"),
    ("https://a.test/x", "has a path", "Write a.test"),
    ("https://a.test", "scheme 'https'", "Write a.test for ports 80 and 443, or a.test:443"),
    ("http://a.test:8080", "scheme 'http'", "Write a.test:8080"),
    ("wss://a.test", "scheme 'wss'", "a.test:443"),
    ("ssh://git@a.test", "has a user", "Write a.test, or a.test:22 for SSH"),
    ("github.com:org/x", "has a path", "Write github.com, which"),
    ("https://a.test:8443/x", "has a path", "Write a.test:8443, which"),
    ("ssh://a.test", "scheme 'ssh'", "Write a.test:22"),
    ("postgresql://a.test", "scheme 'postgresql'", "Write a.test:5432"),
    ("quic://a.test", "scheme 'quic'", "a.test:PORT"),
    ("git@a.test:org/x", "has a user", "Write a.test, or a.test:22 for SSH"),
    ("a.test?x", "has a query", "Write a.test, which"),
    ("a.test#x", "has a fragment", "Write a.test, which"),
    ("a.test\\x", "has a '\\'", ""),
    ("a.test:0", "from 1 to 65535", "Write a.test alone"),
    ("a.test:65536", "from 1 to 65535", "Write a.test alone"),
    ("a.test:99999999999", "from 1 to 65535", "Write a.test alone"),
    ("a.test:080", "from 1 to 65535", ""),
    ("a.test:", "from 1 to 65535", ""),
    ("a.test:٨٠", "from 1 to 65535", ""),
    ("a.test:80-90", "from 1 to 65535", "one rule for each port, such as a.test:80"),
    ("a.test:80,443", "from 1 to 65535", "one rule for each port, such as a.test:80"),
    ("a.test:*", "from 1 to 65535", "one rule for each port"),
    ("a.test:https", "from 1 to 65535", ""),
    (":443", "it is empty", ""),
    ("a.*.test", "not its first part alone", "*.example.com"),
    ("*a.test", "not its first part alone", "*.example.com"),
    ("*.*.test", "not its first part alone", "*.example.com"),
    ("a.test.*", "not its first part alone", "*.example.com"),
    ("**.a.test", "not its first part alone", "*.example.com"),
    ("*", "not its first part alone", "Write unrestricted"),
    ("*.", "it is empty", ""),
    ("localhost", "the machine itself", ""),
    ("x.localhost:80", "the machine itself", ""),
    ("nas", "has no dot", "nas.example.com"),
    ("packages", "has no dot", "presets: [packages]"),
    ("gateway.torpor.internal", "needs no rule", ""),
    ("*.torpor.internal", "needs no rule", ""),
    ("x.torpor.internal:443", "needs no rule", ""),
    ("a.test:53", "names port 53", "without a rule"),
    ("udp://198.51.100.7:53", "names port 53", ""),
    ("tcp://a.test", "has no port", "tcp://a.test:443"),
    ("udp://*.a.test", "has no port", "udp://*.a.test:123"),
    ("udp://a.test:443", "is QUIC", "Write a.test"),
    ("udp://198.51.100.7:443", "is QUIC", "198.51.100.7:443"),
    ("tls://198.51.100.7:443", "no name that could be verified", "198.51.100.7:443"),
    ("198.51.100.7", "has no port", "198.51.100.7:443"),
    ("198.51.100.0/24", "has no port", "198.51.100.0/24:443"),
    ("198.51.100.7/24:443", "an address and a network", "198.51.100.0/24"),
    ("198.51.100.0/33:443", "no address or network", ""),
    ("198.51.100.0/:443", "no address or network", ""),
    ("198.51.100.0/24/2:443", "no address or network", ""),
    ("256.1.1.1:443", "no address or network", ""),
    ("01.1.1.1:443", "no address or network", ""),
    ("127.1:443", "a number", ""),
    ("0x7f000001:443", "a number", ""),
    ("\uff11\uff12\uff17.1:443", "a number", ""),
    ("127.0.0.1:8080", "never reached", ""),
    ("127.0.0.0/8:8080", "never reached", ""),
    ("0.0.0.0:80", "never reached", ""),
    ("224.0.0.1:80", "never reached", ""),
    ("198.18.0.1:80", "never reached", ""),
    ("255.255.255.255:80", "never reached", ""),
    ("::1", "IPv6", "host's name"),
    ("[::1]:443", "IPv6", "host's name"),
    ("2001:db8::/32", "IPv6", "host's name"),
    ("[2001:db8::]/32:443", "IPv6", "host's name"),
    ("tcp://[::1]:443", "IPv6", "host's name"),
    ("a b.test", "a space", ""),
    (" a.test", "a space", ""),
    ("a.test\n", "a space or a control", ""),
    ("a\x00.test", "a space or a control", ""),
    ("a\u202e.test", "a space or a control", ""),
    ("", "1 to 512 characters", ""),
    ("a" * 513, "1 to 512 characters", ""),
    ("a" * 64 + ".test", "1 to 63", ""),
    ("-a.test", "1 to 63", ""),
    ("xn--zz-.test", "", ""),
    (5, "no text", ""),
    (None, "no text", ""),
    (["a.test"], "no text", ""),
]  # fmt: skip


@pytest.mark.parametrize(("said", "why", "instead"), REFUSED)
def test_what_would_not_be_honoured_is_refused_with_what_to_write(
    said: object, why: str, instead: str
) -> None:
    with pytest.raises(PolicyError) as caught:
        read_rule(WHERE, said)
    assert why in caught.value.happened
    assert instead in caught.value.todo
    assert caught.value.where == WHERE
    assert str(caught.value).startswith(f"{WHERE}: ")


@pytest.mark.parametrize(
    ("said", "says"),
    [("a.test", "name"), ("*.a.test", "name"), ("a.test:8443", "name"), ("tls://a.test:8", "tls")],
)
def test_where_names_are_verified_a_host_can_be_inspected(said: str, says: str) -> None:
    rule = read_rule(WHERE, said, inspect=True)
    assert rule.inspect
    assert rule.says == says, "what is neither TLS nor HTTP could not be inspected"


@pytest.mark.parametrize(
    "said", ["tcp://a.test:443", "udp://a.test:123", "198.51.100.7:443", "198.51.100.0/24:443"]
)
def test_where_nothing_is_looked_at_nothing_can_be_inspected(said: str) -> None:
    with pytest.raises(PolicyError, match="cannot be inspected"):
        read_rule(WHERE, said, inspect=True)


@pytest.mark.parametrize(
    ("said", "opens"),
    [
        ("10.0.0.5:5432", "10.0.0.0/8"),
        ("10.1.0.0/16:5432", "10.0.0.0/8"),
        ("10.0.0.0/8:5432", "10.0.0.0/8"),
        ("8.0.0.0/6:5432", None),
        ("0.0.0.0/0:443", None),
        ("169.254.0.0/16:80", "169.254.0.0/16"),
        ("169.254.169.254:80", "169.254.169.254/32"),
        ("198.51.100.0/24:80", None),
    ],
)
def test_a_rule_opens_the_range_that_all_of_it_lies_in(said: str, opens: str | None) -> None:
    found = read_rule(WHERE, said).opens
    assert (str(found.network) if found else None) == opens


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("A.test", "a.test"), ("*.a.test", "*.a.test"), ("a.test:443", "a.test:443"),
        ("198.51.100.7", "198.51.100.7"), ("10.0.0.0/8", "10.0.0.0/8"),
        ("127.0.0.1:80", "127.0.0.1:80"), ("198.51.100.7/32:80", "198.51.100.7:80"),
    ],
)  # fmt: skip
def test_what_is_denied_needs_no_port(said: str, written: str) -> None:
    denial = read_denial(WHERE, said)
    assert denial.written == written
    assert read_denial(WHERE, written) == denial


@pytest.mark.parametrize(
    "said",
    [
        "tcp://a.test:443",
        "udp://a.test:1",
        "a.test/x",
        "a.test:53",
        "198.51.100.7:53",
        "torpor.internal",
        "*",
        "nas",
        "::1",
        7,
    ],
)
def test_a_denial_that_would_not_be_honoured_is_refused(said: object) -> None:
    with pytest.raises(PolicyError):
        read_denial(WHERE, said)


@settings(deadline=None, max_examples=400)
@given(
    st.one_of(
        st.text(max_size=60),
        st.text(alphabet="ab1.:/*-x[]@?tcplsud0 5", max_size=30),
        st.from_regex(r"((tcp|tls|udp|x)://)?(\*\.)?[a-z0-9.-]{0,20}(/\d\d?)?(:\d{1,6})?"),
    ),
    st.booleans(),
)
def test_whatever_is_written_is_read_for_good_or_refused(said: str, inspect: bool) -> None:
    try:
        rule = read_rule(WHERE, said, inspect=inspect)
    except PolicyError:
        pass
    else:
        assert read_rule(WHERE, rule.written, inspect=inspect) == rule
        assert rule.written.isascii()
    try:
        denial = read_denial(WHERE, said)
    except PolicyError:
        return
    assert read_denial(WHERE, denial.written) == denial
