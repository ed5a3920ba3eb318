"""Trees are listed and removed as they are, and nobody is led out of them."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.guest.conftest import work
from torpor.guest import trees


def listed(path: Path, **options: Any) -> dict[str, dict[str, Any]]:
    lines = work("list", path=str(path), **options)[0].splitlines()
    found = [json.loads(line) for line in lines]
    assert len({each["path"] for each in found}) == len(found)
    return {each.pop("path"): each for each in found}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "a/b").mkdir(parents=True)
    (root / "a/b/file").write_bytes(b"content")
    (root / "a/link").symlink_to("b/file")
    (root / "a/loop").symlink_to("..")
    (root / os.fsdecode(b"\xff\n\xf0")).touch()
    os.mkfifo(root / "fifo")
    return root


def test_a_directory_is_listed_without_what_is_below(tree: Path) -> None:
    found = listed(tree)
    assert {name: each["type"] for name, each in found.items()} == {
        "a": "directory",
        os.fsdecode(b"\xff\n\xf0"): "file",
        "fifo": "fifo",
    }
    assert found["a"]["mtime_ns"] == (tree / "a").stat().st_mtime_ns


def test_a_tree_is_listed_with_all_that_is_known_of_it(tree: Path) -> None:
    found = listed(tree, recursive=True, digest=True)
    assert set(found) == {str(each.relative_to(tree)) for each in tree.rglob("*")}
    file = (tree / "a/b/file").stat()
    assert found["a/b/file"] == {
        "type": "file",
        "mode": file.st_mode,
        "size": 7,
        "stored": file.st_blocks * 512,
        "uid": file.st_uid,
        "gid": file.st_gid,
        "mtime_ns": file.st_mtime_ns,
        "links": 1,
        "inode": file.st_ino,
        "device": file.st_dev,
        "sha256": hashlib.sha256(b"content").hexdigest(),
    }
    assert found["a/link"]["target"] == "b/file"
    assert "sha256" not in found["a/link"]


def test_what_is_excluded_is_not_listed(tree: Path) -> None:
    assert set(listed(tree, recursive=True, exclude=["b", "fifo"])) == {
        "a",
        "a/link",
        "a/loop",
        os.fsdecode(b"\xff\n\xf0"),
    }


def test_a_file_or_nothing_cannot_be_listed(tree: Path) -> None:
    work("list", path=str(tree / "fifo"), fails="ENOTDIR")
    work("list", path=str(tree / "none"), fails="ENOENT")


def test_what_vanishes_or_cannot_be_read_does_not_end_a_walk(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refuse(path: str, flags: int, *more: Any, **options: Any) -> int:
        if path == "b":
            raise PermissionError(13, "refused", path)
        return opened(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", refuse)
    failed: list[str] = []
    root = opened(tree, trees.DIRECTORY)
    seen = [e.path for e in trees.walk(root, failed=lambda path, _error: failed.append(path))]
    os.close(root)
    assert failed == ["a/b"]
    assert "a/b" in seen
    assert "a/b/file" not in seen


def test_depth_costs_no_descriptors(tmp_path: Path) -> None:
    depth = 3000
    (tmp_path / "deep").mkdir()
    here = os.open(tmp_path / "deep", trees.DIRECTORY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", trees.DIRECTORY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    lines = work("list", path=str(tmp_path / "deep"), recursive=True)[0].splitlines()
    assert len(lines) == depth
    assert work("remove", path=str(tmp_path / "deep"))[0] == b'{"removed":%d}\n' % (depth + 1)
    assert list(tmp_path.iterdir()) == []


# Removing


def test_a_tree_is_removed_and_what_its_links_lead_to_is_not(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    root = tmp_path / "tree"
    (root / "a/b").mkdir(parents=True)
    (root / "a/way").symlink_to(outside)
    (root / "a/dangling").symlink_to("nowhere")
    (root / os.fsdecode(b"\xff")).touch()
    assert work("remove", path=f"{root}/")[0] == b'{"removed":6}\n'
    assert not root.exists()
    assert (outside / "kept").exists()
    (tmp_path / "link").symlink_to(outside)
    work("remove", path=str(tmp_path / "link"))
    assert (outside / "kept").exists()
    work("remove", path=str(root), fails="ENOENT")


@pytest.mark.parametrize("path", ["/", "/..", "//", "/tmp/../.."])
def test_the_root_is_not_removed(path: str) -> None:
    work("remove", path=path, fails="EBUSY")


def test_many_files_are_removed(tmp_path: Path) -> None:
    root = tmp_path / "many"
    root.mkdir()
    for number in range(5000):
        (root / f"file-{number:06}").touch()
    assert work("remove", path=str(root))[0] == b'{"removed":5001}\n'


def test_a_directory_exchanged_for_a_link_leads_nobody_out(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    victim = tmp_path / "tree/victim"
    victim.mkdir(parents=True)
    fd = os.open(victim.parent, trees.DIRECTORY)
    for entry in trees.walk(fd, leaving=True):
        # It was seen as a directory, and is opened next.
        assert entry.path == "victim"
        victim.rename(tmp_path / "aside")
        victim.symlink_to(outside)
        trees._remove_entry(entry)
    os.close(fd)
    assert (outside / "kept").exists()


def test_a_directory_that_was_moved_away_ends_the_walk(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    (root / "a/b").mkdir(parents=True)
    (root / "a/b/file").touch()
    (tmp_path / "outside").mkdir()
    fd = os.open(root, trees.DIRECTORY)
    walk = trees.walk(fd)
    assert [next(walk).path for _ in range(3)] == ["a", "a/b", "a/b/file"]
    (root / "a/b").rename(tmp_path / "outside/b")
    with pytest.raises(OSError, match="Stale") as caught:
        next(walk)
    assert caught.value.filename == "a"
    os.close(fd)


def test_of_a_directory_files_come_first_and_its_content_at_once(tmp_path: Path) -> None:
    for name in ("a/1", "a/b/2", "c/3", "4"):
        (tmp_path / "t" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "t" / name).touch()
    fd = os.open(tmp_path / "t", trees.DIRECTORY)
    seen = [(e.path, e.left) for e in trees.walk(fd, leaving=True)]
    os.close(fd)
    order = [path for path, _ in seen]
    assert order[0] == "4"
    start = order.index("a")
    assert order[start : start + 6] == ["a", "a/1", "a/b", "a/b/2", "a/b", "a"]
    assert {path for path, left in seen if left} == {"a", "a/b", "c"}
