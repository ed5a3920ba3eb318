"""Paths in a workspace: nothing that is said leads out of it, and every name can be said."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torpor.sessions.errors import InvalidError
from torpor.sessions.workspace_paths import (
    LONGEST,
    ROOT,
    decoded,
    encoded,
    resolve,
    resolve_file,
)

NAMES = st.binary(min_size=1, max_size=8).filter(
    lambda name: name not in (b".", b"..") and not set(name) & {0, 47}
)


@pytest.mark.parametrize(
    ("said", "path"),
    [
        ("a", b"/workspace/a"),
        ("a/b.txt", b"/workspace/a/b.txt"),
        ("/workspace/a", b"/workspace/a"),
        ("//workspace//a/", b"/workspace/a"),
        ("a/../b/./c", b"/workspace/b/c"),
        (".", b"/workspace"),
        ("/workspace", b"/workspace"),
        ("workspace/a", b"/workspace/workspace/a"),
        ("ä %41", "/workspace/ä %41".encode()),
        ("..a", b"/workspace/..a"),
    ],
)
def test_a_path_begins_at_the_workspace(said: str, path: bytes) -> None:
    assert resolve(said) == path
    assert resolve(said.encode()) == path


@pytest.mark.parametrize(
    "said",
    ["", "..", "a/../..", "../workspace/a", "a/../../workspace/a", "/", "/etc/passwd", "/work",
     "/workspaces/a", "/workspace/../etc", "/workspace/..", "/etc/../workspace/a", "a\0b",
     "/workspace/../workspace/a", "\ud800"],
)  # fmt: skip
def test_what_leads_out_or_names_nothing_is_refused(said: str) -> None:
    with pytest.raises(InvalidError) as refused:
        resolve(said)
    assert "/workspace" in refused.value.todo


def test_percent_stands_for_bytes_only_where_it_is_said() -> None:
    assert resolve("a%FF%2Fb", "percent") == b"/workspace/a\xff/b"
    assert resolve("a%FF") == b"/workspace/a%FF"
    for said in ("%2e%2e/a", "%2Fetc", "a%00"):
        with pytest.raises(InvalidError):
            resolve(said, "percent")


def test_lengths_are_those_of_linux() -> None:
    assert resolve("a" * 255).endswith(b"a" * 255)
    with pytest.raises(InvalidError, match="longer"):
        resolve("a" * 256)
    deep = "/".join(["a" * 200] * 30)
    assert len(resolve(deep[: LONGEST - len(ROOT) - 1])) == LONGEST
    with pytest.raises(InvalidError, match="longer"):
        resolve(deep[: LONGEST - len(ROOT)])


def test_the_workspace_itself_is_no_file() -> None:
    assert resolve_file("a") == b"/workspace/a"
    for said in (".", "/workspace/", "a/.."):
        with pytest.raises(InvalidError, match="workspace itself"):
            resolve_file(said)


@given(st.lists(NAMES, min_size=1, max_size=5))
def test_every_name_can_be_said_and_comes_back(names: list[bytes]) -> None:
    path = ROOT + b"/" + b"/".join(names)
    assert resolve(b"/".join(names)) == path
    assert resolve(path) == path
    assert resolve(encoded(path), "percent") == path
    assert decoded(encoded(path)) == path
    assert encoded(path).isascii()


@given(st.binary(max_size=30), st.sampled_from([None, "percent"]))
def test_whatever_is_said_is_below_the_workspace_or_refused(said: bytes, how: None) -> None:
    try:
        found = resolve(os.fsdecode(said) if how else said, how)
    except InvalidError:
        return
    assert found == ROOT or found.startswith(ROOT + b"/")
    assert os.path.normpath(found) == found
    assert b"\0" not in found
