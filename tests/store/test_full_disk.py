"""A disk that fills: real ones, of a few MiB, or a real limit, in processes of their own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FILLING = Path(__file__).parent / "filling.py"
NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]
MOUNTED = 'mount -t tmpfs -o size=3m torpor "$1" && exec "$2" "$3" "$1" "$4"'


def can_mount() -> bool:
    try:
        return subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


needs_mounts = pytest.mark.skipif(not can_mount(), reason="no file system may be mounted here")


def on_a_small_disk(directory: Path, what: str) -> dict[str, Any]:
    """What the program in filling.py found, on a disk of 3 MiB that only it sees."""
    shell = ["sh", "-c", MOUNTED, "sh", str(directory), sys.executable, str(FILLING), what]
    said = subprocess.run([*NAMESPACE, *shell], check=True, capture_output=True, timeout=120)
    found: dict[str, Any] = json.loads(said.stdout)
    return found


@needs_mounts
def test_a_change_that_finds_no_space_says_so_and_the_rest_is_whole(tmp_path: Path) -> None:
    found = on_a_small_disk(tmp_path, "write")
    assert found["error"] == "DiskFullError"
    assert "disk is full" in found["happened"]
    assert "as it was before" in found["state"]
    assert "Make space" in found["todo"]
    assert found["again"] == "DiskFullError"
    assert found["committed"] > 10
    assert found["kept"] == found["committed"]
    assert found["integrity"] == "ok"
    assert found["after_space_was_made"] == found["committed"] + 1


@needs_mounts
def test_a_disk_that_is_full_from_the_start_says_so(tmp_path: Path) -> None:
    found = on_a_small_disk(tmp_path, "open")
    assert found["error"] == "DiskFullError"
    assert found["after_space_was_made"] == 1


@needs_mounts
def test_a_backup_that_finds_no_space_says_so_and_leaves_the_older_one(tmp_path: Path) -> None:
    found = on_a_small_disk(tmp_path, "backup")
    assert found["error"] == "DiskFullError"
    assert "copy.db" in found["happened"]
    assert found["files"] == ["ballast", "copy.db"]
    assert found["older_one"] == "the backup of yesterday"


def test_a_file_that_may_not_grow_says_so_and_the_rest_is_whole(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, str(FILLING), str(tmp_path), "limit"],
        check=True,
        capture_output=True,
        timeout=120,
    )
    found = json.loads(said.stdout)
    assert found["error"] == "DiskError"
    assert "limits" in found["todo"]
    assert found["committed"] > 10
    assert found["kept"] == found["committed"]
    assert found["integrity"] == "ok"
    assert found["after_space_was_made"] == found["committed"] + 1
