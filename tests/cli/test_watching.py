"""``--watch``: what is shown changes with the events, on a terminal in its place, elsewhere a line
for each change; it outlives its server and ends with Ctrl-C."""

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response, StreamingResponse

from tests.cli.seats import PROGRAM, seat
from tests.cli.test_server_commands import says
from tests.client.double import (
    Asked,
    Double,
    build,
    checkpoint,
    config,
    event,
    event_frame,
    event_id,
    frame,
    refusal,
    session,
    stream,
    template,
    workspace,
)

ID = session()["session_id"]
ENV = {"TORPOR_TOKEN": "t"}


class News:
    """What happens, told to whoever follows; ``newest`` is what there is when nobody looks yet."""

    def __init__(self, double: Double, path: str = "events") -> None:
        self._told = {event_id(1): event_frame(1)}
        self.sent = event_id(1)
        """The newest that somebody was told of."""
        double.on("GET", path, self._answer)

    def tell(self, number: int, type_: str, *, of: str | None = ID, **data: Any) -> None:
        """Tell of something that happens."""
        said = event(number, type_, **data) | {"session_id": of}
        if of is None:
            del said["session_id"]
        self._told[event_id(number)] = frame(type_, said, event_id(number))

    def _answer(self, asked: Asked) -> Response:
        query = dict(asked.query)
        if query.get("limit") == "1":
            return stream(list(self._told.values())[-1])(asked)

        async def pieces() -> AsyncIterator[bytes]:
            sent = query["cursor"]
            while True:
                for id_, piece in list(self._told.items()):
                    if id_ > sent:
                        yield piece
                        self.sent = sent = id_
                await asyncio.sleep(0.02)

        return StreamingResponse(pieces(), media_type="text/event-stream")


@pytest.fixture
def news(double: Double) -> News:
    return News(double)


def listed(double: Double, *names: str) -> None:
    found = [session(name) for name in names]
    double.on("GET", "sessions", JSONResponse({"sessions": found, "next_page_token": ""}))


def looks(double: Double, path: str) -> int:
    """Return how often something was asked for."""
    return sum(each.path == f"/v2/agents/{path}" for each in double.asked)


@contextmanager
def piped(double: Double, *words: str) -> "Iterator[subprocess.Popen[str]]":
    """Run ``torpor`` without a terminal."""
    program = subprocess.Popen(
        [*PROGRAM, *words],
        env=os.environ | ENV | {"TORPOR_URL": double.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with program:
            yield program
            program.send_signal(signal.SIGINT)
    finally:
        program.kill()


def test_a_list_changes_with_the_events_and_outlives_its_server(double: Double, news: News) -> None:
    listed(double, "first")
    with seat(["list", "--watch"], ENV | {"TORPOR_URL": double.url}) as at:
        at.shows("first")
        listed(double, "first", "second")
        news.tell(2, "session.created")
        at.shows("second")
        double.stop()
        at.shows("Not as it is now")
        time.sleep(3)  # longer than a question is repeated by itself
        at.shows("Not as it is now")
        assert any("second" in line for line in at.lines)
        listed(double, "third")
        double.start()
        at.hides("Not as it is now")
        at.shows("third")
        at.press("\x03")
        assert at.ended() == 130
        assert at.cooked


def test_what_happens_elsewhere_is_no_reason_to_look(double: Double, news: News) -> None:
    double.on("GET", "configs", JSONResponse({"configs": [config("one")]}))
    with seat(["config", "list", "--watch"], ENV | {"TORPOR_URL": double.url}) as at:
        at.shows("one")
        news.tell(2, "session.created")
        while news.sent < event_id(2):
            time.sleep(0.01)
        time.sleep(0.5)  # in which one who looks would
        double.on("GET", "configs", JSONResponse({"configs": [config("one"), config("two")]}))
        news.tell(3, "config.created", of=None)
        at.shows("two")
        assert looks(double, "configs") == 2
        at.press("\x03")
        assert at.ended() == 130


def test_of_many_events_the_last_is_looked_after(double: Double) -> None:
    told = [event_frame(number, "session.paused") for number in range(2, 40)]
    double.on("GET", f"sessions/{ID}", JSONResponse({"session": session()}))
    newest = [stream(event_frame(1)), stream(told[-1])]
    ends = event_frame(40, "session.destroyed")
    double.on("GET", f"sessions/{ID}/events", newest[0], stream(*told, ends), newest[1], newest[1])
    said = says(double, "show", ID, "--watch")
    assert said.exit_code == 0, said.stderr
    assert looks(double, f"sessions/{ID}") == 3


def test_without_a_terminal_each_event_is_a_line_up_to_the_end(double: Double) -> None:
    states = ["READY", "PAUSED", "DESTROYED"]
    double.on(
        "GET",
        "sessions/mine",
        *(JSONResponse({"session": session(status=f"SESSION_STATUS_{s}")}) for s in states),
    )
    told = [event_frame(2, "session.paused"), event_frame(3, "session.destroyed")]
    newest = stream(event_frame(1))
    double.on("GET", "sessions/mine/events", newest, stream(*told), newest)
    said = says(double, "show", "mine", "--watch")
    assert said.exit_code == 0, said.stderr
    first, *_ = said.stdout.splitlines()
    assert first.split() == ["name", "build-7"]
    *_, paused, destroyed = said.stdout.splitlines()
    assert "session.paused" in paused
    assert "session.destroyed" in destroyed


def test_as_json_each_change_is_a_value_on_a_line(double: Double) -> None:
    states = ["READY", "READY", "PAUSED", "DESTROYED"]
    double.on(
        "GET",
        "sessions/mine",
        *(JSONResponse({"session": session(status=f"SESSION_STATUS_{s}")}) for s in states),
    )
    told = [
        event_frame(2, "file.written"), event_frame(3, "session.paused"),
        event_frame(4, "session.destroyed"),
    ]  # fmt: skip
    newest = stream(event_frame(1))
    double.on("GET", "sessions/mine/events", newest, stream(*told), newest)
    said = says(double, "show", "mine", "--watch", "-o", "json")
    assert said.exit_code == 0, said.stderr
    found = [json.loads(line) for line in said.stdout.splitlines()]
    assert [each["status"] for each in found] == ["READY", "PAUSED", "DESTROYED"]
    once = says(double, "show", "mine", "-o", "json")
    assert json.loads(once.stdout) == found[-1]


def test_without_a_terminal_too_a_server_that_is_away_is_waited_for(
    double: Double, news: News
) -> None:
    listed(double, "first")
    with piped(double, "list", "--watch", "-o", "json") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert [each["name"] for each in json.loads(running.stdout.readline())] == ["first"]
        double.stop()
        assert "Not as it is now" in running.stderr.readline()
        listed(double, "first", "second")
        double.start()
        found = json.loads(running.stdout.readline())
        assert [each["name"] for each in found] == ["first", "second"]
        assert "there again" in running.stderr.readline()
        news.tell(2, "session.destroyed")
        listed(double)
        news.tell(3, "session.destroyed")
        while (line := running.stdout.readline()) != "[]\n":
            assert line
        running.send_signal(signal.SIGINT)
        assert running.wait() == 130


def test_what_the_server_refuses_ends_it(double: Double) -> None:
    double.on("GET", "events", stream(event_frame(1)), refusal(401, "unauthorized", "Revoked."))
    listed(double, "first")
    said = says(double, "list", "--watch")
    assert (said.exit_code, "Revoked." in said.stderr) == (1, True)


def test_the_status_is_looked_at_again_and_again(double: Double) -> None:
    host = {
        "name": "h", "version": "1", "accelerator": "tcg", "qemu": "7.2", "memory_bytes": 100,
        "free_memory_bytes": 50, "promised_free_bytes": 40, "free_disk_bytes": 9,
        "stored_bytes": 3, "sessions": {"READY": 1},
    }  # fmt: skip
    who = {"id": "tok_1", "name": "me", "role": "admin", "permissions": []}
    double.on("GET", "whoami", JSONResponse(who))
    double.on("GET", "host", JSONResponse(host))
    with seat(["status", "--watch"], ENV | {"TORPOR_URL": double.url}) as at:
        at.shows("1 ready")
        double.on("GET", "host", JSONResponse(host | {"sessions": {"PAUSED": 2}}))
        at.shows("2 paused")
        at.press("\x03")
        assert at.ended() == 130


def test_a_template_is_followed_until_it_is_deleted(double: Double, news: News) -> None:
    mine = {"of": None, "template_id": template()["template_id"]}
    answers = {"template": template(status="TEMPLATE_STATUS_BUILDING")}
    double.on("GET", "templates/tools", lambda _: JSONResponse(answers))
    double.on("GET", "templates/tools/builds", JSONResponse({"builds": [build()]}))
    with seat(["template", "show", "tools", "--watch"], ENV | {"TORPOR_URL": double.url}) as at:
        at.shows("building")
        answers["template"] = template()
        news.tell(2, "template.build_succeeded", **mine)
        at.shows("ready")
        news.tell(3, "template.deleted", of=None, template_id="another")
        news.tell(4, "template.deleted", **mine)
        assert at.ended() == 0
        assert any("ready" in line for line in at.lines)  # what was last stays


def test_a_workspace_is_followed_until_it_is_deleted(double: Double, news: News) -> None:
    found = workspace()
    mine = {"workspace_id": found["workspace_id"]}
    answers = {"workspace": found}
    double.on("GET", "workspaces/notes", lambda _: JSONResponse(answers))
    double.on("GET", f"workspaces/{found['workspace_id']}", lambda _: JSONResponse(answers))
    with seat(["workspace", "show", "notes", "--watch"], ENV | {"TORPOR_URL": double.url}) as at:
        at.shows("available")
        answers["workspace"] = workspace(state="ATTACHED", attached_session_id=ID)
        news.tell(2, "workspace.attached", **mine)
        at.shows("attached")
        news.tell(3, "workspace.deleted", of=None, workspace_id="another")
        news.tell(4, "workspace.deleted", of=None, **mine)
        assert at.ended() == 0
        assert any("attached" in line for line in at.lines)


def test_workspaces_are_listed_anew_when_one_is_saved(double: Double, news: News) -> None:
    said = {"workspaces": [workspace()], "next_page_token": ""}
    double.on("GET", "workspaces", lambda _: JSONResponse(said))
    with seat(["workspace", "list", "--watch"], ENV | {"TORPOR_URL": double.url}) as at:
        at.shows("notes")
        said["workspaces"] = [workspace(name="more")]
        news.tell(2, "session.ready")  # nothing of a workspace is another for that
        news.tell(3, "session.paused")
        at.shows("more")
        at.press("\x03")
        assert at.ended() == 130


def test_watching_ids_alone_is_refused(double: Double) -> None:
    for words in (["list"], ["config", "list"]):
        assert says(double, *words, "--quiet", "--watch").exit_code == 2


def test_checkpoints_are_listed_and_followed(double: Double) -> None:
    News(double, "sessions/mine/events")
    double.on("GET", "sessions/mine/checkpoints", JSONResponse({"checkpoints": []}))
    assert "no checkpoints" in says(double, "checkpoints", "mine").stdout
    found = [checkpoint(2, label="before", durable=False), checkpoint(1)]
    double.on("GET", "sessions/mine/checkpoints", JSONResponse({"checkpoints": found}))
    _, newest, oldest = says(double, "checkpoints", "mine").stdout.splitlines()
    assert newest.split()[:4] == ["cp_0000000000000002", "before", "explicit", "2"]
    assert "not durable" in newest
    assert oldest.split()[1:3] == ["explicit", "1"]
    with seat(["checkpoints", "mine", "--watch"], ENV | {"TORPOR_URL": double.url}) as at:
        at.shows("not durable")
        at.press("\x03")
        assert at.ended() == 130


def test_who_follows_line_by_line_is_told_that_the_server_is_away(
    double: Double, news: News
) -> None:
    with piped(double, "logs", "--follow", "--tail", "1", "-o", "json") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert json.loads(running.stdout.readline())["id"] == event_id(1)
        double.answers["GET", "/healthz"] = [JSONResponse({"status": "ok"})]
        double.stop()
        assert "The server is away" in running.stderr.readline()
        double.start()
        news.tell(2, "session.created")
        assert json.loads(running.stdout.readline())["id"] == event_id(2)
        assert "there again" in running.stderr.readline()
        running.send_signal(signal.SIGINT)
        assert running.wait() == 130
