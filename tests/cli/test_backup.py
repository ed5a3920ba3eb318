"""``torpor backup`` and ``torpor restore``: all or nothing, and never over something else."""

import io
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from torpor.cli.app import app
from torpor.vm.home import MACHINES


def torpor(home: Path, *arguments: object) -> Any:
    environment = {"TORPOR_HOME": str(home), "TORPOR_CACHE": str(home.parent / "cache")}
    return CliRunner(env=environment).invoke(app, [str(each) for each in arguments])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a hole, a hard link, a secret and something that is nobody's."""
    made = tmp_path / "home"
    for name in ("bases", "layers", "snapshots/s1", "database", MACHINES):
        (made / name).mkdir(parents=True)
    with (made / "bases/b.mem").open("wb") as file:
        file.write(b"begin")
        file.seek(64 << 20)
        file.write(b"end")
    (made / "snapshots/s1/linked").hardlink_to(made / "bases/b.mem")
    (made / "admin-token").write_text("torpor_a_b\n")
    (made / "admin-token").chmod(0o600)
    return made


def content(home: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(each.relative_to(home)): (
            each.stat().st_mode,
            each.read_bytes() if each.is_file() else b"",
        )
        for each in home.rglob("*")
        if each.name not in ("host.lock", MACHINES)
    }


def test_what_comes_back_is_what_there_was(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    said = torpor(home, "backup", file)
    assert said.exit_code == 0, said.stderr
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.stat().st_size < 1 << 20
    before = content(home)
    other = tmp_path / "other/home"
    restored = torpor(other, "restore", file)
    assert restored.exit_code == 0, restored.stderr
    assert content(other) == before
    base = (other / "bases/b.mem").stat()
    assert base.st_blocks * 512 < 1 << 20  # the hole is one
    assert base.st_ino == (other / "snapshots/s1/linked").stat().st_ino
    assert sorted(each.name for each in other.parent.iterdir()) == ["home"]


def test_a_file_that_is_there_is_replaced_only_if_asked(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    file.write_text("mine")
    assert torpor(home, "backup", file).exit_code == 1
    assert file.read_text() == "mine"
    assert torpor(home, "backup", file, "--force").exit_code == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["backup", "home"]


def test_no_backup_of_itself_nor_of_nothing(home: Path, tmp_path: Path) -> None:
    assert "in what it is to hold" in torpor(home, "backup", home / "backup").stderr
    assert "nothing in" in torpor(tmp_path / "nix", "backup", tmp_path / "backup").stderr
    assert not (tmp_path / "backup").exists()


def test_no_backup_while_a_program_has_the_home_or_a_machine_is_there(
    home: Path, tmp_path: Path
) -> None:
    (home / MACHINES / "m1").mkdir()
    said = torpor(home, "backup", tmp_path / "backup")
    assert said.exit_code == 1
    assert "machine" in said.stderr
    with subprocess.Popen(
        ["flock", "--exclusive", home / "host.lock", "sh", "-c", "echo locked; cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        said = torpor(home, "backup", tmp_path / "backup")
        assert "Another program" in said.stderr
        other.communicate()
    assert not (tmp_path / "backup").exists()


def test_a_home_that_is_not_empty_is_left_as_it_is(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    torpor(home, "backup", file)
    (home / "admin-token").write_text("newer")
    before = content(home)
    said = torpor(home, "restore", file)
    assert said.exit_code == 1
    assert "is not empty" in said.stderr
    assert content(home) == before


def archive(file: Path, *members: tuple[str, bytes]) -> None:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as made:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            made.addfile(member, io.BytesIO(data))
    done = subprocess.run(["zstd", "-c"], input=plain.getvalue(), capture_output=True, check=True)
    file.write_bytes(done.stdout)


MARK = "./torpor-backup.json"


@pytest.mark.parametrize(
    "members",
    [
        [(MARK, b'{"version": 2}'), ("./x", b"x")],
        [(MARK, b"[]"), ("./x", b"x")],
        [("./x", b"x")],
        None,
    ],
)
def test_what_is_no_backup_of_ours_is_refused(
    tmp_path: Path, members: list[tuple[str, bytes]] | None
) -> None:
    file = tmp_path / "backup"
    if members is None:
        file.write_bytes(b"nonsense")
    else:
        archive(file, *members)
    said = torpor(tmp_path / "home", "restore", file)
    assert said.exit_code == 1
    assert [each.name for each in tmp_path.iterdir()] == ["backup"]


def test_a_backup_that_was_cut_leaves_nothing(home: Path, tmp_path: Path) -> None:
    import random

    (home / "layers/l").write_bytes(random.Random(1).randbytes(3_000_000))
    file = tmp_path / "backup"
    torpor(home, "backup", file)
    file.write_bytes(file.read_bytes()[:-1_000_000])
    said = torpor(tmp_path / "other", "restore", file)
    assert said.exit_code == 1
    assert not (tmp_path / "other").exists()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["backup", "home"]


def test_the_mark_comes_first_so_that_it_is_read_without_the_rest(
    home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "backup"
    torpor(home, "backup", file)
    listed = subprocess.run(
        ["tar", "--zstd", "-tf", file], capture_output=True, check=True, text=True
    )
    assert listed.stdout.splitlines()[0] == MARK
    said = subprocess.run(
        ["tar", "--zstd", "-xOf", file, MARK], capture_output=True, check=True, text=True
    )
    assert json.loads(said.stdout) == {"version": 1}
