"""A policy says what it means in every form that it can be written in, or is refused."""

import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from torpor.network.errors import PolicyError
from torpor.network.policy import MOST_RULES, Limits, Policy, parse


def test_nothing_said_is_the_public_internet() -> None:
    assert Policy().mode == "open"
    assert Policy().plain() == "unrestricted"


def test_one_host_named_makes_it_a_list() -> None:
    assert parse(["a.test"]).mode == "list"
    assert parse({"allow": ["a.test"]}).mode == "list"
    assert parse({"presets": ["packages"]}).mode == "list"


def test_all_and_nothing_are_said_in_words() -> None:
    assert parse("none") == Policy(mode="none")
    assert parse("unrestricted") == Policy() == parse({"unrestricted": True})


SAME = [
    ("[a.test, '*.b.test']", {"allow": [{"host": "a.test"}, {"host": "*.b.test"}]}),
    ("allow: [A.Test., a.test]", {"allow": [{"host": "a.test"}]}),
    ("allow: [{host: a.test}]", {"allow": [{"host": "a.test"}]}),
    ("allow: [{host: a.test, inspect: false}]", {"allow": [{"host": "a.test"}]}),
    ("allow: [{host: a.test, inspect: true}]", {"allow": [{"host": "a.test", "inspect": True}]}),
    (
        "{allow: [a.test], allowIps: [198.51.100.7]}",
        {"allow": [{"host": "a.test"}, {"host": "198.51.100.7:80"}, {"host": "198.51.100.7:443"}]},
    ),
    ("allowIps: [198.51.100.7]",
     {"allow": [{"host": "198.51.100.7:80"}, {"host": "198.51.100.7:443"}]}),
    ("{presets: [packages, github, packages]}", {"presets": ["packages", "github"]}),
    ("deny: [A.test, 10.0.0.0/8]", {"unrestricted": True, "deny": ["a.test", "10.0.0.0/8"]}),
    ("{allow: ['*.a.test'], deny: [b.a.test]}",
     {"allow": [{"host": "*.a.test"}], "deny": ["b.a.test"]}),
    ("{allow: [a.test], ech: allow}", {"allow": [{"host": "a.test"}], "ech": "allow"}),
    ("ech: deny", {"unrestricted": True, "ech": "deny"}),
    ("{allow: [a.test], hold: 1h30m}", {"allow": [{"host": "a.test"}], "hold": 5400}),
    ("{allow: [a.test], hold: 10m}", {"allow": [{"host": "a.test"}]}),
    (
        "{unrestricted: true, allow: [10.0.0.5:5432]}",
        {"unrestricted": True, "allow": [{"host": "10.0.0.5:5432"}]},
    ),
    ("hold: 0", {"unrestricted": True, "hold": 0}),
    (
        "limits: {connections: 5, bytes: 1000000}",
        {"unrestricted": True, "limits": {"connections": 5, "bytes": 1000000}},
    ),
    ("limits: {connections: 1024}", "unrestricted"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "plain"), SAME)
def test_it_comes_back_in_one_form_that_means_the_same(said: str, plain: object) -> None:
    policy = parse(yaml.safe_load(said))
    assert policy.plain() == plain
    assert parse(json.loads(json.dumps(policy.plain()))) == policy


@pytest.mark.parametrize(
    ("said", "where", "why"),
    [
        (None, "egress", "it is empty"),
        ({}, "egress", "it says nothing"),
        ("open", "egress", "neither none nor unrestricted"),
        ("a.test", "egress", "neither none nor unrestricted"),
        (True, "egress", "bool"),
        (7, "egress", "int"),
        ([], "egress.allow", "empty"),
        ({"allow": []}, "egress.allow", "empty"),
        ({"allow": None}, "egress.allow", "no list"),
        ({"allow": "a.test"}, "egress.allow", "no list"),
        ({"allow": ["a.test", "b.test/x"]}, "egress.allow[1]", "path"),
        ({"allow": [{"host": "b.test/x"}]}, "egress.allow[0].host", "path"),
        ({"allow": [{"inspect": True}]}, "egress.allow[0]", "no host"),
        ({"allow": [{"host": "a.test", "port": 5}]}, "egress.allow[0].port", "no such key"),
        ({"allow": [{"host": "a.test", "inspect": "yes"}]}, "egress.allow[0].inspect", "neither"),
        ({"allow": [{"host": "a.test", "inspect": 1}]}, "egress.allow[0].inspect", "neither"),
        ({"allow": ["a.test"], "unrestricted": True}, "egress.unrestricted", "both"),
        ({"presets": ["github"], "unrestricted": True}, "egress.unrestricted", "both"),
        (
            {"allow": ["10.0.0.5:22", "198.51.100.7:22"], "unrestricted": True},
            "egress.unrestricted",
            "198.51.100.7:22 adds nothing",
        ),
        ({"allow": ["a.test"], "unrestricted": False}, "egress.unrestricted", "not true"),
        ({"unrestricted": 1}, "egress.unrestricted", "not true"),
        ({"allow": ["a.test"], "vpcUuid": "x"}, "egress.vpcUuid", "VPC"),
        ({"subnetUuid": "x"}, "egress.subnetUuid", "VPC"),
        ({"allows": ["a.test"]}, "egress.allows", "no such key"),
        ({"mode": "none"}, "egress.mode", "none"),
        ({7: 8}, "egress.7", "no such key"),
        ({"allowIps": ["2001:db8::1"]}, "egress.allowIps[0]", "IPv4"),
        ({"allowIps": ["10.0.0.0/8"]}, "egress.allowIps[0]", "IPv4"),
        ({"allowIps": ["1.2.3"]}, "egress.allowIps[0]", "number"),
        ({"allowIps": ["127.0.0.1"]}, "egress.allowIps[0]", "never reached"),
        ({"deny": ["https://a.test"]}, "egress.deny[0]", "scheme"),
        ({"deny": []}, "egress.deny", "empty"),
        ({"presets": ["nonsense"]}, "egress.presets[0]", "no preset"),
        ({"presets": [{}]}, "egress.presets[0]", "no preset"),
        ({"presets": "github"}, "egress.presets", "no list"),
        ({"ech": True}, "egress.ech", "neither"),
        ({"hold": -1}, "egress.hold", "no time"),
        ({"hold": True}, "egress.hold", "no time"),
        ({"hold": "long"}, "egress.hold", "no time"),
        ({"hold": ""}, "egress.hold", "no time"),
        ({"hold": 1.5}, "egress.hold", "no time"),
        ({"hold": "169h"}, "egress.hold", "no time"),
        ({"limits": {}}, "egress.limits", "no limit"),
        ({"limits": {"connections": 0}}, "egress.limits.connections", "whole number"),
        ({"limits": {"connections": True}}, "egress.limits.connections", "whole number"),
        ({"limits": {"connections": "5"}}, "egress.limits.connections", "whole number"),
        ({"limits": {"speed": 5}}, "egress.limits.speed", "no such limit"),
        (["a.test"] * (MOST_RULES + 1), "egress.allow", "more than"),
    ],
)
def test_what_would_not_be_honoured_is_refused_where_it_stands(
    said: object, where: str, why: str
) -> None:
    with pytest.raises(PolicyError) as caught:
        parse(said)
    assert caught.value.where == where
    assert why in caught.value.happened
    assert str(caught.value).startswith(f"{where}: ")


def test_beside_everything_public_a_list_opens_what_is_not() -> None:
    assert parse({"unrestricted": True, "allow": ["10.0.0.0/8:5432"]}).mode == "open"


def test_the_most_rules_there_can_be_can_be() -> None:
    policy = parse([f"h{number}.test" for number in range(MOST_RULES)])
    assert len(policy.allow) == MOST_RULES


@pytest.mark.parametrize(
    ("said", "hidden"),
    [
        ("unrestricted", True),
        (["a.test"], False),
        ({"presets": ["github"]}, False),
        ({"deny": ["a.test"]}, False),
        ({"deny": ["10.0.0.0/8"]}, True),
        ({"allow": ["a.test"], "ech": "allow"}, True),
        ({"ech": "deny"}, False),
    ],
)
def test_names_may_be_hidden_where_none_decides_or_it_is_said(said: object, hidden: bool) -> None:
    assert parse(said).hidden_names is hidden


def test_limits_that_are_not_said_are_the_usual() -> None:
    assert parse({"limits": {"bytes": 5}}).limits == Limits(bytes=5)


hosts = st.sampled_from(["a.test", "*.b.test", "tls://c.test:5432", "10.0.0.0/8:22", "d.test:22"])
documents: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "allow": st.lists(
            hosts | st.fixed_dictionaries({"host": st.sampled_from(["a.test", "e.test:99"])},
                                          optional={"inspect": st.booleans()}),
            min_size=1,
        ),
        "deny": st.lists(st.sampled_from(["a.test", "*.b.test:443", "10.0.0.0/8"]), min_size=1),
        "presets": st.lists(st.sampled_from(["packages", "github", "gitlab"]), min_size=1),
        "ech": st.sampled_from(["allow", "deny"]),
        "hold": st.integers(0, 86_400),
        "limits": st.fixed_dictionaries({"connections": st.integers(1, 9999)}),
    },
)  # fmt: skip


@settings(deadline=None)
@given(documents.filter(bool))
def test_every_policy_survives_its_plain_form(said: dict[str, Any]) -> None:
    policy = parse(said)
    assert parse(json.loads(json.dumps(policy.plain()))) == policy
    assert parse(policy.plain()).plain() == policy.plain()


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["allow", "deny", "host", "inspect", "presets", "ech", "hold", "limits",
                         "unrestricted", "allowIps", "connections"]) | st.text(max_size=5),
        inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(plain_values)
def test_whatever_is_sent_is_understood_or_refused(said: object) -> None:
    try:
        policy = parse(said)
    except PolicyError:
        return
    assert parse(policy.plain()) == policy
