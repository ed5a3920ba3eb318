"""The commands of ``torpor template``: what they ask for, print, follow, and exit with."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from tests.cli.seats import seat
from tests.cli.test_server_commands import says
from tests.client.double import (
    Asked,
    Double,
    build,
    event,
    event_frame,
    event_id,
    frame,
    refusal,
    session,
    stream,
    template,
)

ID = template()["template_id"]
ENV = {"TORPOR_TOKEN": "t"}


def told(number: int, type_: str, build_id: str = "build-1", **data: Any) -> bytes:
    """Return an event of the template as a frame."""
    data = {"template_id": ID, "build_id": build_id, **data}
    return frame(f"template.{type_}", event(number, f"template.{type_}", **data), event_id(number))


def follows(double: Double, *frames: bytes, hold: float = 30) -> None:
    """Have the events be these, after the newest one that there was before."""

    def answer(asked: Asked) -> Response:
        if dict(asked.query).get("limit") == "1":
            return stream(event_frame(1, "session.paused"))(asked)
        assert dict(asked.query)["cursor"] == event_id(1)
        return stream(*frames, hold=hold)(asked)

    double.on("GET", "events", answer)


def builds(double: Double, *found: dict[str, Any]) -> None:
    double.on("GET", f"templates/{ID}/builds", JSONResponse({"builds": list(found)}))
    double.on("GET", "templates/tools/builds", JSONResponse({"builds": list(found)}))


def test_create_shows_what_is_built_and_waits_for_it(double: Double) -> None:
    pending = template(status="TEMPLATE_STATUS_PENDING", current_build_id=None)
    double.on("POST", "templates", JSONResponse({"template": pending}, 201))
    builds(double, build(status="BUILDING"))
    follows(
        double,
        told(2, "build_progress", "build-0", step="of another build"),
        told(3, "build_started"),
        told(4, "build_progress", step="fetching"),
        told(5, "build_progress", step="boot it"),
        told(6, "build_succeeded"),
    )
    double.on("GET", f"templates/{ID}/builds/build-1", JSONResponse({"build": build()}))
    said = says(double, "template", "create", "tools", "--from", "r.test/team/tools:1")
    assert said.exit_code == 0, said.stderr
    assert said.stderr.splitlines() == ["    building tools", "    fetching", "    boot it"]
    assert said.stdout.splitlines() == [
        f"tools is built of r.test/team/tools:1@sha256:{'0f' * 32}.",
        "Use it: torpor create --template tools",
    ]
    assert double.one("POST", "templates").said == {
        "name": "tools", "base_template": "sandbox", "source_oci_ref": "r.test/team/tools:1",
    }  # fmt: skip


def test_a_build_that_fails_says_why_and_exits_with_1(double: Double) -> None:
    failed = build(status="FAILED", error="no such tag\x1b[2J")
    double.on("POST", "templates", JSONResponse({"template": template()}, 201))
    builds(double, build(status="PENDING"))
    follows(double, told(2, "build_failed"))
    double.on("GET", f"templates/{ID}/builds/build-1", JSONResponse({"build": failed}))
    said = says(double, "template", "create", "tools", "--from", "r.test/x")
    assert said.exit_code == 1
    assert said.stdout == "tools was not built. no such tag\\x1b[2J\n"
    said = says(double, "template", "create", "tools", "--from", "r.test/x", "-o", "json")
    assert said.exit_code == 1
    assert json.loads(said.stdout)["build"]["status"] == "FAILED"


def test_one_that_was_deleted_meanwhile_is_not_waited_for(double: Double) -> None:
    double.on("POST", "templates", JSONResponse({"template": template()}, 201))
    builds(double, build(status="PENDING"))
    follows(double, told(2, "deleted"))
    gone = refusal(404, "not_found", "There is no template 'tools'.")
    double.on("GET", f"templates/{ID}/builds/build-1", gone)
    said = says(double, "template", "create", "tools", "--from", "r.test/x")
    assert (said.exit_code, said.stdout) == (1, "")
    assert "There is no template" in said.stderr


def test_create_need_not_wait(double: Double) -> None:
    double.on("POST", "templates", JSONResponse({"template": template()}, 201))
    said = says(
        double, "template", "create", "tools", "--from", "r.test/x", "--base", "coding-base",
        "--no-wait",
    )  # fmt: skip
    assert said.exit_code == 0
    assert "torpor template logs tools" in said.stdout
    assert [each.method for each in double.asked] == ["POST"]
    assert double.asked[0].said["base_template"] == "coding-base"


@pytest.mark.parametrize(
    ("options", "body"),
    [
        ((), {"source_oci_ref": "r.test/team/tools:1"}),
        (("--from", "r.test/new"), {"source_oci_ref": "r.test/new"}),
        (("--base", "coding-base"), {"base_template": "coding-base"}),
    ],
)
def test_update_builds_the_same_again_or_another(
    double: Double, options: tuple[str, ...], body: dict[str, str]
) -> None:
    double.on("GET", "templates/tools", JSONResponse({"template": template()}))
    double.on("PUT", "templates/tools", JSONResponse({"template": template()}))
    said = says(double, "template", "update", "tools", "--no-wait", *options)
    assert said.exit_code == 0, said.stderr
    assert double.one("PUT", "templates/tools").said == body


def test_list_goes_through_all_pages(double: Double) -> None:
    first = JSONResponse({"templates": [template("a")], "next_page_token": "more"})
    last = JSONResponse({"templates": [template("b", status="TEMPLATE_STATUS_FAILED")]})
    double.on("GET", "templates", first, last)
    said = says(double, "template", "list")
    rows = [line.split()[:4] for line in said.stdout.splitlines()[1:]]
    assert rows == [
        ["a", "6c1f0f6e", "ready", "r.test/team/tools:1"],
        ["b", "6c1f0f6e", "failed", "r.test/team/tools:1"],
    ]
    double.on("GET", "templates", JSONResponse({"templates": []}))
    assert "no templates" in says(double, "template", "list").stdout
    assert json.loads(says(double, "template", "list", "-o", "json").stdout) == []


def test_show_says_how_the_newest_build_stands(double: Double) -> None:
    double.on("GET", "templates/tools", JSONResponse({"template": template()}))
    builds(double, build(2, status="FAILED", error="no such tag"))
    shown = says(double, "template", "show", "tools").stdout
    for words in (ID, "ready", "build-1", "build-2 failed", "no such tag", "sandbox"):
        assert words in shown
    found = json.loads(says(double, "template", "show", "tools", "-o", "json").stdout)
    assert found["source"]["repository"] == "team/tools"


def test_builds_are_listed(double: Double) -> None:
    builds(double, build(2, status="FAILED", error="no such tag\nand more"), build(1))
    said = says(double, "template", "builds", "tools", "-n", "2")
    rows = said.stdout.splitlines()[1:]
    assert [row.split()[:2] for row in rows] == [["build-2", "failed"], ["build-1", "succeeded"]]
    assert "and more" not in said.stdout
    assert double.asked[0].query == (("page_size", "2"),)


def test_rm_deletes_what_it_has_found(double: Double) -> None:
    double.on("GET", "templates/tools", JSONResponse({"template": template()}))
    double.on("DELETE", f"templates/{ID}", JSONResponse({"template_id": ID, "deleted": True}))
    said = says(double, "template", "rm", "tools")
    assert (said.exit_code, said.stdout) == (0, "tools is deleted.\n")
    double.on("GET", "templates/x", refusal(404, "not_found", "There is no template 'x'."))
    said = says(double, "template", "rm", "tools", "x")
    assert (said.exit_code, said.stdout) == (1, "")


def logged(double: Double, *texts: str) -> None:
    """Have the log be these, one after the other, each time that it is read."""
    url = "http://elsewhere.test/v2/agents/signed/abc"
    double.on("GET", "templates/tools/builds/build-1/logs", JSONResponse({"signed_url": url}))
    double.on("GET", "signed/abc", *(PlainTextResponse(each) for each in texts))


def test_logs_prints_that_of_the_newest_build_or_of_one(double: Double) -> None:
    builds(double, build(1))
    logged(double, "t1 begun\nt2 what a terminal obeys: \x1b[2J\n")
    for arguments in (("tools",), ("tools", "build-1")):
        said = says(double, "template", "logs", *arguments)
        assert said.stdout == "t1 begun\nt2 what a terminal obeys: \\x1b[2J\n", said.stderr


def test_a_log_that_is_watched_has_each_line_once_up_to_the_end(double: Double) -> None:
    builds(double, build(status="BUILDING"))
    building = JSONResponse({"build": build(status="BUILDING")})
    double.on("GET", "templates/tools/builds/build-1", building)
    logged(
        double, "t1 a\n", "t1 a\nt2 b\n", "(1 older lines are not kept)\nt2 b\nt3 c\n",
        "(4 older lines are not kept)\nt5 e\n",
    )  # fmt: skip
    follows(
        double,
        told(2, "build_progress"),
        told(3, "build_progress", "build-2"),
        told(4, "build_progress"),
        told(5, "build_succeeded"),
    )
    said = says(double, "template", "logs", "tools", "--watch")
    assert said.exit_code == 0, said.stderr
    assert said.stdout.splitlines() == [
        "t1 a", "t2 b", "t3 c", "(4 older lines are not kept)", "t5 e",
    ]  # fmt: skip


def test_a_log_of_a_build_that_has_ended_is_not_waited_for(double: Double) -> None:
    builds(double, build(1))
    double.on("GET", "templates/tools/builds/build-1", JSONResponse({"build": build(1)}))
    logged(double, "t1 a\n")
    follows(double)
    said = says(double, "template", "logs", "tools", "-w")
    assert (said.exit_code, said.stdout) == (0, "t1 a\n")


def test_builds_that_are_watched_change_with_the_events(double: Double) -> None:
    double.on("GET", "templates/tools", JSONResponse({"template": template()}))
    answers: Iterator[str] = iter(["PENDING", "BUILDING", "SUCCEEDED", "SUCCEEDED"])

    def answer(_: Asked) -> Response:
        return JSONResponse({"builds": [build(status=next(answers))]})

    double.on("GET", "templates/tools/builds", answer)
    follows(double, told(2, "build_started"), told(3, "build_succeeded"))
    with seat(["template", "builds", "tools", "--watch"], ENV | {"TORPOR_URL": double.url}) as at:
        at.shows("succeeded")
        at.press("\x03")
        assert at.ended() == 130
        assert at.cooked


def test_a_session_is_created_from_a_template_or_an_image(double: Double) -> None:
    double.on("POST", "sessions", JSONResponse({"session": session()}))
    said = says(double, "create", "b", "--template", "tools", "--no-wait")
    assert said.exit_code == 0
    assert double.one("POST", "sessions").said == {"name": "b", "template": "tools"}
    assert says(double, "create", "--template", "tools", "--image", "x").exit_code == 2
