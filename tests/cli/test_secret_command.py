"""The commands of ``torpor secret``: what they ask for and print; no value is an argument."""

import json
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response
from typer.testing import CliRunner

from tests.client.double import AT, Double, refusal
from torpor.cli.app import app

VALUE = "s3cr3t-value-1"


def says(double: Double, *arguments: str, value: str | None = None) -> Any:
    env = {"TORPOR_URL": double.url, "TORPOR_TOKEN": "torpor_t_s", "COLUMNS": "200"}
    return CliRunner(env=env).invoke(app, arguments, input=value)


def secret(**rest: Any) -> dict[str, Any]:
    return {
        "name": "KEY", "version": 1, "usable": True, "created_at": AT, "updated_at": AT,
        "created_by": "t", "updated_by": "t",
        "bindings": [{"host": "h.test", "port": 443, "header": "x-key", "template": "{}"}],
    } | rest  # fmt: skip


def one(**rest: Any) -> JSONResponse:
    return JSONResponse({"secret": secret(**rest), "session_ids": []})


def test_set_reads_the_value_from_standard_input(double: Double) -> None:
    double.on("PUT", "secrets/KEY", one())
    said = says(double, "secret", "set", "KEY", "--host", "h.test", value=VALUE + "\n")
    assert said.exit_code == 0, said.stderr
    assert double.one("PUT", "secrets/KEY").said == {
        "value": VALUE, "bindings": [{"host": "h.test"}],
    }  # fmt: skip
    assert double.asked[-1].headers["content-type"] == "application/json"
    assert VALUE not in said.stdout + said.stderr
    assert "torpor secret grant SESSION KEY" in said.stdout


@pytest.mark.parametrize(
    ("options", "binding"),
    [
        (["--header", "X-Key: a {}", "--path", "/v1/**"],
         {"header": "X-Key", "template": "a {}", "path": "/v1/**"}),
        (["--header", "X-Key", "--method", "get", "--method", "PUT"],
         {"header": "X-Key", "methods": ["GET", "PUT"]}),
        (["--basic", "git", "--port", "8443"], {"basic": "git", "port": 8443}),
        (["--query", "key"], {"query": "key"}),
        (["--placeholder"], {"placeholder": True}),
        (["--variable", "T", "--in-body"],
         {"placeholder": True, "variable": "T", "in_body": True}),
    ],
)  # fmt: skip
def test_set_says_what_it_is_for(
    double: Double, options: list[str], binding: dict[str, Any]
) -> None:
    double.on("PUT", "secrets/KEY", one())
    hosts = ["--host", "a.test", "--host", "b.test"]
    says(double, "secret", "set", "KEY", *hosts, *options, value=VALUE)
    assert double.one("PUT", "secrets/KEY").said["bindings"] == [
        {"host": host} | binding for host in ("a.test", "b.test")
    ]


def test_set_anew_leaves_what_it_is_for(double: Double) -> None:
    double.on("PUT", "secrets/KEY", one(version=2))
    said = says(double, "secret", "set", "KEY", value=VALUE)
    assert double.one("PUT", "secrets/KEY").said == {"value": VALUE}
    assert "(version 2)" in said.stdout
    assert says(double, "secret", "set", "KEY", "--path", "/x", value=VALUE).exit_code == 2


def test_no_value_is_an_argument(double: Double) -> None:
    assert says(double, "secret", "set", "KEY", VALUE, "--host", "h.test").exit_code == 2
    assert says(double, "secret", "set", "KEY", "--value", VALUE).exit_code == 2
    assert double.asked == []


def test_list_and_show(double: Double) -> None:
    found = [secret(), secret(name="B", usable=False)]
    double.on("GET", "secrets", JSONResponse({"secrets": found}))
    said = says(double, "secret", "list")
    assert said.exit_code == 0, said.stderr
    assert "h.test" in said.stdout
    assert "x-key: {}" in said.stdout
    assert "no key here" in said.stdout
    double.on("GET", "sessions/one/secrets", JSONResponse({"secrets": []}))
    assert "torpor secret set" in says(double, "secret", "list", "--session", "one").stdout
    shown = JSONResponse({"secret": secret(), "session_ids": ["0123456789"]})
    double.on("GET", "secrets/KEY", shown)
    said = says(double, "secret", "show", "KEY")
    assert "01234567" in said.stdout
    said = says(double, "secret", "show", "KEY", "--output", "json")
    assert json.loads(said.stdout)["sessions"] == ["0123456789"]


def test_grant_revoke_and_rm(double: Double) -> None:
    double.on("PUT", "sessions/one/secrets/KEY", JSONResponse(secret()))
    said = says(double, "secret", "grant", "one", "KEY")
    assert said.exit_code == 0, said.stderr
    assert double.asked[-1].said == {"although_open": False}
    says(double, "secret", "grant", "one", "KEY", "--although-open")
    assert double.asked[-1].said == {"although_open": True}
    double.on("PUT", "sessions/one/secrets/KEY", refusal(400, "policy_is_open", "It is open."))
    assert says(double, "secret", "grant", "one", "KEY").exit_code == 1
    double.on("DELETE", "sessions/one/secrets/KEY", Response(status_code=204))
    assert says(double, "secret", "revoke", "one", "KEY").exit_code == 0
    double.on("GET", "secrets/KEY", one())
    double.on("DELETE", "secrets/KEY", Response(status_code=204))
    assert says(double, "secret", "rm", "KEY").stdout == "KEY is removed.\n"
