"""What the doctor reads of the host."""

import fcntl
from dataclasses import replace
from pathlib import Path

import pytest

from tests.vm.real_snapshots import a_manifest, make_snapshot
from torpor.cli import facts
from torpor.cli.leftovers import leftovers
from torpor.vm import Accelerator, Store


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)", "10.0.2"),
        ("mke2fs 1.47.0 (5-Feb-2023)\n\tUsing EXT2FS Library", "1.47.0"),
        ("bubblewrap 0.8.0", "0.8.0"),
        ("usage: newuidmap", ""),
    ],
)
def test_a_version_is_found_in_what_a_program_says(said: str, version: str) -> None:
    assert facts.version_in(said) == version


def test_no_program_is_looked_for_twice() -> None:
    names = [tool.name for tool in (*facts.TOOLS, *facts.USER_TOOLS)]
    assert sorted(names) == sorted(set(names))


def test_memory_is_read_in_bytes() -> None:
    found = facts.read_memory("MemTotal:  100 kB\nMemFree:  7 kB\nMemAvailable:   50 kB\n")
    assert found == facts.Memory(102400, 51200)


def test_a_kernel_setting_that_is_not_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "user").mkdir()
    (tmp_path / "user/max_user_namespaces").write_text("94035\n")
    assert facts.sysctl("user.max_user_namespaces", tmp_path) == 94035
    assert facts.sysctl("kernel.unprivileged_userns_clone", tmp_path) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [("ann:100000:65536\n", True), ("1000:100000:65536\n", True), ("bob:1:1\n", False)],
)
def test_subordinate_ids_are_found_by_name_or_number(
    text: str, found: bool, tmp_path: Path
) -> None:
    file = tmp_path / "subuid"
    file.write_text(text)
    assert facts.has_subordinate_ids(file, "ann", 1000) is found


def test_no_file_of_subordinate_ids_means_none(tmp_path: Path) -> None:
    assert not facts.has_subordinate_ids(tmp_path / "subuid", "ann", 1000)


def test_a_place_that_is_not_there_yet_has_the_room_of_the_disk_it_will_be_on(
    tmp_path: Path,
) -> None:
    found = facts.place(tmp_path / "a/b", "TORPOR_HOME")
    assert (found.exists, found.refused) == (False, "")
    assert 0 < found.free <= found.total
    assert not (tmp_path / "a").exists()


def test_a_place_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "not a directory" in facts.place(tmp_path / "file/home", "TORPOR_HOME").refused


def test_only_abandoned_laboratories_are_left_behind(tmp_path: Path) -> None:
    for name in ("lab-used", "lab-dead", "lab-new", "soak-1", "other"):
        (tmp_path / name).mkdir()
    for name in ("lab-used", "lab-dead", "soak-1", "other"):
        (tmp_path / name / "host.lock").touch()
    dead, used, soak = (tmp_path / name for name in ("lab-dead", "lab-used", "soak-1"))
    with open(used / "host.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert leftovers(tmp_path) == [dead]  # the soak may be the laboratory's
    assert leftovers(tmp_path) == [dead, used, soak]
    assert leftovers(tmp_path / "nowhere") == []


def test_snapshots_that_an_upgrade_has_stranded_are_counted(tmp_path: Path) -> None:
    here = Accelerator("tcg", "", (7, 2, 0), "qemu-max")
    assert facts.kept_snapshots(tmp_path / "none", here) == facts.Kept(0)
    assert not (tmp_path / "none").exists()
    store = Store(tmp_path)
    make_snapshot(store, a_manifest(), "well")
    make_snapshot(store, replace(a_manifest(), qemu_version=(10, 0, 0)), "newer")
    make_snapshot(store, a_manifest(), "damaged")
    (tmp_path / "snapshots/damaged/manifest.json").write_text("{")
    found = facts.kept_snapshots(tmp_path, here)
    assert found.count == 3
    assert len(found.files_only) == len(found.unreadable) == 1
    assert "Snapshot newer was made by QEMU 10.0; here is 7.2" in found.files_only[0]
    assert "damaged" in found.unreadable[0]
    assert facts.kept_snapshots(tmp_path, None) == facts.Kept(0)
