import hashlib
import re

import pytest

from torpor.store.bearer import matches, new_token, parse


def test_a_token_is_recognised_and_no_other() -> None:
    one, other = new_token(), new_token()
    parsed = parse(one.text)
    assert parsed is not None
    identity, secret = parsed
    assert identity == one.id
    assert matches(secret, one.sha256)
    assert not matches(secret, other.sha256)
    assert not matches(secret, None)
    assert not matches("", one.sha256)
    assert one.sha256 == hashlib.sha256(secret.encode()).hexdigest()


def test_a_token_has_256_bits_that_nobody_guesses() -> None:
    made = [new_token() for _ in range(200)]
    secrets = {re.fullmatch(r"torpor_[0-9a-f]{16}_([0-9a-f]{64})", each.text)[1] for each in made}  # type: ignore[index]
    assert len(secrets) == 200
    ones = sum(int(secret, 16).bit_count() for secret in secrets) / 200
    assert 120 < ones < 136


def test_a_secret_does_not_reach_a_log() -> None:
    made = new_token()
    assert made.text.rpartition("_")[2] not in f"{made} {made!r}"
    assert made.sha256 not in f"{made!r}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "torpor",
        "torpor__",
        "torpor_0123456789abcdef_",
        "torpor_0123456789abcdef_" + "0" * 63,
        "torpor_0123456789abcdef_" + "0" * 65,
        "torpor_0123456789abcdef_" + "G" * 64,
        "torpor_0123456789abcdeF_" + "0" * 64,
        "Torpor_0123456789abcdef_" + "0" * 64,
        " torpor_0123456789abcdef_" + "0" * 64,
        "torpor_0123456789abcdef_" + "0" * 64 + "\n",
        "torpor_0123456789abcdef_" + "\u0660" * 64,
    ],
)
def test_what_is_no_token_is_not_looked_up(text: str) -> None:
    assert parse(text) is None
