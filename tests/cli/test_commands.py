"""The commands as a shell runs them: usage, JSON, exit statuses. No machines."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import torpor
from torpor.cli import lab
from torpor.cli.app import app
from torpor.lab import proof
from torpor.lab.check import Check, Experiment

COMMANDS = ("prepare", "demo", "proof", "bench", "spec", "soak")


async def _nothing(_: object) -> list[Check]:
    return []


@pytest.fixture
def experiments(monkeypatch: pytest.MonkeyPatch) -> tuple[Experiment, ...]:
    """Two experiments in the place of the real ones; they are listed here, never run."""
    two = (
        Experiment("counter", "Counts.", _nothing),
        Experiment("fork", "Forks.", _nothing),
    )
    monkeypatch.setattr(proof, "EXPERIMENTS", two)
    return two


def torpor_says(*arguments: str, **environment: str) -> Any:
    return CliRunner(env=environment).invoke(app, arguments)


def test_the_version_is_that_of_the_package() -> None:
    said = torpor_says("--version")
    assert said.stdout == f"torpor {torpor.__version__}\n"
    assert said.exit_code == 0


def test_the_help_names_every_command() -> None:
    assert "doctor" in torpor_says("--help").stdout
    said = torpor_says("lab", "--help").stdout
    assert [name for name in COMMANDS if name not in said] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["nix"],
        ["lab", "nix"],
        ["doctor", "--nix"],
        ["lab", "proof", "--only", "nix"],
        ["lab", "soak", "--kills", "-1"],
        ["lab", "soak", "--minutes", "many"],
        ["lab", "bench", "--runs", "0"],
        ["lab", "bench", "--only", "nix"],
    ],
)
def test_wrong_usage_ends_with_2_and_starts_nothing(arguments: list[str], tmp_path: Path) -> None:
    home = tmp_path / "home"
    said = torpor_says(*arguments, TORPOR_HOME=str(home), TORPOR_CACHE=str(tmp_path / "cache"))
    assert said.exit_code == 2
    assert said.stdout == ""
    assert said.stderr
    assert not home.exists()


def test_the_help_is_imported_without_what_it_does_not_need() -> None:
    program = (
        "import sys; import torpor.cli.app;"
        "print([m for m in ('torpor.vm', 'torpor.images', 'torpor.lab', 'pydantic')"
        " if m in sys.modules])"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert said.stdout == "[]\n"


@pytest.mark.usefixtures("experiments")
def test_experiments_are_listed_with_their_stories() -> None:
    said = torpor_says("lab", "proof", "--list")
    assert said.stdout.splitlines() == ["counter", "    Counts.", "fork", "    Forks."]
    as_json = json.loads(torpor_says("lab", "proof", "--list", "--json").stdout)
    assert as_json[0] == {"name": "counter", "story": "Counts."}


@pytest.mark.usefixtures("experiments")
def test_only_the_experiments_that_were_asked_for() -> None:
    said = torpor_says("lab", "proof", "--list", "--only", "fork")
    assert said.stdout.splitlines() == ["fork", "    Forks."]


def test_names_may_be_given_one_by_one_or_with_commas() -> None:
    known = ("a", "b", "c")
    assert lab.chosen(None, known, "row") == ["a", "b", "c"]
    assert lab.chosen(["c", "a"], known, "row") == ["a", "c"]
    assert lab.chosen(["c,a"], known, "row") == ["a", "c"]
    with pytest.raises(typer.BadParameter, match=r"no row d; there are: a, b, c"):
        lab.chosen(["a,d"], known, "row")


@pytest.mark.parametrize(
    ("checks", "ok"),
    [
        ([Check("one", True, "1", "1")], True),
        ([Check("one", True, "1", "1"), Check("two", False, "2", "3")], False),
        ([], False),  # nothing has been shown
    ],
)
def test_one_check_that_fails_fails_the_command(
    checks: list[Check], ok: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended:
        lab._end_with(checks, as_json=True)
    assert ended.value.exit_code == (0 if ok else 1)
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is ok
    assert [list(check) for check in said["checks"]] == [["name", "ok", "expected", "seen"]] * len(
        checks
    )


@pytest.mark.parametrize("command", ["prepare", "proof"])
def test_a_home_that_cannot_be_made_is_one_clear_line(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = torpor_says(
        "lab",
        command,
        TORPOR_HOME=str(tmp_path / "file/home"),
        TORPOR_CACHE=str(tmp_path / "cache"),
    )
    assert said.exit_code == 1
    assert said.stdout == ""
    assert "Set TORPOR_HOME to a directory that is yours" in said.stderr
    assert len(said.stderr.splitlines()) == 1


def test_the_doctor_speaks_json_and_its_status_is_what_it_says(tmp_path: Path) -> None:
    said = torpor_says(
        "doctor", "--json", TORPOR_HOME=str(tmp_path / "home"), TORPOR_CACHE=str(tmp_path / "cache")
    )
    document = json.loads(said.stdout)
    broken = [each["what"] for each in document["findings"] if each["state"] == "broken"]
    assert document["ok"] is (broken == [])
    assert said.exit_code == (1 if broken else 0)
    assert {"accelerator", "memory of machines", "home", "cache"} <= {
        each["what"] for each in document["findings"]
    }
    assert list(tmp_path.iterdir()) == []  # it looks, and makes nothing


def test_the_doctor_tells_of_a_home_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = torpor_says("doctor", TORPOR_HOME=str(tmp_path / "file/home"))
    assert said.exit_code == 1
    assert "TORPOR_HOME" in said.stdout
