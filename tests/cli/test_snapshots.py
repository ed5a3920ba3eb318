"""The commands of ``torpor snapshot`` on a home without machines."""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.vm.real_snapshots import a_manifest, make_snapshot
from torpor.cli.app import app
from torpor.cli.snapshot import age_of, size_of
from torpor.vm import Store

Says = Callable[..., Any]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def says(home: Path, tmp_path: Path) -> Says:
    def says(*arguments: str, home: Path = home) -> Any:
        environment = {"TORPOR_HOME": str(home), "TORPOR_CACHE": str(tmp_path / "cache")}
        return CliRunner(env=environment).invoke(app, ["snapshot", *arguments])

    return says


@pytest.fixture
def line(home: Path) -> Store:
    """Three snapshots, each made from the one before, on three days of March."""
    store = Store(home)
    parent = None
    for number, name in enumerate("abc", 1):
        template = replace(a_manifest(), created_at=f"2026-03-0{number}T00:00:00.000+00:00")
        layers = tuple(f"l{each}" for each in range(number))
        make_snapshot(store, template, name, parent=parent, layers=layers)
        parent = name
    return store


def ids(says: Says, **where: Path) -> list[str]:
    return [each["id"] for each in json.loads(says("list", "--json", **where).stdout)]


def test_nothing_is_made_by_looking(says: Says, home: Path) -> None:
    assert ids(says) == []
    assert "no snapshots" in says("list").stdout
    assert says("show", "a").exit_code == 1
    assert json.loads(says("verify", "--json").stdout) == {"ok": True, "snapshots": []}
    assert not home.exists()


def test_what_is_there_is_listed_and_shown(says: Says, line: Store) -> None:
    rows = json.loads(says("list", "--json").stdout)
    assert [row["id"] for row in rows] == ["a", "b", "c"]
    assert all(row["durable"] and not row["kept"] for row in rows)
    assert rows[2]["frees"] > rows[0]["frees"] > 0, "the newest has a layer of its own"
    assert "image=default" in says("list").stdout
    shown = json.loads(says("show", "b", "--json").stdout)
    assert shown["manifest"]["parent"] == "a"
    assert "layers/l1.qcow2" in [file["name"] for file in shown["files"]]
    assert "manifest.json" in says("show", "b").stdout
    assert "There is no snapshot 'nix'" in says("show", "nix").stderr


def test_a_damaged_one_is_told_and_can_be_removed(says: Says, line: Store) -> None:
    layer = line.root / "layers/l2.qcow2"
    layer.write_bytes(layer.read_bytes() + b"x")
    said = says("verify", "--json")
    assert said.exit_code == 1
    found = json.loads(said.stdout)
    assert {each["id"]: bool(each["damaged"]) for each in found["snapshots"]} == {
        "a": False, "b": False, "c": True,
    }  # fmt: skip
    assert says("verify", "a", "b").exit_code == 0
    (line.root / "snapshots/c/manifest.json").write_text("{")
    assert "damaged" in says("list").stdout
    assert says("rm", "c").exit_code == 0
    assert ids(says) == ["a", "b"]


def test_removing_leaves_what_others_need(says: Says, line: Store) -> None:
    said = says("rm", "a", "c", "--json")
    assert said.exit_code == 0
    assert json.loads(said.stdout)["freed_bytes"] > 0
    assert ids(says) == ["b"]
    assert says("verify").exit_code == 0
    assert not (line.root / "layers/l2.qcow2").exists()


def test_what_is_kept_stays(says: Says, line: Store) -> None:
    assert says("keep", "a").exit_code == 0
    assert says("rm", "a").exit_code == 2
    assert says("prune", "--keep", "0", "--newest-too").exit_code == 0
    assert ids(says) == ["a"]
    assert says("verify").exit_code == 0
    assert says("keep", "a", "--no-more").exit_code == 0
    assert says("rm", "a").exit_code == 0
    assert ids(says) == []


def test_a_dry_run_changes_nothing_and_says_what_would_go(says: Says, line: Store) -> None:
    said = says("prune", "--keep", "1", "--dry-run", "--json")
    plan = json.loads(said.stdout)
    assert [each["id"] for each in plan["plan"]["removals"]] == ["a", "b"]
    assert not plan["done"]
    assert ids(says) == ["a", "b", "c"]
    done = json.loads(says("prune", "--keep", "1", "--json").stdout)
    assert done["plan"] == plan["plan"]
    assert ids(says) == ["c"]


def test_pruning_by_age_and_size(says: Says, line: Store) -> None:
    assert json.loads(says("prune", "--older-than", "9000w", "--json").stdout)["plan"][
        "removals"
    ] == []  # fmt: skip
    assert says("prune", "--older-than", "1h").exit_code == 0
    assert ids(says) == ["c"]
    assert says("prune", "--max-size", "0MiB", "--newest-too").exit_code == 0
    assert ids(says) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["prune"],
        ["prune", "--keep", "-1"],
        ["prune", "--older-than", "soon"],
        ["prune", "--max-size", "big"],
        ["rm"],
        ["rm", "a", "--overwrite"],
        ["export", "a", "-", "--json"],
    ],
)
def test_wrong_usage_changes_nothing(says: Says, line: Store, arguments: list[str]) -> None:
    assert says(*arguments).exit_code == 2
    assert ids(says) == ["a", "b", "c"]


def test_sizes_and_ages_as_people_write_them() -> None:
    assert size_of("50GiB") == 50 << 30
    assert size_of("1.5 MiB") == 3 << 19
    assert size_of("7") == 7
    assert age_of("30d") == timedelta(days=30)
    assert age_of("12h") == timedelta(hours=12)
    for bad in ("", "5GB", "GiB", "-1MiB"):
        with pytest.raises(typer.BadParameter):
            size_of(bad)
    for bad in ("", "30", "d", "1y", "-1d"):
        with pytest.raises(typer.BadParameter):
            age_of(bad)


def test_a_snapshot_moves_to_another_home(says: Says, line: Store, tmp_path: Path) -> None:
    file = tmp_path / "b.torpor"
    said = says("export", "b", str(file), "--json")
    assert said.exit_code == 0, said.stderr
    assert json.loads(said.stdout)["size"] == file.stat().st_size
    assert says("export", "b", str(file)).exit_code == 1, "it is there"
    assert says("export", "b", str(file), "--force").exit_code == 0
    other = tmp_path / "other"
    said = says("import", str(file), "--json", home=other)
    assert said.exit_code == 0, said.stderr
    assert ids(says, home=other) == ["b"]
    assert says("verify", home=other).exit_code == 0
    again = says("import", str(file), home=other)
    assert "here already" in again.stdout
    assert says("import", str(file), "--as", "d", home=other).exit_code == 0
    assert sorted(ids(says, home=other)) == ["b", "d"]
    file.write_bytes(file.read_bytes()[:-100])
    cut = says("import", str(file), "--as", "e", home=other)
    assert cut.exit_code == 1
    assert "not all there" in cut.stderr
    assert sorted(ids(says, home=other)) == ["b", "d"]


def test_through_a_pipe_of_the_shell(line: Store, tmp_path: Path) -> None:
    torpor = f"{sys.executable} -c 'from torpor.cli import main; main()' snapshot"
    command = f"{torpor} export c - | TORPOR_HOME={tmp_path}/other {torpor} import - --json"
    environment = os.environ | {"TORPOR_HOME": str(line.root), "TORPOR_CACHE": f"{tmp_path}/cache"}
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["imported"]["manifest"]["id"] == "c"
    assert Store(tmp_path / "other").verify("c").id == "c"


def test_erasing_reports_what_is_left(says: Says, line: Store) -> None:
    said = says("rm", "--erase", "a", "--json")
    assert said.exit_code == 1, "b and c came from it"
    report = json.loads(said.stdout)["erased"][0]
    assert not report["complete"]
    assert report["report"]["descendants"] == ["b", "c"]
    said = says("rm", "--erase", "b", "c")
    assert "Nothing that it brought is left" in said.stdout
    assert [each for each in line.root.rglob("*.*") if each.is_file() and each.stat().st_size
            and each.name != "host.lock"] == []  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [["rm", "a"], ["prune", "--keep", "1"], ["keep", "a"], ["import", "/dev/null"]],
)
def test_a_home_that_another_program_has_open_is_left_alone(
    says: Says, line: Store, arguments: list[str]
) -> None:
    with open(line.root / "host.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = says(*arguments)
        assert said.exit_code == 1
        assert "has" in said.stderr
        assert "open" in said.stderr
        assert ids(says) == ["a", "b", "c"]
        assert says("verify").exit_code == 0


def test_what_an_unreadable_machine_needs_is_not_guessed(says: Says, line: Store) -> None:
    (line.root / "machines/m1").mkdir(parents=True)
    (line.root / "machines/m1/machine.json").write_text("{")
    said = says("rm", "a")
    assert said.exit_code == 1
    assert "machine m1 cannot be read" in said.stderr
    assert ids(says) == ["a", "b", "c"]
