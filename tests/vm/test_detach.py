"""What a QEMU that was taken over still has open is not what others read."""

import os
from pathlib import Path

import pytest

from torpor.vm.detach import detach_file, detach_layer
from torpor.vm.disk import Layer
from torpor.vm.store import Store

LAYER = Layer("top", "qcow2", 1 << 20)


def test_a_descriptor_that_was_kept_no_longer_reaches_the_layer(tmp_path: Path) -> None:
    store = Store(tmp_path)
    place = store.root / "layers" / LAYER.file_name
    place.write_bytes(b"as it was frozen")
    place.chmod(0o600)
    kept = os.dup(os.open(place, os.O_RDWR))
    detach_layer(store, LAYER)
    os.pwrite(kept, b"evil", 0)
    os.ftruncate(kept, 0)
    os.close(kept)
    assert store.layer(LAYER).read_bytes() == b"as it was frozen"
    assert place.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in place.parent.iterdir()] == [LAYER.file_name]


def test_neither_does_it_reach_the_state_of_the_devices(tmp_path: Path) -> None:
    file = tmp_path / "devices"
    file.write_bytes(b"devices")
    with file.open("r+b") as kept:
        detach_file(file)
        kept.write(b"evil")
    assert file.read_bytes() == b"devices"


def test_a_copy_that_fails_leaves_the_layer_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    place = store.root / "layers" / LAYER.file_name
    place.write_bytes(b"as it was frozen")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "copy_file_range", full)
    with pytest.raises(OSError, match="No space"):
        detach_layer(store, LAYER)
    assert place.read_bytes() == b"as it was frozen"
    assert [file.name for file in place.parent.iterdir()] == [LAYER.file_name]
