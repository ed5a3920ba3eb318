"""Names of hosts have one form, and nothing that a program takes for an address is a name."""

import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torpor.network.hostnames import LONGEST, is_below, is_normal, is_own, normal


@pytest.mark.parametrize(
    ("said", "form"),
    [
        ("Example.COM", "example.com"),
        ("example.com.", "example.com"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("BÜCHER.example", "xn--bcher-kva.example"),
        ("faß.example", "xn--fa-hia.example"),
        ("例え.example", "xn--r8jz45g.example"),
        ("例え。example", "xn--r8jz45g.example"),
        ("\uff45xample.com", "example.com"),
        ("a_b.example", "a_b.example"),
        ("1password.example", "1password.example"),
        ("xn--i-7iq.example", "xn--i-7iq.example"),
    ],
)
def test_case_dots_and_scripts_make_no_difference(said: str, form: str) -> None:
    assert normal(said) == form


@pytest.mark.parametrize(
    "said",
    [
        "", ".", "..", "a..b", ".a", "-a.example", "a-.example", "a b", "a/b", "é" * 80,
        "a" * 64 + ".example", ".".join(["abcdefg"] * 32), "xn--", "xn--a\x80", "xn--zz-.example",
        "xn--example-.com", "a\x00b.example", "a\nb", "%2e.example", "a*b.example",
    ],
)  # fmt: skip
def test_what_no_host_can_be_called_is_refused(said: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        normal(said)


@pytest.mark.parametrize(
    "said",
    [
        "127.1",
        "0x7f000001",
        "2130706433",
        "1.2.3.4",
        "017700000001",
        "\uff11\uff12\uff17.\uff11",
        "a.0x",
        "a.7",
    ],
)
def test_no_name_is_one_that_programs_take_for_an_address(said: str) -> None:
    with pytest.raises(ValueError, match="number"):
        normal(said)


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet="0123456789abcdefx.", min_size=1, max_size=12))
def test_what_inet_aton_reads_is_no_name(said: str) -> None:
    try:
        socket.inet_aton(said)
    except OSError:
        return
    assert not is_normal(said)


@settings(deadline=None, max_examples=300)
@given(st.text(max_size=40))
def test_the_form_is_stable_and_ascii(said: str) -> None:
    try:
        form = normal(said)
    except ValueError:
        return
    assert form.isascii()
    assert form == form.lower()
    assert len(form) <= LONGEST
    assert is_normal(form)


def test_a_domain_is_not_in_itself_and_a_longer_word_is_not_in_it() -> None:
    assert is_below("a.example.com", "example.com")
    assert not is_below("example.com", "example.com")
    assert not is_below("evilexample.com", "example.com")


def test_the_walls_own_domain_is_all_of_it() -> None:
    assert is_own("torpor.internal")
    assert is_own("x.y.torpor.internal")
    assert not is_own("nottorpor.internal")
