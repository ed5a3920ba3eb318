"""The commands of ``torpor image``, as a shell runs them. No machines."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.images.oci_builder import Member, layer, layout
from torpor.cli import image
from torpor.cli.app import app


@pytest.fixture
def torpor(tmp_path: Path) -> Any:
    environment = {
        "TORPOR_HOME": str(tmp_path / "home"),
        "TORPOR_CACHE": str(tmp_path / "cache"),
        "TORPOR_EXTRA_CA": "",
    }

    def says(*arguments: object, status: int = 0) -> str:
        said = CliRunner(env=environment).invoke(app, ["image", *map(str, arguments)])
        assert said.exit_code == status, said.output + said.stderr
        return said.stdout if status == 0 else said.stderr

    return says


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return layout(tmp_path / "My App.oci", layer(Member(b"x", content=b"x")), config={"Cmd": ["x"]})


def test_an_image_from_import_to_removal(torpor: Any, source: Path, tmp_path: Path) -> None:
    imported = json.loads(torpor("import", source, "--json"))
    assert imported["name"] == "my-app"
    assert imported["config"]["cmd"] == ["x"]
    assert json.loads(torpor("list", "--json")) == [json.loads(torpor("show", "my-app", "--json"))]
    assert "my-app" in torpor("list")
    assert imported["digest"] in torpor("show", "my-app").replace("\n", "").replace(" ", "")
    written = json.loads(torpor("export", "my-app", tmp_path / "x.tar", "--format=tar", "--json"))
    with tarfile.open(written["file"]) as archive:
        assert "x" in archive.getnames()
    assert "already" in torpor("import", source, status=1)
    torpor("import", source, "--replace", "--disk-size", "9G")
    assert json.loads(torpor("show", "my-app", "--json"))["size_bytes"] == 9 << 30
    assert "was removed" in torpor("rm", "my-app")
    assert json.loads(torpor("list", "--json")) == []
    assert "no image called my-app" in torpor("show", "my-app", status=1)


def test_what_is_refused_leaves_nothing(torpor: Any, tmp_path: Path) -> None:
    bad = layout(tmp_path / "bad", layer(Member(b"../x")))
    said = torpor("import", bad, status=1)
    assert "climbs out" in said
    assert "Traceback" not in said
    assert json.loads(torpor("list", "--json")) == []
    large = layout(tmp_path / "large", layer(Member(b"x", content=bytes(3 << 20))))
    assert "--max-unpacked" in torpor("import", large, "--max-unpacked", "2M", status=1)
    torpor("import", large, "--max-unpacked", "4M")


@pytest.mark.parametrize(
    "arguments",
    [
        ("import",),
        ("import", "x", "--disk-size", "big"),
        ("import", "x", "--disk-size", "1M"),
        ("import", "x", "--max-entries", "0"),
        ("export", "x", "y", "--format", "zip"),
        ("build",),
        ("rm",),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], torpor: Any) -> None:
    torpor(*arguments, status=2)


@pytest.mark.parametrize(
    ("recipe", "why"),
    [
        ("packages = 5", "not a list"),
        ("pakages = []", "known are name, suite, packages"),
        ("= x", "not sound"),
        ('packages = ["--option"]', "not the name of a Debian package"),
        ('suite = "../x"', "not the name of a Debian suite"),
        ('name = "default"', "cannot be called"),
    ],
)
def test_a_recipe_that_is_none(recipe: str, why: str, torpor: Any, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(recipe)
    assert why in torpor("build", tmp_path / "recipe.toml", status=1)


def test_nothing_is_pruned_where_nothing_is(torpor: Any) -> None:
    said = json.loads(torpor("prune", "--json"))
    assert said == {"removed": True, "freed_bytes": 0, "items": []}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("docker://host:5000/team/App:1.2", "app"),
        ("docker://host/app@sha256:" + "0" * 64, "app"),
        ("oci:dir/layout:latest", "layout"),
        ("image.tar.gz", "image"),
        ("/a/My Tree/", "my-tree"),
        ("tar:...", "imported"),
    ],
)
def test_an_image_is_called_after_its_source(source: str, name: str) -> None:
    assert image.name_of(source) == name


def test_sizes_are_in_powers_of_1024() -> None:
    assert image.size_of("20G", "--x") == 20 << 30
    assert image.size_of("20GiB", "--x") == 20 << 30
    assert image.size_of("5", "--x") == 5
    assert image.disk_bytes("1500M") == 2 << 30
