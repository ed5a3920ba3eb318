"""The canonical form of manifests: one for all that ask for the same, and readable again."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torpor.api.bodies import Document
from torpor.api.manifests import read_manifest
from torpor.sessions import InvalidError, NewSession
from torpor.sessions.manifests import (
    OWN,
    canonical,
    check_kept,
    content_hash,
    of_canonical,
    warnings_of,
)
from torpor.sessions.model import ENVELOPE, check_new

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
NEW = st.builds(
    NewSession,
    name=st.none() | st.just("one"),
    image=st.none() | st.sampled_from(["default", "debian-12"]),
    template=st.none() | st.sampled_from(["tools", "t"]),
    size=st.none() | st.sampled_from(["mars-1vcpu-1gb", "mars-2vcpu-1gb"]),
    env=st.dictionaries(st.from_regex(r"[A-Z]{1,8}", fullmatch=True), TEXT, max_size=4),
    labels=st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), TEXT, max_size=4),
    metadata=st.dictionaries(TEXT, JSON, max_size=4),
    idle_timeout=st.none() | st.sampled_from([0, 5, 900]),
    keep_warm=st.booleans(),
    description=TEXT,
)

CASES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@CASES
@given(NEW)
def test_what_a_manifest_asks_for_is_what_its_canonical_form_says(new: NewSession) -> None:
    document = canonical(new)
    assert of_canonical(document, new.name, "c") == replace(new, config="c")


@CASES
@given(NEW)
def test_the_canonical_form_is_a_manifest_and_its_own(new: NewSession) -> None:
    document = canonical(new)
    read = read_manifest(Document(document))
    assert read == replace(new, name=None, version=ENVELOPE)
    assert canonical(read) == document
    assert content_hash(canonical(read)) == content_hash(document)


@CASES
@given(NEW, st.randoms(use_true_random=False))
def test_the_hash_is_of_what_is_said_and_not_of_its_order(new: NewSession, random: Any) -> None:
    def shuffled(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        items = [(name, shuffled(each)) for name, each in value.items()]
        random.shuffle(items)
        return dict(items)

    assert content_hash(shuffled(canonical(new))) == content_hash(canonical(new))


@CASES
@given(NEW, NEW)
def test_two_that_ask_for_different_things_have_different_hashes(
    one: NewSession, other: NewSession
) -> None:
    said = [replace(each, name=None) for each in (one, other)]
    same = content_hash(canonical(one)) == content_hash(canonical(other))
    # 1, 1.0 and True are equal in Python, and differ in JSON.
    assert same == (repr(sorted_of(said[0])) == repr(sorted_of(said[1])))


def sorted_of(value: Any) -> Any:
    if isinstance(value, NewSession):
        return sorted_of(vars(value))
    if isinstance(value, dict):
        return sorted((name, sorted_of(each)) for name, each in value.items())
    return [sorted_of(each) for each in value] if isinstance(value, list) else value


def test_a_default_is_not_written_down_and_the_name_is_no_part() -> None:
    assert canonical(NewSession(name="one")) == {
        "apiVersion": ENVELOPE,
        "kind": "Agent",
        "spec": {"runtime": {"adapter": "none"}},
    }


def test_the_hash_is_what_is_documented() -> None:
    new = NewSession(size="mars-2vcpu-1gb", env={"LANG": "C.UTF-8"}, metadata={"é": None})
    assert canonical(new)["spec"][OWN] == {"metadata": {"é": None}}
    # printf '%s' '<the JSON with sorted keys>' | sha256sum
    assert content_hash({"b": 1, "a": "é"}) == (
        "aa58fba8483623bed37c1b02edfccbdd9a53123837c20bfa4cb4049993a2872e"
    )


CREDENTIALS = [
    "dop_v1_" + "0a" * 32,
    "ghp_" + "x" * 36,
    "github_pat_" + "x" * 30,
    "sk-proj-" + "x" * 40,
    "AKIA" + "ABCDEFGH12345678",
    "xoxb-1234567890-abcdef",
    "url=https://x:ghp_" + "x" * 36 + "@github.com",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nx",
]


@pytest.mark.parametrize("value", CREDENTIALS)
def test_a_credential_is_warned_of_and_not_kept(value: str) -> None:
    new = NewSession(env={"A": "plain", "B": value})
    warnings = warnings_of(new)
    assert ["value of B" in each for each in warnings] == [True]
    assert value not in warnings[0]
    with pytest.raises(InvalidError, match="value of B") as raised:
        check_kept(new)
    assert value not in str(raised.value)


@pytest.mark.parametrize("value", ["", "sk-SK", "task-" + "x" * 40, "risk-free-and-long-enough-x"])
def test_other_values_are_nothing_odd(value: str) -> None:
    assert warnings_of(NewSession(env={"A": value})) == []
    check_kept(NewSession(env={"A": value}))


@pytest.mark.parametrize(
    "name", ["TEAM_ID", "SESSION_ID", "SANDBOX_OCI_REF", "PLANO_URL", "X_PERMISSION_MODE"]
)
def test_variables_of_the_platform_are_refused(name: str) -> None:
    with pytest.raises(InvalidError, match=name):
        check_new(NewSession(env={name: "x"}))
    check_new(NewSession(env={f"MY_{name.lower()}": "x"}))


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 64, "0"])
def test_names_that_can_be(name: str) -> None:
    check_new(NewSession(name=name))


@pytest.mark.parametrize(
    "name", ["", "x" * 65, "a-", "-a", "a.", "a b", "é", "1b4e28ba-2fa1-11d2-883f-0016d3cca427"]
)
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(InvalidError, match="cannot be called"):
        check_new(NewSession(name=name))
