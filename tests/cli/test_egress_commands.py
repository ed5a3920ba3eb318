"""The commands of ``torpor egress`` and ``torpor flows``: what they ask for, print, exit with."""

import csv
import io
import json
from typing import Any

import pytest
from starlette.responses import JSONResponse

from tests.cli.test_server_commands import says
from tests.client.double import AT, Double, frame, refusal, session, stream

ID = session()["session_id"]
ONE = {"allow": [{"host": "a.test"}, {"host": "b.test", "inspect": True}], "presets": ["github"]}
DENIED = {"allowed": False, "ended": True, "why": "no rule allows it", "add": "evil.test:443"}


def egress(policy: Any = "unrestricted", mode: str = "open", **more: Any) -> dict[str, Any]:
    """Return what a session may reach as the API has it."""
    said = {"session_id": ID, "policy": policy, "mode": mode, "notes": [], **more}
    return {"egress": said}


def decision(number: int = 1, **changes: Any) -> dict[str, Any]:
    """Return a decision as the API has it."""
    return {
        "decision_id": f"01JT9Q0M7V3WZ2K4N8XG5{number:05d}",
        "session_id": ID,
        "at": AT,
        "until": AT,
        "count": 1,
        "host": "a.test",
        "port": 443,
        "transport": "tcp",
        "allowed": True,
        "rule": "a.test",
        "why": "",
        "add": "",
        "ended": False,
        "seconds": 0.0,
        "sent_bytes": 0,
        "received_bytes": 0,
        "inspected": False,
        "secrets": [],
        **changes,
    }


def flow(name: str = "a.test", **changes: Any) -> dict[str, Any]:
    """Return where data went as the API has it."""
    return {
        "kind": "host", "name": name, "first_at": AT, "last_at": AT, "connections": 3,
        "denied": 0, "sent_bytes": 2048, "received_bytes": 1 << 20, "inspected": False,
        "secrets": [], **changes,
    }  # fmt: skip


def test_show_says_what_may_be_reached_and_what_should_be_known(double: Double) -> None:
    answer = egress(ONE, "list", notes=["*.x.test: anyone\x1b[2J"])
    double.on("GET", "sessions/one/egress", JSONResponse(answer))
    said = says(double, "egress", "show", "one")
    assert said.exit_code == 0, said.stderr
    for wanted in ("nothing else", "a.test", "b.test (inspected)", "github", "Note: *.x.test"):
        assert wanted in said.stdout
    assert "\x1b" not in said.stdout
    said = says(double, "egress", "show", "one", "-o", "json")
    assert json.loads(said.stdout)["policy"] == ONE


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["a.test", "*.b.test:443"], {"policy": {"allow": ["a.test", "*.b.test:443"]}}),
        (["--preset", "packages"], {"policy": {"presets": ["packages"]}}),
        (["a.test", "--deny", "x.a.test"], {"policy": {"allow": ["a.test"], "deny": ["x.a.test"]}}),
        (["--open"], {"policy": "unrestricted"}),
        (["--unrestricted"], {"policy": "unrestricted"}),
        (["--deny", "x.test"], {"policy": {"deny": ["x.test"]}}),
        (
            ["10.1.2.3:5432", "--open", "--deny", "x.test"],
            {"policy": {"unrestricted": True, "allow": ["10.1.2.3:5432"], "deny": ["x.test"]}},
        ),
        (["--none"], {"policy": "none"}),
        (["--add", "c.test", "-a", "d.test"], {"add": ["c.test", "d.test"]}),
        (["--add", "c.test", "--remove", "a.test"], {"add": ["c.test"], "remove": ["a.test"]}),
    ],
)
def test_set_asks_for_what_is_said(
    double: Double, arguments: list[str], asked: dict[str, Any]
) -> None:
    answer = egress(ONE, "list", connections_cut=2)
    double.on("PATCH", "sessions/one/egress", JSONResponse(answer))
    said = says(double, "egress", "set", "one", *arguments)
    assert said.exit_code == 0, said.stderr
    assert double.one("PATCH", "sessions/one/egress").said == asked
    assert said.stdout.splitlines()[-1] == "2 connections were cut."


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["a.test", "--none"],
        ["a.test", "--add", "b.test"],
        ["--open", "--none"],
        ["--remove", "a.test", "--none"],
    ],
)
def test_set_takes_one_way_at_a_time(double: Double, arguments: list[str]) -> None:
    assert says(double, "egress", "set", "one", *arguments).exit_code == 2
    assert double.asked == []


def test_what_is_refused_is_told(double: Double) -> None:
    answer = refusal(400, "bad_request", "'policy': it has a path", todo="Write a.test.")
    double.on("PATCH", "sessions/one/egress", answer)
    said = says(double, "egress", "set", "one", "a.test/x")
    assert (said.exit_code, said.stdout) == (1, "")
    assert "it has a path" in said.stderr


def test_log_shows_the_oldest_first_and_how_to_allow_what_was_denied(double: Double) -> None:
    found = [
        decision(3, host="evil.test", **DENIED),
        decision(2, ended=True, sent_bytes=2048, received_bytes=1 << 20, seconds=1.25, count=7),
        decision(1, address="192.0.2.1", inspected=True, secrets=["key"]),
    ]
    page = JSONResponse({"decisions": found, "next_page_token": ""})
    double.on("GET", f"sessions/{'my one'.replace(' ', '%20')}/egress/decisions", page)
    double.on("GET", "sessions/my one/egress/decisions", page)
    said = says(double, "egress", "log", "my one")
    assert said.exit_code == 0, said.stderr
    begun, over, refused, command = said.stdout.splitlines()
    for wanted in ("begun", "a.test:443", "at 192.0.2.1", "inspected", "with key"):
        assert wanted in begun
    for wanted in ("ended", "7 times", "2.0 KiB out", "1.0 MiB in", "1.2 s"):
        assert wanted in over
    assert "DENIED" in refused
    assert "no rule allows it" in refused
    assert command.strip() == "allow it: torpor egress set 'my one' --add evil.test:443"


def test_log_asks_for_what_is_wanted(double: Double) -> None:
    page = JSONResponse({"decisions": [], "next_page_token": ""})
    double.on("GET", "sessions/one/egress/decisions", page)
    said = says(double, "egress", "log", "one", "--denied", "--name", "a.test", "-n", "5")
    assert (said.exit_code, said.stdout) == (0, "")
    assert dict(double.asked[0].query) == {"allowed": "false", "host": "a.test", "page_size": "5"}


def test_log_follows_from_the_newest_of_the_past_to_the_end_of_the_session(double: Double) -> None:
    page = JSONResponse({"decisions": [decision(1)], "next_page_token": ""})
    double.on("GET", "sessions/one/egress/decisions", page)
    frames = [
        frame("stream.state", {"data": {"mode": "live"}}),
        *(
            frame("egress.decision", each, each["decision_id"])
            for each in (decision(1), decision(2, host="evil.test", **DENIED))
        ),
        frame("stream.end", {"data": {"reason": "destroyed"}}),
    ]
    double.on("GET", "sessions/one/egress/decisions/stream", stream(*frames))
    said = says(double, "egress", "log", "one", "--follow", "-o", "json")
    assert said.exit_code == 0, said.stderr
    shown = [json.loads(line) for line in said.stdout.splitlines()]
    assert [each["host"] for each in shown] == ["a.test", "evil.test"]  # each once
    asked = double.one("GET", "sessions/one/egress/decisions/stream")
    assert dict(asked.query) == {"cursor": decision(1)["decision_id"]}


def test_flows_are_a_table_json_and_csv(double: Double) -> None:
    found = [
        flow(inspected=True, secrets=["key", "token"]),
        flow("=cmd()", denied=4, connections=0),
        flow(""),
    ]
    answer = {"session_id": ID, "flows": found, "denied": 4}
    double.on("GET", "sessions/one/flows", JSONResponse(answer))
    said = says(double, "flows", "one", "--all")
    assert said.exit_code == 0, said.stderr
    assert dict(double.asked[0].query) == {"all": "true"}
    for wanted in (
        "a.test",
        "2.0 KiB",
        "1.0 MiB",
        "inspected, secret key, secret token",
        "(others)",
    ):
        assert wanted in said.stdout
    said = says(double, "flows", "one", "-o", "json")
    assert [each["name"] for each in json.loads(said.stdout)] == ["a.test", "=cmd()", ""]
    said = says(double, "flows", "one", "--csv")
    rows = list(csv.DictReader(io.StringIO(said.stdout)))
    assert rows[0] | {"first_at": AT} == {
        "kind": "host", "name": "a.test", "first_at": AT, "last_at": AT, "connections": "3",
        "denied": "0", "sent_bytes": "2048", "received_bytes": str(1 << 20), "inspected": "yes",
        "secrets": "key token",
    }  # fmt: skip
    assert rows[1]["name"] == "'=cmd()"  # no formula
    assert says(double, "flows", "one", "--csv", "-o", "json").exit_code == 2
    double.on("GET", "sessions/one/flows", JSONResponse({**answer, "flows": []}))
    assert "No host" in says(double, "flows", "one").stdout


def test_a_session_is_made_with_what_it_may_reach(double: Double) -> None:
    double.on("POST", "sessions", JSONResponse({"session": session(egress=ONE)}))
    for options, wanted in (
        (["--allow", "a.test", "--allow", "b.test"], {"allow": ["a.test", "b.test"]}),
        (["--preset", "packages"], {"presets": ["packages"]}),
        (["--no-network"], "none"),
    ):
        said = says(double, "create", "one", *options, "--no-wait")
        assert said.exit_code == 0, said.stderr
        assert double.asked[-1].said == {"name": "one", "egress": wanted}
    for wrong in (["--no-network", "--allow", "a.test"], ["--config", "web", "--allow", "a.test"]):
        assert says(double, "create", "one", *wrong).exit_code == 2


def test_show_of_a_session_says_what_it_may_reach(double: Double) -> None:
    for policy, words in (
        (ONE, "a.test, b.test, preset github"),
        ("none", "nothing"),
        ("unrestricted", "all that is public"),
        ({"deny": ["x.test"]}, "all that is public, with exceptions"),
        ({"unrestricted": True, **ONE}, "all that is public, and a.test, b.test, preset github"),
    ):
        double.on("GET", "sessions/one", JSONResponse({"session": session(egress=policy)}))
        lines = says(double, "show", "one").stdout.splitlines()
        assert any(line.split() == ["may", "reach", *words.split()] for line in lines), lines
