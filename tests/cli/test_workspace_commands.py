"""The commands of ``torpor workspace``: what they ask for, print, and exit with."""

import json

import pytest
from starlette.responses import JSONResponse, Response

from tests.cli.test_server_commands import says
from tests.client.double import AT, Double, event_frame, refusal, session, stream, workspace

ID = workspace()["workspace_id"]
HELD = {"state": "ATTACHED", "attached_session_id": session()["session_id"], "last_saved_at": AT}


def test_create_says_how_to_use_it(double: Double) -> None:
    double.on("POST", "workspaces", JSONResponse({"workspace": workspace()}, 201))
    said = says(double, "workspace", "create", "notes", "--size", "10")
    assert said.exit_code == 0, said.stderr
    assert said.stdout.splitlines() == [
        "notes is made: 10 GiB, available.",
        "Use it: torpor create --workspace notes",
    ]
    assert double.one("POST", "workspaces").said == {"size_gibibytes": 10, "name": "notes"}


def test_create_needs_no_name_and_takes_a_key(double: Double) -> None:
    double.on("POST", "workspaces", JSONResponse({"workspace": workspace(name=None)}, 201))
    said = says(double, "workspace", "create", "--size", "1", "--idempotency-key", "k")
    assert said.stdout.splitlines()[1] == f"Use it: torpor create --workspace {ID}"
    asked = double.one("POST", "workspaces")
    assert (asked.said, asked.headers["idempotency-key"]) == ({"size_gibibytes": 1}, "k")
    said = says(double, "workspace", "create", "--size", "1", "--output", "json")
    assert json.loads(said.stdout)["id"] == ID


def test_create_wants_a_size(double: Double) -> None:
    for wrong in ([], ["--size", "0"], ["--size", "x"]):
        assert says(double, "workspace", "create", "notes", *wrong).exit_code == 2
    assert double.asked == []


def test_list_shows_who_has_which(double: Double) -> None:
    found = [workspace(**HELD), workspace(name="\x1b[2Jold", workspace_id="w2")]
    double.on("GET", "workspaces", JSONResponse({"workspaces": found, "next_page_token": ""}))
    said = says(double, "workspace", "list", "--state", "attached")
    assert said.exit_code == 0, said.stderr
    head, first, second = said.stdout.splitlines()
    assert head.split() == ["name", "id", "state", "size", "stored", "session", "saved", "age"]
    assert first.split()[:6] == ["notes", ID[:8], "attached", "10", "GiB", "5.0"]
    assert session()["session_id"][:8] in first
    assert "\x1b" not in second
    assert dict(double.asked[0].query)["state"] == "ATTACHED"
    said = says(double, "workspace", "list", "--output", "json")
    assert [each["session"] for each in json.loads(said.stdout)] == [session()["session_id"], None]
    double.on("GET", "workspaces", JSONResponse({"workspaces": [], "next_page_token": ""}))
    assert "torpor workspace create" in says(double, "workspace", "list").stdout


def test_show_tells_what_is_known(double: Double) -> None:
    failed = workspace(state="FAILED", error="Its disk is gone.")
    double.on("GET", "workspaces/notes", JSONResponse({"workspace": failed}))
    said = says(double, "workspace", "show", "notes")
    shown = dict(line.split(maxsplit=1) for line in said.stdout.splitlines())
    assert shown["state"].strip() == "failed"
    assert shown["error"].strip() == "Its disk is gone."
    assert shown["size"].strip() == "10 GiB"
    assert "session" not in shown
    said = says(double, "workspace", "show", "notes", "--output", "json")
    assert json.loads(said.stdout)["size_gib"] == 10


def test_rm_deletes_what_it_has_found(double: Double) -> None:
    double.on("GET", "workspaces/notes", JSONResponse({"workspace": workspace()}))
    double.on("DELETE", f"workspaces/{ID}", Response(status_code=204))
    said = says(double, "workspace", "rm", "notes")
    assert (said.exit_code, said.stdout) == (0, "notes is deleted.\n")
    said = says(double, "workspace", "rm", "notes", "x")
    assert said.exit_code == 1
    assert len([each for each in double.asked if each.method == "DELETE"]) == 1
    double.on("DELETE", f"workspaces/{ID}", refusal(409, "workspace_in_use", "It is used."))
    assert says(double, "workspace", "rm", "notes").exit_code == 1


def test_a_session_is_made_with_one(double: Double) -> None:
    double.on("POST", "sessions", JSONResponse({"session": session(workspace_id=ID)}))
    for options, wanted in (
        (["--workspace", "notes"], {"workspace_id": "notes"}),
        (["-w", "notes", "--config", "web"], {"config_id": "web", "workspace_id": "notes"}),
        (["--persistent-workspace"], {"persistent_workspace": True}),
    ):
        said = says(double, "create", "one", *options, "--no-wait")
        assert said.exit_code == 0, said.stderr
        assert double.asked[-1].said == {"name": "one", **wanted}


@pytest.mark.parametrize(
    "options",
    [
        ["--config", "web", "--persistent-workspace"],
        ["--file", "m.yaml", "--workspace", "notes"],
        ["--file", "m.yaml", "--persistent-workspace"],
    ],
)
def test_what_a_manifest_says_is_not_said_again(double: Double, options: list[str]) -> None:
    assert says(double, "create", *options).exit_code == 2
    assert double.asked == []


def test_the_workspace_of_a_session_is_shown(double: Double) -> None:
    double.on("GET", "sessions/one", JSONResponse({"session": session(workspace_id=ID)}))
    said = says(double, "show", "one")
    assert any(line.split() == ["workspace", ID] for line in said.stdout.splitlines())


def test_fork_says_what_children_have_copies_of(double: Double) -> None:
    warning = "/workspace is a copy of workspace w as of then"
    children = [session(warnings=[warning]), session(warnings=[warning])]
    double.on("POST", "sessions/one/fork", JSONResponse({"sessions": children, "not_undone": []}))
    said = says(double, "fork", "one", "--count", "2")
    assert said.exit_code == 0, said.stderr
    assert said.stdout.count(warning) == 1


def test_a_warning_outlasts_the_wait(double: Double) -> None:
    starting = session(status="SESSION_STATUS_PROVISIONING", warnings=["it is odd"])
    double.on("POST", "sessions", JSONResponse({"session": starting}))
    where = f"sessions/{starting['session_id']}"
    double.on("GET", where, JSONResponse({"session": session()}))
    double.on("GET", f"{where}/events", stream(event_frame(1, "session.ready")))
    said = says(double, "create", "one")
    assert "it is odd" in said.stdout
