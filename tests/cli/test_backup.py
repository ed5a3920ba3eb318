"""`torpor backup` and `torpor restore` on homes that no server serves."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response
from typer.testing import CliRunner

from tests.backup.conftest import Home, make_home
from tests.client.double import Double, refusal
from torpor.cli.app import app
from torpor.settings.presence import announce

Says = Callable[..., Any]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return make_home(tmp_path_factory.mktemp("cli") / "home")


@pytest.fixture
def says(home: Home, tmp_path: Path) -> Says:
    def says(*arguments: object, at: Path = home.root, **environment: str) -> Any:
        env = {"TORPOR_HOME": str(at), "TORPOR_CACHE": str(tmp_path / "cache"), "COLUMNS": "200"}
        return CliRunner(env=env | environment).invoke(app, [str(each) for each in arguments])

    return says


def test_a_link_in_the_way_of_a_backup_is_not_followed(says: Says, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "file.partial").symlink_to(victim)
    said = says("backup", tmp_path / "file")
    assert said.exit_code == 1
    assert "no file of yours alone" in said.stderr
    assert victim.read_text() == "precious"
    assert not (tmp_path / "file").exists()


def test_there_and_back(says: Says, tmp_path: Path) -> None:
    file = tmp_path / "file"
    made = says("backup", file, TORPOR_ON_STOP="freeze")
    assert made.exit_code == 0, made.stderr
    assert "read back and whole" in made.stdout
    assert "never-saved  failed: it ran when the backup was made" in made.stdout
    assert "--freeze-running` saves what runs" in made.stdout
    assert "not encrypted" in made.stdout
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.glob("*.partial")) == []
    seen = says("restore", "--check", file, at=tmp_path / "nowhere")
    assert seen.exit_code == 0
    assert "on_stop = 'freeze'" in seen.stdout
    assert not (tmp_path / "nowhere").exists(), "it was only looked at"
    back = says("restore", file, at=tmp_path / "other")
    assert back.exit_code == 0, back.stderr
    assert f"All of it is in {tmp_path / 'other'} now" in back.stdout
    assert Home(tmp_path / "other").sessions()["paused"].snapshot == "s-paused"


def test_as_json(says: Says, tmp_path: Path) -> None:
    made = json.loads(says("backup", tmp_path / "file", "-o", "json").stdout)
    assert made["size"] == (tmp_path / "file").stat().st_size
    assert made["summary"]["missing"] == []
    assert {each["becomes"] for each in made["summary"]["sessions"]} == {
        "paused", "failed", "created", "destroyed",
    }  # fmt: skip


def test_a_file_that_is_there_is_not_replaced_unasked(says: Says, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    said = says("backup", tmp_path / "file")
    assert said.exit_code == 1
    assert "is there already. Nothing was written." in said.stderr
    assert (tmp_path / "file").read_text() == "mine"
    assert says("backup", tmp_path / "file", "--force").exit_code == 0


def test_freezing_what_runs_needs_a_server(says: Says, tmp_path: Path) -> None:
    said = says("backup", tmp_path / "file", "--freeze-running")
    assert said.exit_code == 1
    assert "`torpor serve`" in said.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_backup_is_one_line(says: Says, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("something else" * 100)
    for command in (("restore", "--check"), ("restore",)):
        said = says(*command, tmp_path / "file", at=tmp_path / "other")
        assert said.exit_code == 1
        assert "it does not begin as one" in said.stderr
        assert said.stderr.count("\n") <= 2


def test_a_home_that_is_not_there_or_has_nothing(says: Says, tmp_path: Path) -> None:
    said = says("backup", tmp_path / "file", at=tmp_path / "nowhere")
    assert said.exit_code == 1
    assert "TORPOR_HOME" in said.stderr
    assert not (tmp_path / "nowhere").exists()


def test_the_server_of_the_home_is_asked_where_it_says_it_is(
    says: Says, tmp_path: Path, double: Double
) -> None:
    (tmp_path / "home").mkdir()
    announce(tmp_path / "home", double.url, "1")
    (tmp_path / "home" / "admin-token").write_text("torpor_a_b\n")
    double.on("POST", "backup", refusal(403, "forbidden", "The role viewer may not."))
    said = says("backup", tmp_path / "file", "--freeze-running", at=tmp_path / "home")
    assert said.exit_code == 1
    assert "made no whole backup: The role viewer may not." in said.stderr
    asked = double.one("POST", "backup")
    assert asked.query == (("freeze_running", "true"),)
    assert asked.headers["authorization"] == "Bearer torpor_a_b"
    assert not (tmp_path / "file").exists()
    assert list(tmp_path.glob("*.partial")) == []


def test_a_backup_that_a_server_breaks_off_is_removed(
    says: Says, tmp_path: Path, double: Double
) -> None:
    (tmp_path / "home").mkdir()
    announce(tmp_path / "home", double.url, "1")
    whole = tmp_path / "whole"
    assert says("backup", whole).exit_code == 0
    double.on("POST", "backup", Response(whole.read_bytes()[:-100]))
    said = says("backup", tmp_path / "file", at=tmp_path / "home")
    assert said.exit_code == 1
    assert "What was written is not a whole backup" in said.stderr
    assert "It was removed again." in said.stderr
    assert not (tmp_path / "file").exists()
    assert list(tmp_path.glob("*.partial")) == []
