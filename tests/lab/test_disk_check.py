"""The check of a snapshot's disk, on disks that need no machine."""

import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from torpor.images.programs import SEARCH, find_program
from torpor.lab.disk_check import DiskChecked, chain, check_disk
from torpor.vm import Host

PROGRAMS = ("qemu-img", "qemu-io", "mkfs.ext4", "e2fsck")
needs_programs = pytest.mark.skipif(
    not all(shutil.which(name, path=SEARCH) for name in PROGRAMS),
    reason="needs qemu-utils and e2fsprogs",
)


def run(program: str, *arguments: object) -> None:
    line = [find_program(program), *map(str, arguments)]
    subprocess.run(line, check=True, capture_output=True)


def host(*files: Path) -> Host:
    """A host with one snapshot, whose disk is these layers."""
    layers = [SimpleNamespace(format=file.suffix[1:], file=file) for file in files]
    found = SimpleNamespace(disk=layers)
    store = SimpleNamespace(manifest=lambda _id: found, layer=lambda layer: layer.file)
    return cast(Host, SimpleNamespace(store=store))


def file_system(directory: Path) -> tuple[Path, Path]:
    """An ext4 file system in a raw layer, and an empty layer over it."""
    raw, top = directory / "root.raw", directory / "top.qcow2"
    run("truncate", "-s", "16M", raw)
    run("mkfs.ext4", "-q", raw)
    run("qemu-img", "create", "-q", "-f", "qcow2", top, "16M")
    return raw, top


def test_each_layer_stands_on_the_one_below() -> None:
    name = chain([("raw", Path("a.raw")), ("qcow2", Path("b.qcow2")), ("qcow2", Path("c.qcow2"))])
    node: dict[str, Any] = json.loads(name.removeprefix("json:"))
    seen = []
    below: dict[str, Any] | None = node
    while below is not None:
        seen.append((below["driver"], below["file"]["filename"]))
        below = below.get("backing")
    assert seen == [("qcow2", "c.qcow2"), ("qcow2", "b.qcow2"), ("raw", "a.raw")]


@needs_programs
async def test_a_file_system_under_a_layer_is_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/local/bin:/usr/bin:/bin")  # an ordinary user's
    checked = await check_disk(host(*file_system(tmp_path)), "any", tmp_path / "flat")
    assert checked.clean, checked.said
    assert not (tmp_path / "flat").exists()


@needs_programs
async def test_damage_in_the_top_layer_is_found(tmp_path: Path) -> None:
    raw, top = file_system(tmp_path)
    # Over the inode table of the first group, in the top layer: the layer below is well.
    run("qemu-io", "-f", "qcow2", "-c", "write -P 0xa5 64k 256k", top)
    checked = await check_disk(host(raw, top), "any", tmp_path / "flat")
    assert not checked.clean


@needs_programs
async def test_a_disk_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    broken = tmp_path / "broken.qcow2"
    broken.write_bytes(b"no image")
    with pytest.raises(RuntimeError, match="qemu-img convert"):
        await check_disk(host(broken), "any", tmp_path / "flat")


COUNTS = """\
torpor-root: recovering journal
Pass 5: Checking group summary information
Free blocks count wrong (1982381, counted=1982062).
Fix? yes

Free inodes count wrong (515370, counted=515313).
Fix? yes
"""
DAMAGE = """\
Inode 12, i_blocks is 8, should be 16.  Fix? yes
Free blocks count wrong for group #0 (23, counted=22).
Fix? yes
"""


@pytest.mark.parametrize(
    ("repairing", "looking", "said", "clean"),
    [
        (0, 0, "", True),
        (1, 0, COUNTS, True),
        (4, 0, COUNTS, False),
        (1, 4, COUNTS, False),
        (1, 0, COUNTS + DAMAGE, False),
    ],
)
def test_the_journal_may_be_replayed_and_nothing_else(
    repairing: int, looking: int, said: str, clean: bool
) -> None:
    assert DiskChecked(repairing, looking, said).clean is clean


def test_what_was_repaired_is_said() -> None:
    assert DiskChecked(1, 0, COUNTS + DAMAGE).repaired == (
        "Inode 12, i_blocks is 8, should be 16.  Fix? yes",
        "Free blocks count wrong for group #0 (23, counted=22). Fix? yes",
    )
