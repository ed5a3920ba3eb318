"""Which server is meant, and who gets to see a token."""

import pytest

from torpor.client import TargetError, is_local
from torpor.client.target import Target, target


def test_what_is_given_is_stronger_than_the_environment() -> None:
    environ = {"TORPOR_URL": "https://two.test/", "TORPOR_TOKEN": "t2"}
    assert target("http://one.test", "t1", environ) == Target("http://one.test", "t1")
    assert target(None, None, environ) == Target("https://two.test", "t2")
    assert target(None, None, {}) == Target("http://127.0.0.1:8470", None)


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8470", "ftp://x", "http://", "http://x:port", "http://x?y", "http://u:p@x", "x"],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(TargetError):
        target(url, None, {})


def test_a_token_with_a_line_end_is_refused() -> None:
    assert target(None, " t1\n", {}) == target(None, "t1", {})
    with pytest.raises(TargetError, match="token"):
        target(None, "t1\r\nhost: x", {})


def test_a_token_is_not_shown_where_a_target_is() -> None:
    assert "secret" not in repr(target(None, "secret", {}))


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:8470", True),
        ("http://127.9.9.9", True),
        ("http://[::1]:8470", True),
        ("http://localhost", True),
        ("http://localhost.evil.test", False),
        ("http://127.0.0.1.evil.test", False),
        ("http://10.0.0.1", False),
        ("nonsense", False),
    ],
)
def test_local_is_this_computer_and_nothing_else(url: str, local: bool) -> None:
    assert is_local(url) is local


def test_a_websocket_is_at_the_same_address() -> None:
    assert Target("http://h:1/below").websocket("/x?y=1") == "ws://h:1/below/x?y=1"
    assert Target("https://h").websocket("/x") == "wss://h/x"
