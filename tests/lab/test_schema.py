"""What surrounds schemathesis: what it is told, what is read of what it says, and what requests
that it makes up may do."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.responses import JSONResponse
from typer.testing import CliRunner

from tests.client.conftest import double
from tests.client.double import Double
from torpor.cli.app import app
from torpor.lab import schema
from torpor.lab.programs import schema_hooks
from torpor.lab.schema import Bounds, _config, _read, ask

__all__ = ["double"]

STOCK = {
    "things": [
        {"session_id": "s1", "checkpoint_id": "c1", "text log": "l1", "text part": "p1"},
        {"session_id": "s2", "checkpoint_id": "c2", "token_id": "mine"},
    ],
    "spared": {"token_id": "mine"},
    "source": "localhost:9/x:1",
}
REPORT: dict[str, Any] = {
    "failures": [], "errors": [], "complete": True, "stop_reason": "completed",
    "test_cases": {"generated": 7}, "operations": {"tested": 2},
    "valid_rates": {"GET /a": {"coverage": {"accepted": 1}, "fuzzing": {"accepted": 2}}},
}  # fmt: skip


@pytest.fixture(autouse=True)
def stock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "stock"
    file.write_text(json.dumps(STOCK))
    monkeypatch.setenv("TORPOR_LAB_STOCK", str(file))


def made_up(method: str, path: str, *, refused: str = "", **parts: Any) -> Any:
    """Return a request, bent; ``refused`` is what of it is meant to be."""
    meta = SimpleNamespace(is_negative_at=lambda where: where.value == refused)
    filled = {"path_parameters": {}, "query": {}, "body": None, **parts}
    case = SimpleNamespace(method=method, operation=SimpleNamespace(path=path), meta=meta, **filled)
    schema_hooks.before_call(None, case, {})
    return case


def test_most_requests_are_about_things_that_belong_together() -> None:
    pairs = set()
    for number in range(100):
        path = {"session_id": f"s-{number}", "checkpoint_id": "x"}
        found = made_up("GET", "/s/{session_id}/c/{checkpoint_id}", path_parameters=path)
        pairs.add(tuple(found.path_parameters.values()))
    known = {("s1", "c1"), ("s2", "c2")}
    assert known < pairs
    assert not {("s1", "c2"), ("s2", "c1")} & pairs
    assert 10 < len(pairs) < 50


def test_what_is_signed_is_for_its_own_path() -> None:
    texts = {
        made_up("GET", "/signed/{text}/log", path_parameters={"text": str(n)}).path_parameters[
            "text"
        ]
        for n in range(20)
    }
    assert "l1" in texts
    assert "p1" not in texts


def test_what_is_to_be_refused_stays_as_it_is() -> None:
    for number in range(20):
        said = {"session_id": f"s-{number}"}
        found = made_up("GET", "/s/{session_id}", refused="path", path_parameters=dict(said))
        assert found.path_parameters == said
    body = {"argv": 7, "timeout_seconds": 500}
    assert made_up("POST", "/sandbox/exec", refused="body", body=dict(body)).body == body


def test_the_token_that_asks_is_never_revoked() -> None:
    for number in range(20):
        said = {"token_id": "mine" if number % 2 else f"t-{number}"}
        found = made_up("DELETE", "/tokens/{token_id}", path_parameters=said)
        assert "mine" not in found.path_parameters.values()


def test_what_requests_may_do_has_bounds() -> None:
    fork = made_up("POST", "/s/{session_id}/fork", body={"count": 60})
    assert fork.body == {"count": 1}
    assert made_up("POST", "/s/sandbox/exec", body={}).body == {"timeout_seconds": 2}
    assert made_up("POST", "/s/execs", body={"timeout": 900.0}).body == {"timeout": 2}
    template = made_up("POST", "/templates", body={"source_oci_ref": "registry.example/x"})
    assert template.body == {"source_oci_ref": "localhost:9/x:1"}
    assert made_up("GET", "/events", query=None).query == {"replay_only": "true"}


def test_a_report_is_read_with_all_that_is_wrong() -> None:
    good = _read(REPORT, "said")
    assert (good.requests, good.operations, good.faults, good.accepted) == (
        7, 2, (), {"GET /a": 3},
    )  # fmt: skip
    failure = {"title": "Server error", "count": 2, "operations": ["GET /a"]}
    bad = {
        **REPORT, "failures": [failure], "errors": [{"title": "Network error", "count": 1}],
        "complete": False, "stop_reason": "interrupted",
    }  # fmt: skip
    assert _read(bad, "said").faults == (
        "Server error, 2 times: GET /a",
        "Network error, 1 times",
        "it stopped early: interrupted",
    )


def operation(*statuses: int) -> dict[str, Any]:
    """Return an operation that may answer so, with an object that has a number."""
    body = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    content = {"application/json": {"schema": body}}
    return {"responses": {str(each): {"description": "x", "content": content} for each in statuses}}


async def test_what_is_wrong_with_answers_is_found(double: Double, tmp_path: Path) -> None:
    answers = {
        "good": (JSONResponse({"n": 1}), operation(200)),
        "failed": (JSONResponse({"n": 1}, 500), operation(200, 500)),
        "unable": (JSONResponse({"n": 1}, 503), operation(200, 503)),
        "unknown": (JSONResponse({"n": 1}, 418), operation(200)),
        "wrong": (JSONResponse({"n": "one"}), operation(200)),
        "left-out": (JSONResponse({"n": 1}, 500), operation(200)),
    }
    paths = {f"/v2/agents/{name}": {"get": said} for name, (_, said) in answers.items()}
    document = {"openapi": "3.1.0", "info": {"title": "x", "version": "1"}, "paths": paths}
    double.answers["GET", "/openapi.json"] = [JSONResponse(document)]
    for name, (answer, _) in answers.items():
        double.on("GET", name, answer)
    without = ("GET /v2/agents/left-out",)
    bounds = Bounds(2, seed=1, without=without, coverage=False)
    asked = await ask(double.url, "t", tmp_path / "stock", bounds)
    assert sorted(asked.faults) == [
        "Response violates schema, 1 times: GET /v2/agents/wrong",
        "Server error, 1 times: GET /v2/agents/failed",
        "Undocumented status code, 1 times: GET /v2/agents/unknown",
    ], asked.said
    assert asked.accepted["GET /v2/agents/good"] > 0
    failed = [each for each in double.asked if each.path.endswith("failed")]
    assert {each.headers.get("authorization") for each in failed} == {"Bearer t"}


def test_the_configuration_leaves_out_what_is_not_to_be_asked_for() -> None:
    text = _config("http://x", "t", Bounds(3, seed=1, without=('POST /a"b',)))
    assert 'include-name = "POST /a\\"b"\nenabled = false' in text


def test_without_schemathesis_the_soak_says_how_to_get_it_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert schema.importlib.util is importlib.util
    env = {"TORPOR_HOME": str(tmp_path / "home"), "TORPOR_CACHE": str(tmp_path / "cache")}
    words = ["lab", "soak", "--kills", "5"]
    said = CliRunner(env=env).invoke(app, words)
    assert said.exit_code == 1
    assert "pip install 'torpor[lab]'" in said.stderr
    assert list((tmp_path / "home").iterdir()) == []
