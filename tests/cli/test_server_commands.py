"""The commands over the API, as a shell runs them: what they ask for, print, and exit with."""

import inspect
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response
from typer.testing import CliRunner

from tests.client.double import (
    AT,
    Double,
    checkpoint,
    event,
    event_frame,
    event_id,
    refusal,
    session,
    stream,
)
from torpor.cli import completion, service
from torpor.cli.app import app
from torpor.cli.checkpoints import _before
from torpor.settings import Settings

ID = session()["session_id"]
DONE = Response(status_code=204)
CREATED = {"session": session(status="SESSION_STATUS_PROVISIONING")}


def says(double: Double, *arguments: str, **environment: str) -> Any:
    env = {"TORPOR_URL": double.url, "TORPOR_TOKEN": "torpor_t_s", "COLUMNS": "200", **environment}
    return CliRunner(env=env).invoke(app, arguments)


def test_commands_that_speak_to_no_server_import_nothing_for_it() -> None:
    program = (
        "import sys, torpor.cli.app as a;"
        "from typer.testing import CliRunner;"
        "CliRunner().invoke(a.app, ['--version']); CliRunner().invoke(a.app, ['doctor', '--help']);"
        "print([m for m in ('httpx', 'websockets', 'fastapi', 'sqlalchemy', 'torpor.client')"
        " if m in sys.modules])"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert said.stdout == "[]\n"


def test_the_client_needs_nothing_else_of_torpor_and_no_asyncio_to_wait() -> None:
    program = (
        "import sys; from torpor.client import Client; Client().close();"
        "print(sorted(m for m in sys.modules if m.startswith('torpor.')"
        " and not m.startswith('torpor.client')),"
        " [m for m in ('asyncio', 'websockets', 'pydantic') if m in sys.modules])"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert said.stdout == "[] []\n"


# Where the server is, and as whom


def test_no_server_is_one_line_that_says_how_to_start_one(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        said = CliRunner().invoke(app, ["list", "--host", url])
    assert said.exit_code == 1
    assert said.stdout == ""
    assert said.stderr == (
        f"There is no Torpor server at {url}. Start one with `torpor serve`, or say where it is"
        " with --host or TORPOR_URL.\n"
    )


def test_the_token_of_this_computers_server_is_found_in_its_home(
    double: Double, tmp_path: Path
) -> None:
    (tmp_path / "admin-token").write_text("torpor_admin_x\n")
    double.on("GET", "sessions", JSONResponse({"sessions": [], "next_page_token": ""}))
    said = says(double, "list", TORPOR_TOKEN="", TORPOR_HOME=str(tmp_path))
    assert said.exit_code == 0
    assert double.asked[0].headers["authorization"] == "Bearer torpor_admin_x"


def test_that_token_is_shown_to_no_server_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torpor.cli.server import token_for

    (tmp_path / "admin-token").write_text("torpor_admin_x\n")
    monkeypatch.setenv("TORPOR_HOME", str(tmp_path))
    assert token_for("http://127.0.0.1:8470") == "torpor_admin_x"
    assert token_for("http://192.0.2.1:8470") is None
    monkeypatch.setenv("TORPOR_TOKEN", "torpor_mine_y")
    assert token_for("http://192.0.2.1:8470") == "torpor_mine_y"


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"TORPOR_TOKEN": "torpor_old_x"}, "The one in TORPOR_TOKEN is not valid"),
        ({"TORPOR_TOKEN": ""}, "Set TORPOR_TOKEN, or run this as the user whose server it is"),
    ],
)
def test_no_valid_token_says_where_one_comes_from(
    double: Double, tmp_path: Path, environment: dict[str, str], words: str
) -> None:
    double.on("GET", "sessions", refusal(401, "unauthorized", "This needs a token.", todo="No."))
    said = says(double, "list", **environment, TORPOR_HOME=str(tmp_path))
    assert said.exit_code == 1
    assert "This needs a token." in said.stderr
    assert words in said.stderr


def test_an_error_of_the_server_is_its_own_words_once(double: Double) -> None:
    double.on("POST", "sessions/b/pause", refusal(
        409, "conflict", "Session b has failed.", state="Nothing was changed.", todo="Resume it."
    ))  # fmt: skip
    said = says(double, "pause", "b")
    assert said.exit_code == 1
    assert said.stderr == "Session b has failed. Nothing was changed. Resume it.\n"


# Sessions


def test_create_shows_its_steps_and_its_times(double: Double) -> None:
    double.on("POST", "sessions", JSONResponse(CREATED))
    double.on("GET", f"sessions/{ID}/events", stream(
        event_frame(1, "session.created"),
        event_frame(2, "session.progress", step="building the image"),
        event_frame(3, "session.ready"),
        hold=30,
    ))  # fmt: skip
    double.on("GET", f"sessions/{ID}", JSONResponse({"session": session()}))
    said = says(double, "create", "build-7", "-e", "A=1", "-e", "HOME", "-l", "team=search",
                "--idle-timeout", "60", "--size", "mars-2vcpu-1gb", HOME="/there")  # fmt: skip
    assert said.exit_code == 0, said.stderr
    assert "build-7 is ready: " in said.stdout
    assert said.stderr.splitlines() == ["    starting build-7", "    building the image"]
    assert double.one("POST", "sessions").said == {
        "name": "build-7",
        "size": "mars-2vcpu-1gb",
        "env": {"A": "1", "HOME": "/there"},
        "labels": {"team": "search"},
        "idle_timeout": 60,
    }


def test_create_that_fails_exits_with_1(double: Double) -> None:
    failed = session(status="SESSION_STATUS_FAILED", failure="no image")
    double.on("POST", "sessions", JSONResponse(CREATED))
    double.on("GET", f"sessions/{ID}/events", stream(event_frame(1, "session.failed"), hold=30))
    double.on("GET", f"sessions/{ID}", JSONResponse({"session": failed}))
    said = says(double, "create")
    assert said.exit_code == 1
    assert "build-7 failed: no image" in said.stdout


def test_create_need_not_wait(double: Double) -> None:
    double.on("POST", "sessions", JSONResponse(CREATED))
    said = says(double, "create", "--no-wait", "-o", "json")
    assert said.exit_code == 0
    made = json.loads(said.stdout)
    assert (made["id"], made["status"], made["created_at"]) == (ID, "PROVISIONING", AT)


def test_list_goes_through_the_pages_up_to_its_limit(double: Double) -> None:
    page = {"sessions": [session("b"), session("a")], "next_page_token": "more"}
    double.on("GET", "sessions", JSONResponse(page))
    said = says(double, "list", "-n", "3", "--label", "team=search", "--all")
    assert said.exit_code == 0
    assert "There are more" in said.stdout
    assert [dict(each.query)["page_size"] for each in double.asked] == ["3", "1"]
    assert ("page_token", "more") in double.asked[1].query
    assert dict(double.asked[0].query)["status"] == "SESSION_STATUS_ALL"


def test_list_prints_what_scripts_take(double: Double) -> None:
    double.on("GET", "sessions", JSONResponse({"sessions": [session()], "next_page_token": ""}))
    assert says(double, "list", "-q").stdout == f"{ID}\n"
    (found,) = json.loads(says(double, "list", "-o", "json").stdout)
    assert (found["name"], found["labels"]) == ("build-7", {"team": "search"})
    row = says(double, "list").stdout.splitlines()[1].split()
    assert row[:6] == ["build-7", "2f1a9c1e", "ready", "default", "mars-2vcpu-1gb", "3"]
    double.on("GET", "sessions", JSONResponse({"sessions": [], "next_page_token": ""}))
    assert "no sessions" in says(double, "list").stdout


def test_show_of_what_failed_says_what_it_can_go_on_from(double: Double) -> None:
    said = {
        "snapshot_id": "s1", "kind": "pause", "generation": 2, "created_at": AT, "durable": False,
    }  # fmt: skip
    double.on("GET", "sessions/b", JSONResponse({
        "session": session(status="SESSION_STATUS_FAILED", failure="it died", recoverable=[said])
    }))  # fmt: skip
    shown = says(double, "show", "b").stdout
    for words in ("failed", "it died", "--snapshot", "s1", "not durable", "team=search"):
        assert words in shown


def test_pause_and_resume_go_on_after_one_that_fails(double: Double) -> None:
    double.on("POST", "sessions/a/pause", refusal(404, "not_found", "There is no session 'a'."))
    double.on("POST", "sessions/b/pause", DONE)
    double.on("POST", "sessions/b/resume", DONE)
    double.on("GET", "sessions/b", JSONResponse({"session": session("b")}))
    said = says(double, "pause", "a", "b", "--durable")
    assert said.exit_code == 1
    assert said.stderr == "There is no session 'a'.\n"
    assert said.stdout.startswith("b is paused (")
    assert double.one("POST", "sessions/b/pause").query == (("durable", "true"),)
    assert says(double, "resume", "b", "--snapshot", "s1").exit_code == 0
    assert double.one("POST", "sessions/b/resume").said == {"snapshot_id": "s1"}
    assert says(double, "resume", "a", "b", "--snapshot", "s1").exit_code == 2


def test_rm_removes_what_it_has_found(double: Double) -> None:
    double.on("GET", "sessions/build-7", JSONResponse({"session": session()}))
    double.on("DELETE", f"sessions/{ID}", DONE)
    said = says(double, "rm", "build-7")
    assert (said.exit_code, said.stdout) == (0, "build-7 is destroyed.\n")
    missing = says(double, "rm", "build-7", "nix")
    assert missing.exit_code == 1
    assert missing.stdout == ""  # not even the first: all names are looked up before


def test_rm_takes_a_checkpoint_alone(double: Double) -> None:
    double.on("GET", "sessions/b", JSONResponse({"session": session("b")}))
    double.on("GET", f"sessions/{ID}/checkpoints", JSONResponse(
        {"checkpoints": [checkpoint(1, label="before")], "next_page_token": ""}
    ))  # fmt: skip
    double.on("DELETE", f"sessions/{ID}/checkpoints/{checkpoint(1)['checkpoint_id']}", DONE)
    said = says(double, "rm", "b", "--checkpoint", "before")
    assert said.exit_code == 0, said.stderr
    assert [each.method for each in double.asked] == ["GET", "GET", "DELETE"]


# Snapshots


def test_a_checkpoint_says_what_can_be_done_with_it(double: Double) -> None:
    double.on("POST", "sessions/b/checkpoints", JSONResponse({"checkpoint": checkpoint(1)}))
    said = says(double, "checkpoint", "b", "-l", "before").stdout
    assert "torpor rollback b cp_0000000000000001" in said
    assert "30.0 MiB stored, durable" in said


def checkpoints(double: Double, *found: dict[str, Any]) -> None:
    double.on("GET", "sessions/b/checkpoints", JSONResponse(
        {"checkpoints": list(found), "next_page_token": ""}
    ))  # fmt: skip


def test_rollback_takes_a_label_and_shows_what_it_does_not_undo(double: Double) -> None:
    checkpoints(double, checkpoint(2), checkpoint(1, label="before"))
    double.on(
        "POST",
        f"sessions/b/checkpoints/{checkpoint(1)['checkpoint_id']}/rollback",
        JSONResponse({"session": session("b", generation=9), "not_undone": [event_id(5)]}),
    )
    double.on("GET", "sessions/b/events", stream(
        event_frame(4), event_frame(5, "port.opened", port=8080), event_frame(6)
    ))  # fmt: skip
    said = says(double, "rollback", "b", "before")
    assert said.exit_code == 0, said.stderr
    assert "b stands at before again, as generation 9" in said.stdout
    assert "Not undone" in said.stdout
    assert "port.opened  port=8080" in said.stdout
    assert said.stdout.count("session.paused") == 0
    assert dict(double.asked[-1].query)["cursor"] < event_id(5)


@pytest.mark.parametrize(
    ("name", "words"),
    [("cp_", "names 2 checkpoints"), ("nix", "names no checkpoint"), ("same", "names 2")],
)
def test_a_checkpoint_that_is_not_clear_is_refused(double: Double, name: str, words: str) -> None:
    checkpoints(double, checkpoint(2, label="same"), checkpoint(1, label="same"))
    said = says(double, "rollback", "b", name)
    assert said.exit_code == 2
    assert words in said.stderr
    assert len(double.asked) == 1


def test_fork_exits_with_1_if_a_child_is_missing(double: Double) -> None:
    checkpoints(double, checkpoint(1))
    double.on("POST", "sessions/b/fork", JSONResponse({
        "sessions": [session("child")],
        "errors": [{"index": 1, "id": "no_room", "message": "There is no room."}],
        "not_undone": [],
    }))  # fmt: skip
    said = says(double, "fork", "b", "-n", "2", "--from", "cp_00")
    assert said.exit_code == 1
    assert "b has 1 child" in said.stdout
    assert "Child 2 was not made: There is no room." in said.stdout
    assert double.one("POST", "sessions/b/fork").said == {
        "count": 2,
        "from_checkpoint_id": checkpoint(1)["checkpoint_id"],
    }


def test_an_id_just_below_another() -> None:
    assert _before("01JT9Q0M7V3WZ2K4N8XG5B6C1D") == "01JT9Q0M7V3WZ2K4N8XG5B6C1C"
    assert _before("01JT9Q0M7V3WZ2K4N8XG5B6C00") == "01JT9Q0M7V3WZ2K4N8XG5B6BZZ"


def test_the_tree_draws_where_the_session_stands_and_its_children(double: Double) -> None:
    def node(number: int, parent: int | None, kind: str, **more: Any) -> dict[str, Any]:
        return {
            "snapshot_id": f"s{number}", "kind": kind, "generation": number, "created_at": AT,
            "status": "READY", "durable": True, "size_bytes": number << 20, "label": "",
            "parent_snapshot_id": parent and f"s{parent}", "current": False, "children": [], **more,
        }  # fmt: skip

    double.on("GET", "sessions/b/tree", JSONResponse({
        "session": session("b", status="SESSION_STATUS_PAUSED"),
        "snapshots": [
            node(1, None, "checkpoint", checkpoint_id="cp_1", label="be\x1b[31mfore",
                 children=["c"]),
            node(2, 1, "pause", durable=False),
            node(3, 2, "pause", current=True),
            node(4, 1, "checkpoint", checkpoint_id="cp_4"),
        ],
        "children": [session("child", session_id="c"), session("other", session_id="o")],
    }))  # fmt: skip
    lines = says(double, "tree", "b").stdout.splitlines()
    assert lines[0].startswith("b  paused")
    assert lines[1].startswith("├── 1  checkpoint  cp_1  be\\x1b[31mfore")
    assert "1.0 MiB" in lines[1]
    assert lines[2] == "│   ├── ↳ child  ready  forked from here"
    assert lines[3].startswith("│   ├── 2  pause  s2")
    assert lines[3].endswith("not durable yet")
    assert lines[4].startswith("│   │   └── 3  pause  s3")
    assert lines[4].endswith("← b is paused here")
    assert lines[5].startswith("│   └── 4  checkpoint  cp_4")
    assert lines[6].startswith("└── ↳ other")


# Events


def test_logs_print_the_past_and_then_what_comes(double: Double) -> None:
    double.on("GET", "sessions/b/events",
        stream(event_frame(1), event_frame(2, "exec.started", argv=["ls"])),
        stream(event_frame(3, "session.destroyed")),
    )  # fmt: skip
    said = says(double, "logs", "b", "-f", "-n", "1")
    assert said.exit_code == 0
    lines = said.stdout.splitlines()
    assert len(lines) == 2
    assert "exec.started  argv=['ls']  by system" in lines[0]
    assert "session.destroyed" in lines[1]
    assert dict(double.asked[1].query)["cursor"] == event_id(2)


def test_logs_of_all_name_the_session_on_each_line(double: Double) -> None:
    server = {**event(2, "server.reconciled"), "session_id": None}
    double.on("GET", "events", stream(
        event_frame(1), f"id: {event_id(2)}\ndata: {json.dumps(server)}\n\n".encode()
    ))  # fmt: skip
    double.on("GET", f"sessions/{ID}", JSONResponse({"session": session()}))
    lines = says(double, "logs").stdout.splitlines()
    assert "build-7  session.paused" in lines[0]
    assert "server  server.reconciled" in lines[1]
    as_json = says(double, "logs", "-o", "json").stdout.splitlines()
    assert [json.loads(line)["id"] for line in as_json] == [event_id(1), event_id(2)]


# The server


def test_status_says_who_and_what(double: Double) -> None:
    double.on("GET", "whoami", JSONResponse(
        {"id": "t", "name": "ci", "role": "operator", "permissions": ["read", "use"]}
    ))  # fmt: skip
    double.on("GET", "host", JSONResponse({
        "name": "h1", "version": "0.1", "accelerator": "tcg", "why": "no /dev/kvm", "qemu": "7.2",
        "jail_missing": ["no cgroups"], "memory_bytes": 8 << 30, "free_memory_bytes": 4 << 30,
        "promised_free_bytes": -(1 << 30), "free_disk_bytes": 9 << 30, "stored_bytes": 1 << 30,
        "sessions": {"READY": 2, "PAUSED": 0},
    }))  # fmt: skip
    said = says(double, "status").stdout
    for words in ("ci, operator", "h1", "no /dev/kvm", "2 ready", "1.0 GiB too much", "no cgroups"):
        assert words in said
    assert "paused" not in said
    assert json.loads(says(double, "status", "-o", "json").stdout)["who"]["role"] == "operator"


def test_status_does_not_call_whole_what_a_viewer_is_not_told(double: Double) -> None:
    double.on("GET", "whoami", JSONResponse(
        {"id": "t", "name": "ci", "role": "viewer", "permissions": ["read"]}
    ))  # fmt: skip
    double.on("GET", "host", JSONResponse({
        "name": "h1", "version": "0.1", "accelerator": "tcg", "qemu": "7.2",
        "memory_bytes": 8 << 30, "free_memory_bytes": 4 << 30, "promised_free_bytes": 1 << 30,
        "free_disk_bytes": 9 << 30, "stored_bytes": 1 << 30, "sessions": {},
    }))  # fmt: skip
    said = says(double, "status").stdout
    assert "not told to this role" in said
    assert "whole" not in said
    assert "tcg:" not in said
    host = json.loads(says(double, "status", "-o", "json").stdout)["host"]
    assert host["jail_missing"] is None


def test_a_tokens_secret_is_all_that_is_on_standard_output(double: Double) -> None:
    one = {"id": "t1", "name": "ci", "role": "viewer", "created_at": AT}
    double.on("POST", "tokens", JSONResponse({"token": one, "bearer": "torpor_t1_x"}))
    double.on("GET", "tokens", JSONResponse({"tokens": [{**one, "revoked_at": AT}]}))
    double.on("DELETE", "tokens/t1", DONE)
    said = says(double, "token", "create", "ci", "--role", "viewer", "--expires", "2d")
    assert said.stdout == "torpor_t1_x\n"
    assert double.one("POST", "tokens").said["lifetime_seconds"] == 2 * 86400
    assert "revoked" in says(double, "token", "list").stdout
    assert says(double, "token", "revoke", "t1").exit_code == 0
    assert says(double, "token", "create", "ci", "--expires", "soon").exit_code == 2


def test_each_setting_is_an_option_of_serve() -> None:
    assert set(inspect.signature(service.serve).parameters) == {
        "config",
        "print_unit",
        "standby",
        *Settings.model_fields,
    }


def test_serve_refuses_what_the_settings_do_before_anything_is_started(tmp_path: Path) -> None:
    environment = {"TORPOR_HOME": str(tmp_path / "home"), "TORPOR_CACHE": str(tmp_path / "cache")}
    said = CliRunner(env=environment).invoke(app, ["serve", "--listen", "nowhere"])
    assert said.exit_code == 1
    assert "--listen" in said.stderr
    assert not (tmp_path / "home").exists()


# Completion


def test_names_are_completed_from_the_server(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    double.on("GET", "sessions", JSONResponse(
        {"sessions": [session("build-7"), session("other")], "next_page_token": ""}
    ))  # fmt: skip
    monkeypatch.setenv("TORPOR_URL", double.url)
    assert completion.sessions("bu") == [("build-7", "ready")]
    assert completion.sessions("2f1a")[0] == (ID, "build-7, ready")
    assert completion.places("o") == [("other:", "ready")]
    assert completion.places("other:/et") == []


def test_completion_is_quiet_when_there_is_no_server(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("TORPOR_URL", f"http://127.0.0.1:{taken.getsockname()[1]}")
        assert completion.sessions("") == []
    monkeypatch.setenv("TORPOR_URL", "nonsense")
    assert completion.sessions("") == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("torpor show bu", "build-7"),
        ("torpor exec bu", "build-7"),
        ("torpor pause other bu", "build-7"),
        ("torpor cp bu", "build-7:"),
        ("torpor logs bu", "build-7"),
    ],
)
def test_a_shell_completes_names_wherever_one_stands(
    double: Double, words: str, found: str
) -> None:
    double.on("GET", "sessions", JSONResponse(
        {"sessions": [session("build-7"), session("other")], "next_page_token": ""}
    ))  # fmt: skip
    said = subprocess.run(
        [sys.executable, "-c", "from torpor.cli.app import app; app(prog_name='torpor')"],
        env=os.environ
        | {
            "TORPOR_URL": double.url,
            "_TORPOR_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (said.stdout.split(), said.stderr) == ([found], "")
