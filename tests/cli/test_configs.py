"""The commands over configurations."""

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response
from typer.testing import CliRunner

from tests.cli.test_server_commands import ID, says
from tests.client.double import Double, config, refusal, session
from torpor.cli.app import app

MANIFEST = {"kind": "Agent", "spec": {"env": {"LANG": "[red]C"}}}


def test_a_configuration_is_made_of_a_file_and_named_after_it(
    double: Double, tmp_path: Path
) -> None:
    file = tmp_path / "web.yaml"
    file.write_text("size: x\n")
    double.on("POST", "configs", JSONResponse({"config": config()}, 201))
    said = says(double, "config", "create", str(file))
    assert said.exit_code == 0, said.stderr
    assert "Configuration web is id-of-web." in said.stdout
    assert "torpor create --config web" in said.stdout
    assert says(double, "config", "create", str(file), "--name", "other").exit_code == 0
    assert [each.said for each in double.asked] == [
        {"name": "web", "manifest_yaml": "size: x\n"},
        {"name": "other", "manifest_yaml": "size: x\n"},
    ]
    made = json.loads(says(double, "config", "create", str(file), "-o", "json").stdout)
    assert made["content_hash"] == "1f" * 32


def test_a_manifest_may_come_through_standard_input(double: Double) -> None:
    double.on("POST", "configs", JSONResponse({"config": config()}, 201))
    env = {"TORPOR_URL": double.url, "TORPOR_TOKEN": "torpor_t_s"}
    said = CliRunner(env=env).invoke(app, ["config", "create", "-", "-n", "web"], input="size: y")
    assert said.exit_code == 0, said.stderr
    assert double.one("POST", "configs").said == {"name": "web", "manifest_yaml": "size: y"}
    assert says(double, "config", "create", "-").exit_code == 2


def test_a_file_that_cannot_be_read_is_told(double: Double, tmp_path: Path) -> None:
    said = says(double, "config", "create", str(tmp_path / "none.yaml"))
    assert (said.exit_code, "No such file" in said.stderr) == (1, True)
    (tmp_path / "bad.yaml").write_bytes(b"\xff")
    said = says(double, "config", "create", str(tmp_path / "bad.yaml"))
    assert (said.exit_code, "UTF-8" in said.stderr) == (2, True)
    assert double.asked == []


def test_list_goes_through_the_pages_up_to_its_limit(double: Double) -> None:
    page = {"configs": [config("b"), config("a")], "next_page_token": "more"}
    double.on("GET", "configs", JSONResponse(page))
    said = says(double, "config", "list", "-n", "3", "--search", "x")
    assert "There are more" in said.stdout
    assert [dict(each.query)["page_size"] for each in double.asked] == ["3", "1"]
    assert dict(double.asked[1].query) == {"search": "x", "page_size": "1", "page_token": "more"}
    row = said.stdout.splitlines()[1].split()
    assert row[:3] == ["b", "id-of-b", "1f1f1f1f"]
    double.on("GET", "configs", JSONResponse({"configs": [config()], "next_page_token": ""}))
    assert says(double, "config", "list", "-q").stdout == "id-of-web\n"
    (found,) = json.loads(says(double, "config", "list", "-o", "json").stdout)
    assert found["name"] == "web"
    double.on("GET", "configs", JSONResponse({"configs": [], "next_page_token": ""}))
    assert "no configurations" in says(double, "config", "list").stdout


def test_show_prints_the_manifest_as_it_is(double: Double) -> None:
    double.on("GET", "configs/web", JSONResponse({"config": config(manifest=MANIFEST)}))
    said = says(double, "config", "show", "web").stdout
    assert "1f" * 32 in said
    assert "kind: Agent\nspec:\n  env:\n    LANG: '[red]C'\n" in said
    assert json.loads(says(double, "config", "show", "web", "-o", "json").stdout)["manifest"] == (
        MANIFEST
    )


def test_clone_rm_and_sessions(double: Double) -> None:
    double.on("POST", "configs/web/clone", JSONResponse({"config": config("two")}, 201))
    assert says(double, "config", "clone", "web", "two").stdout == (
        "Configuration two is id-of-two.\n"
    )
    double.on("GET", "configs/web", JSONResponse({"config": config()}))
    double.on("DELETE", "configs/id-of-web", Response(status_code=204))
    assert says(double, "config", "rm", "web").stdout == "web is deleted.\n"
    page = {"sessions": [session(config_id="id-of-web")], "next_page_token": ""}
    double.on("GET", "configs/web/sessions", JSONResponse(page))
    assert "build-7" in says(double, "config", "sessions", "web", "--all").stdout
    assert dict(double.asked[-1].query) == {"status": "SESSION_STATUS_ALL", "page_size": "100"}
    (found,) = json.loads(says(double, "config", "sessions", "web", "-o", "json").stdout)
    assert found["config"] == "id-of-web"


def test_one_that_is_in_use_is_not_removed(double: Double) -> None:
    double.on("GET", "configs/web", JSONResponse({"config": config()}))
    double.on("DELETE", "configs/id-of-web", refusal(409, "config_in_use", "It is used."))
    said = says(double, "config", "rm", "web")
    assert (said.exit_code, "It is used." in said.stderr) == (1, True)


def test_create_of_a_configuration_asks_for_no_more(double: Double) -> None:
    made = {"session": session(config_id="id-of-web")}
    double.on("POST", "sessions", JSONResponse(made))
    assert says(double, "create", "one", "--config", "web", "--no-wait").exit_code == 0
    assert says(double, "create", "--config", "web", "--no-wait").exit_code == 0
    first, second = (each.said for each in double.asked)
    assert first == {"name": "one", "config_id": "web"}
    assert second["config_id"] == "web"
    assert second["name"].startswith("web-")


@pytest.mark.parametrize(
    "option",
    [["--size", "x"], ["--image", "x"], ["-e", "A=1"], ["-l", "a=b"], ["--keep-warm"],
     ["--idle-timeout", "0"]],
)  # fmt: skip
def test_create_of_a_configuration_takes_no_other_option(double: Double, option: Any) -> None:
    said = says(double, "create", "--config", "web", *option)
    assert (said.exit_code, "--config" in said.stderr) == (2, True)
    assert double.asked == []


def test_create_of_a_file_sends_it_as_it_is(double: Double, tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    file.write_bytes(b"name: one # \xc3\xa9\n")
    double.on("POST", "sessions", JSONResponse({"session": session(warnings=["It is [odd]."])}))
    said = says(double, "create", "-f", str(file), "--no-wait")
    assert (said.exit_code, "It is [odd]." in said.stdout) == (0, True)
    asked = double.one("POST", "sessions")
    assert (asked.headers["content-type"], asked.body) == ("application/yaml", file.read_bytes())
    for more in (["one"], ["--size", "x"], ["--config", "web"]):
        assert says(double, "create", "-f", str(file), *more).exit_code == 2
    said = says(double, "create", "-f", str(tmp_path / "none"))
    assert (said.exit_code, "No such file" in said.stderr) == (1, True)
    assert len(double.asked) == 1


def test_show_says_what_a_session_was_made_of(double: Double) -> None:
    double.on("GET", f"sessions/{ID}", JSONResponse({"session": session(config_id="id-of-web")}))
    assert "id-of-web" in says(double, "show", ID).stdout
