"""Bindings: which requests a secret is for, and what is refused when it is written."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torpor.network.bindings import (
    Asked,
    BasicUse,
    Binding,
    HeaderUse,
    PlaceholderUse,
    QueryUse,
    check_name,
    check_open,
    check_value,
    choose,
    environment,
    parse,
    plain,
    plain_path,
)
from torpor.network.errors import PolicyError


def bound(**said: Any) -> Binding:
    return parse({"host": "api.example.test", **said}, "KEY")


def asked(target: str = "/", **rest: Any) -> Asked:
    return Asked(
        **{
            "scheme": "https", "host": "api.example.test", "port": 443, "method": "GET",
            "target": target, **rest,
        }
    )  # fmt: skip


def matches(binding: Binding, request: Asked) -> bool:
    return choose([binding], request).binding is binding


def test_what_is_not_said_is_a_bearer_token_for_all_of_one_host() -> None:
    assert bound() == Binding(
        "KEY", "api.example.test", HeaderUse("authorization", "Bearer {}"), 443, ("https", "wss")
    )


@pytest.mark.parametrize(
    ("said", "use"),
    [
        ({"header": "X-Api-Key"}, HeaderUse("x-api-key", "{}")),
        (
            {"header": "Authorization", "template": "token {}"},
            HeaderUse("authorization", "token {}"),
        ),
        ({"basic": "x-access-token"}, BasicUse("x-access-token")),
        ({"query": "key"}, QueryUse("key")),
        (
            {"placeholder": "ghp_0000000000000000", "in_body": True},
            PlaceholderUse("ghp_0000000000000000", "KEY", in_body=True),
        ),
        (
            {"placeholder": "p" * 16, "variable": "GH_TOKEN"},
            PlaceholderUse("p" * 16, "GH_TOKEN"),
        ),
    ],
)
def test_each_use_is_read_and_written_back(said: dict[str, Any], use: object) -> None:
    binding = bound(**said)
    assert binding.use == use
    assert parse(plain(binding), "KEY") == binding


def test_a_placeholder_is_made_up_and_nobody_elses() -> None:
    texts = {bound(placeholder=True).use.text for _ in range(50)}
    assert len(texts) == 50
    assert environment([bound(placeholder=True, variable="A"), bound()]).keys() == {"A"}
    kept = parse({"host": "h.test", "placeholder": True}, "my.key-2", placeholder="q" * 20)
    assert environment([kept]) == {"MY_KEY_2": "q" * 20}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([], "an object"),
        ({}, "missing"),
        ({"host": "h.test", "hosts": []}, "not known"),
        ({"host": "*"}, "whole first part"),
        ({"host": "*.com"}, "too wide"),
        ({"host": "a.*.test"}, "whole first part"),
        ({"host": "a*.h.test"}, "whole first part"),
        ({"host": "https://h.test"}, "more than a host"),
        ({"host": "h.test:443"}, "more than a host"),
        ({"host": "h.test/x"}, "more than a host"),
        ({"host": "u@h.test"}, "more than a host"),
        ({"host": "10.0.0.1"}, "an address"),
        ({"host": "h..test"}, "no name"),
        ({"host": "bücher.test"}, "xn--"),
        ({"host": 1}, "a text"),
        ({"host": "h.test", "port": 0}, "1 to 65535"),
        ({"host": "h.test", "port": True}, "1 to 65535"),
        ({"host": "h.test", "schemes": ["http"]}, "no TLS"),
        ({"host": "h.test", "schemes": []}, "a list"),
        ({"host": "h.test", "methods": "GET"}, "a list"),
        ({"host": "h.test", "methods": ["get"]}, "capitals"),
        ({"host": "h.test", "path": "v1"}, "no pattern"),
        ({"host": "h.test", "path": "/a?b"}, "no pattern"),
        ({"host": "h.test", "path": "/a%2fb"}, "no pattern"),
        ({"host": "h.test", "path": "/a**"}, "of its own"),
        ({"host": "h.test", "path": "/**/a/**"}, "once"),
        ({"host": "h.test", "path": "/a/../b"}, "no request's path"),
        ({"host": "h.test", "path": "/a//b"}, "no request's path"),
        ({"host": "h.test", "header": "a", "basic": "u"}, "one way"),
        ({"host": "h.test", "header": "a b"}, "no name of a header"),
        ({"host": "h.test", "header": ":path"}, "no name of a header"),
        ({"host": "h.test", "header": "Host"}, "how a request is to be read"),
        ({"host": "h.test", "header": "Transfer-Encoding"}, "how a request is to be read"),
        ({"host": "h.test", "header": "Sec-WebSocket-Key"}, "how a request is to be read"),
        ({"host": "h.test", "template": "no place"}, "'{}' once"),
        ({"host": "h.test", "template": "{} {}"}, "'{}' once"),
        ({"host": "h.test", "template": "x\r\ny: {}"}, "ASCII"),
        ({"host": "h.test", "query": "k", "template": "{}"}, "belongs to 'header'"),
        ({"host": "h.test", "in_body": True}, "belongs to 'placeholder'"),
        ({"host": "h.test", "query": "a&b"}, "no name of a parameter"),
        ({"host": "h.test", "basic": "a:b"}, "without ':'"),
        ({"host": "h.test", "placeholder": False}, "16 to 128"),
        ({"host": "h.test", "placeholder": "short"}, "16 to 128"),
        ({"host": "h.test", "placeholder": "%20" * 10}, "16 to 128"),
        ({"host": "h.test", "placeholder": True, "variable": "A B"}, "no name of a variable"),
        ({"host": "h.test", "placeholder": True, "in_body": 1}, "true or false"),
    ],
)
def test_what_would_do_nothing_or_harm_is_refused_with_its_place(said: Any, why: str) -> None:
    with pytest.raises(PolicyError, match=r"^binding") as caught:
        parse(said, "KEY")
    assert why in f"{caught.value}"


def test_names_are_compared_in_lower_case_and_without_the_last_dot() -> None:
    assert bound(host="API.Example.TEST.").host == "api.example.test"


def test_a_star_is_all_below_and_not_the_name_itself() -> None:
    below = bound(host="*.example.test")
    for host, is_in in (
        ("api.example.test", True),
        ("a.b.example.test", True),
        ("example.test", False),
        ("evilexample.test", False),
        ("example.test.evil.test", False),
        (".example.test", False),
    ):
        assert matches(below, asked(host=host)) is is_in, host
    assert not matches(bound(), asked(host="x.api.example.test"))


def test_scheme_port_and_method_must_all_be_those() -> None:
    binding = bound(port=8443, methods=["POST", "PUT"], schemes=["https"])
    right = {"port": 8443, "method": "PUT"}
    assert matches(binding, asked(**right))
    for wrong in ({"port": 443}, {"method": "GET"}, {"scheme": "wss"}, {"method": "put"}):
        assert not matches(binding, asked(**right | wrong)), wrong
    assert matches(bound(schemes=["wss"]), asked(scheme="wss"))
    assert not matches(bound(schemes=["wss"]), asked())


def test_never_without_tls() -> None:
    choice = choose([bound()], asked(scheme=None))
    assert choice.binding is None
    assert "without TLS" in choice.why


@pytest.mark.parametrize(
    ("path", "right", "wrong"),
    [
        ("/**", ["/", "/a", "/a/../b", "/%2f", "/a//b", "*"], []),
        ("/", ["/", "/?q"], ["/a", "//"]),
        ("/v1", ["/v1", "/v1?x=/v2", "/%761"], ["/v1/", "/v1/a", "/v10", "/V1"]),
        ("/v1/*", ["/v1/a", "/v1/", "/v1/a?b/c"], ["/v1", "/v1/a/b", "/v2/a"]),
        ("/v1/**", ["/v1", "/v1/", "/v1/a/b"], ["/v10", "/v2", "/"]),
        ("/r/*/x", ["/r/a/x"], ["/r/a/b/x", "/r/x", "/r/a/x/"]),
        ("/r/**/x", ["/r/x", "/r/a/x", "/r/a/b/x"], ["/rx", "/r/a/xy"]),
        ("/a.b", ["/a.b"], ["/acb"]),
        ("/f/*.json", ["/f/a.json", "/f/.json"], ["/f/a.jsonx", "/f/a/b.json"]),
    ],
)  # fmt: skip
def test_paths(path: str, right: list[str], wrong: list[str]) -> None:
    binding = bound(path=path)
    for each in right:
        assert matches(binding, asked(each)), each
    for each in wrong:
        assert not matches(binding, asked(each)), each


@pytest.mark.parametrize(
    "target",
    [
        "/v1/../admin", "/v1/%2e%2e/admin", "/v1/%2E./admin", "/v1/./a", "/v1/..", "/v1/..;x/admin",
        "/v1%2fa", "/v1/%5c..%5cadmin", "/v1/\\..\\admin", "/v1//admin", "/v1/%252e%252e/admin",
        "/v1/%00", "/v1/%zz", "/v1/%", "/v1/%ff", "/v1/a\x00", "/v1/ä", "/v1/a#b", "/v1/%0a",
        "v1/a", "", "*",
    ],
)  # fmt: skip
def test_a_path_that_servers_read_in_several_ways_is_none_of_a_narrow_binding(target: str) -> None:
    assert plain_path(target) is None
    assert not matches(bound(path="/v1/**"), asked(target))


def test_more_than_one_match_is_none_whoever_they_are_of() -> None:
    exact, wide = bound(), parse({"host": "*.example.test"}, "OTHER")
    choice = choose([exact, wide], asked())
    assert choice.binding is None
    assert choice.among == ("KEY", "OTHER")
    assert "2 bindings match" in choice.why
    assert choose([exact, wide], asked(host="b.example.test")).binding is wide
    twice = choose([bound(path="/a"), bound(path="/*")], asked("/a"))
    assert (twice.binding, twice.among) == (None, ("KEY",))


def test_no_match_is_told_only_where_there_are_bindings() -> None:
    assert choose([bound(path="/a")], asked("/b")).why
    assert not choose([bound()], asked(host="other.test")).why
    assert not choose([], asked()).why


@given(
    st.lists(st.sampled_from(["/**", "/v1/**", "/v1/*", "/v1/a", "/v2/**"]), max_size=4),
    st.sampled_from(["/v1/a", "/v1/b", "/v2", "/v1/../v2", "/"]),
)
def test_it_is_chosen_exactly_if_it_alone_matches(paths: list[str], target: str) -> None:
    bindings = [bound(path=each) for each in paths]
    alone = [each for each in bindings if matches(each, asked(target))]
    assert choose(bindings, asked(target)).binding is (alone[0] if len(alone) == 1 else None)


@given(st.text(alphabet=st.characters(max_codepoint=0x180), max_size=30))
def test_no_path_is_matched_that_leaves_what_was_bound(rest: str) -> None:
    path = plain_path("/v1/" + rest)
    if path is not None:
        segments = path.split("/")
        assert ".." not in segments
        assert "." not in segments
        assert "" not in segments[1:-1]
        assert "%" not in path


@pytest.mark.parametrize("name", ["", "1A", "a b", "a" * 65, "a/b", "-a", "ä", "A\n"])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(PolicyError, match="cannot be called"):
        check_name(name)


@pytest.mark.parametrize(
    "value",
    ["", "short77", "x" * 8193, "line\nline2", "caf\xe9-cafe", " spaces-around ", "tab\tabcdef"],
)
def test_values_that_cannot_be_are_refused_and_not_repeated(value: str) -> None:
    with pytest.raises(PolicyError) as caught:
        check_value(value)
    assert not value or value not in str(caught.value)
    assert check_value("12345678") == "12345678"


def test_an_open_policy_is_refused_unless_it_was_said_twice() -> None:
    with pytest.raises(PolicyError, match="every public host"):
        check_open(True, although_open=False)
    check_open(True, although_open=True)
    check_open(False, although_open=False)
