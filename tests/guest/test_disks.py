"""Disks are found and mounted by a process of its own, whatever is wrong with them."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from torpor.guest import disks as module
from torpor.guest.disks import Disks, dress, find
from torpor.guest.loop import Loop

SIZE = 1 << 20


@pytest.fixture
def block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two disks of virtio, one with the serial ``torpor-workspace``, and one of another kind."""
    for name, serial in (("vda", "torpor-root"), ("vdb", "torpor-workspace"), ("loop0", None)):
        directory = tmp_path / "block" / name
        directory.mkdir(parents=True)
        (directory / "size").write_text(f"{SIZE // 512}\n")
        if serial is not None:
            (directory / "serial").write_text(serial)  # the kernel writes no line's end
    monkeypatch.setattr(module, "BLOCK", tmp_path / "block")
    monkeypatch.setattr(module, "MOUNT", ("/bin/sh", "-c", f'echo "$@" >> {tmp_path}/log', "sh"))
    return tmp_path


def mounted(**wanted: Any) -> list[str | None]:
    loop = Loop()
    said: list[list[str | None]] = []
    Disks(loop).mount([wanted], said.append)
    while not said:
        loop.turn()
    loop.close()
    assert len(said) == 1
    return said[0]


def wanted(block: Path, **changes: Any) -> dict[str, Any]:
    usual = {"serial": "torpor-workspace", "path": str(block / "at"), "size": SIZE, "fresh": False}
    return usual | changes


@pytest.mark.usefixtures("block")
def test_a_disk_is_found_by_its_serial() -> None:
    assert find("torpor-workspace") == "vdb"
    with pytest.raises(FileNotFoundError):
        find("torpor")


def test_a_disk_is_mounted_where_it_is_wanted_and_the_directory_is_made(block: Path) -> None:
    assert mounted(**wanted(block)) == [None]
    assert (block / "log").read_text() == f"/dev/vdb {block / 'at'}\n"
    assert (block / "at").is_dir()


def test_it_waits_until_the_kernel_knows_the_size(block: Path) -> None:
    file = block / "block/vdb/size"
    file.write_text("2048\n")
    pid = os.fork()
    if pid == 0:
        time.sleep(0.3)
        new = file.with_name("new")
        new.write_text(f"{2 * SIZE // 512}\n")
        new.rename(file)
        os._exit(0)
    assert mounted(**wanted(block, size=2 * SIZE)) == [None]
    os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"serial": "torpor-none"}, "No such file"),
        ({"size": 2 * SIZE}, "another size"),
        ({"size": None}, "int"),
    ],
)
def test_what_cannot_be_mounted_is_told(
    block: Path, changes: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SIZE_LIMIT", 0.0)
    (why,) = mounted(**wanted(block, **changes))
    assert why is not None
    assert said in why
    assert not (block / "log").exists()


def test_what_mount_says_is_told(block: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOUNT", ("/bin/sh", "-c", "echo no ext4 >&2; exit 32", "sh"))
    assert mounted(**wanted(block)) == [f"{block / 'at'}: no ext4"]


def test_one_that_never_ends_is_left(block: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOUNT", ("/bin/sh", "-c", "sleep 60", "sh"))
    monkeypatch.setattr(module, "LIMIT", 0.2)
    (why,) = mounted(**wanted(block))
    assert why is not None
    assert "not mounted after" in why


def test_one_that_has_ended_is_told_once(block: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT", 0.5)
    loop = Loop()
    said: list[list[str | None]] = []
    Disks(loop).mount([wanted(block)], said.append)
    late: list[bool] = []
    loop.after(1.0, lambda: late.append(True))
    while not late:
        loop.turn()
    loop.close()
    assert said == [[None]]


def test_the_root_of_a_new_disk_is_as_the_directory_that_it_covers(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "lost+found").mkdir(parents=True)
    root.chmod(0o700)
    dress(str(root), 4711, 4712)
    status = root.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (4711, 4712, 0o755)
    assert list(root.iterdir()) == []


def test_a_directory_of_the_same_name_with_something_beside_it_stays(tmp_path: Path) -> None:
    for name in ("lost+found", "mine"):
        (tmp_path / "root" / name).mkdir(parents=True)
    dress(str(tmp_path / "root"), os.getuid(), os.getgid())
    assert len(list((tmp_path / "root").iterdir())) == 2


def test_a_fresh_disk_gets_the_owner_of_what_it_covers(block: Path) -> None:
    at = block / "at"
    at.mkdir(mode=0o700)
    os.chown(at, 17, 18)
    assert mounted(**wanted(block)) == [None]
    assert at.stat().st_mode & 0o777 == 0o700
    assert mounted(**wanted(block, fresh=True)) == [None]
    assert (at.stat().st_uid, at.stat().st_gid, at.stat().st_mode & 0o777) == (17, 18, 0o755)
