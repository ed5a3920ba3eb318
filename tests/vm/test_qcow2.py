"""No header of a layer makes a program outside the jail open another file."""

import struct
import subprocess
from pathlib import Path

import pytest

from torpor.vm.disk import create_layer
from torpor.vm.errors import SnapshotError
from torpor.vm.flatten import merge
from torpor.vm.qcow2 import check_header

MIB = 1 << 20


def make(file: Path, *options: str) -> Path:
    command = ["qemu-img", "create", "-q", "-f", "qcow2", *options, str(file), str(MIB)]
    subprocess.run(command, check=True)
    return file


async def test_a_layer_of_ours_passes_empty_and_written(tmp_path: Path) -> None:
    layer = tmp_path / "layer.qcow2"
    await create_layer(layer, MIB)
    check_header(layer, MIB)
    command = ["qemu-io", "-f", "qcow2", "-c", "write -P 7 0 64k", "-c", "discard 0 64k", layer]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: ASYNC221
    check_header(layer, MIB)
    with pytest.raises(SnapshotError, match="of another size"):
        check_header(layer, 2 * MIB)


def test_a_header_that_names_another_file_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"something of the host" + bytes(MIB - 21))
    outside = make(tmp_path / "data.qcow2", "-o", f"data_file={secret}")
    with pytest.raises(SnapshotError, match="features that no layer has"):
        check_header(outside)
    below = make(tmp_path / "below.qcow2", "-b", str(secret), "-F", "raw")
    with pytest.raises(SnapshotError, match="names a file below it"):
        check_header(below)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("-o", "compat=0.10"), "no qcow2 file of version 3"),
        (("-o", "cluster_size=4096"), "clusters of another size"),
        (("-o", "extended_l2=on"), "features that no layer has"),
    ],
)
def test_another_form_than_ours_is_refused(
    tmp_path: Path, options: tuple[str, ...], what: str
) -> None:
    with pytest.raises(SnapshotError, match=what):
        check_header(make(tmp_path / "layer.qcow2", *options))


@pytest.mark.parametrize(("offset", "what"), [(32, "is encrypted"), (60, "has snapshots")])
def test_a_field_that_is_changed_by_hand_is_noticed(tmp_path: Path, offset: int, what: str) -> None:
    layer = make(tmp_path / "layer.qcow2")
    with layer.open("r+b") as opened:
        opened.seek(offset)
        opened.write(struct.pack(">I", 1))
    with pytest.raises(SnapshotError, match=what):
        check_header(layer)


def test_what_is_no_layer_at_all_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"QFI\xfb")
    with pytest.raises(SnapshotError, match="too short"):
        check_header(tmp_path / "short")


async def test_a_merge_does_not_carry_a_file_of_the_host_into_a_disk(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"something of the host" + bytes(MIB - 21))
    evil = make(tmp_path / "evil.qcow2", "-o", f"data_file={secret},data_file_raw=on")
    secret.write_bytes(b"something of the host" + bytes(MIB - 21))  # as it was before
    with pytest.raises(SnapshotError, match="may have been taken over"):
        await merge([evil], tmp_path / "merged.qcow2")
    assert not (tmp_path / "merged.qcow2").exists()
