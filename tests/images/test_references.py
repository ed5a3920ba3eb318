"""References of images in registries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torpor.images.references import Reference, read_reference

DIGEST = "sha256:" + "0f" * 32
registries = st.sampled_from(
    ["docker.io", "registry.test", "localhost", "127.0.0.1:5000", "[::1]:5000", "a-b.test:1"]
)
parts = st.from_regex(r"[a-z0-9]{1,4}((\.|_|__|-{1,3})[a-z0-9]{1,4}){0,2}", fullmatch=True)
repositories = st.lists(parts, min_size=1, max_size=4).map("/".join)
tags = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True)
digests = st.binary(min_size=32, max_size=32).map(lambda each: f"sha256:{each.hex()}")


@given(registries, repositories, st.none() | tags, st.none() | digests, st.booleans())
def test_what_is_written_is_read_as_it_was_meant(
    registry: str, repository: str, tag: str | None, digest: str | None, scheme: bool
) -> None:
    meant = Reference(registry, repository, tag, digest)
    found = read_reference(("docker://" if scheme else "") + str(meant))
    if tag is None and digest is None:
        assert found == Reference(registry, repository, "latest")
    else:
        assert found == meant
    assert read_reference(str(found)) == found
    # Programs refuse a tag and a digest together, and a digest says all.
    assert ("@" in found.wanted) is (digest is not None)
    assert found.wanted.count(":") - registry.count(":") == 1


@given(st.text(max_size=40))
def test_what_is_no_reference_is_refused_in_words(words: str) -> None:
    try:
        found = read_reference(words)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - most texts are none
    else:
        assert read_reference(str(found)) == found


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("alpine", "begin with a registry"),
        ("library/alpine:3", "begin with a registry"),
        ("/etc/passwd", "begin with a registry"),
        ("oci:/srv/image", "begin with a registry"),
        ("tree:/", "begin with a registry"),
        ("../up.test/x", "begin with a registry"),
        ("registry.test", "begin with a registry"),
        ("-oProxy=x/y", "begin with a registry"),
        ("registry.test/", "repository"),
        ("registry.test/Tools", "repository"),
        ("registry.test/a//b", "repository"),
        ("registry.test/a b", "repository"),
        ("registry.test/../x", "repository"),
        ("registry.test/x:", "tag"),
        ("registry.test/x:.y", "tag"),
        ("registry.test/x:1:2", "tag"),
        ("registry.test/x@", "digest"),
        ("registry.test/x@sha256:0f", "digest"),
        (f"registry.test/x@{DIGEST.upper()}", "digest"),
        (f"registry.test/x@{DIGEST}\n", "digest"),
        ("registry.test/" + "x" * 600, "more than 512"),
    ],
)
def test_what_may_not_be_is_refused(words: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_reference(words)


def test_what_was_found_is_asked_for_by_its_digest() -> None:
    found = read_reference("registry.test:5000/team/tools").pinned(DIGEST)
    assert found.wanted == f"registry.test:5000/team/tools@{DIGEST}"
    assert str(found) == f"registry.test:5000/team/tools:latest@{DIGEST}"
