"""Sealed values: they open with the key that sealed them, for what they were sealed for."""

import base64
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from torpor.store.sealing import Sealer, SealError

VALUE = "s3cr3t-value"


def test_the_key_is_made_once_for_nobody_else_to_read(tmp_path: Path) -> None:
    file = tmp_path / "home" / "key"
    with ThreadPoolExecutor(8) as pool:
        ids = {each.id for each in pool.map(lambda _: Sealer.open(file), range(16))}
    assert len(ids) == 1
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(file.parent.iterdir()) == [file]
    assert file.read_text().strip() not in ids


def test_what_is_sealed_opens_and_shows_nothing(tmp_path: Path) -> None:
    sealer = Sealer.open(tmp_path / "key")
    one, two = sealer.seal(VALUE, "a"), sealer.seal(VALUE, "a")
    assert one != two
    for each in (one, two):
        assert VALUE.encode() not in base64.b64decode(each)
        assert sealer.unseal(each, "a") == VALUE
    assert Sealer.open(tmp_path / "key").unseal(one, "a") == VALUE


def test_it_opens_for_nothing_else_with_no_other_key_and_not_changed(tmp_path: Path) -> None:
    sealer = Sealer.open(tmp_path / "key")
    sealed = sealer.seal(VALUE, "a")
    content = bytearray(base64.b64decode(sealed))
    content[-1] ^= 1
    for wrong in (base64.b64encode(bytes(content)).decode(), "", "!", sealed[:-8]):
        with pytest.raises(SealError):
            sealer.unseal(wrong, "a")
    with pytest.raises(SealError):
        sealer.unseal(sealed, "b")
    with pytest.raises(SealError, match="does not open"):
        Sealer.open(tmp_path / "other").unseal(sealed, "a")


@pytest.mark.parametrize("content", ["", "zz", "ab" * 31, "ab" * 33])
def test_a_damaged_key_is_told_and_left(tmp_path: Path, content: str) -> None:
    (tmp_path / "key").write_text(content)
    with pytest.raises(SealError, match="cannot be used"):
        Sealer.open(tmp_path / "key")
    assert (tmp_path / "key").read_text() == content
