"""What each method asks for, byte by byte, and what it makes of the answer."""

import base64
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from tests.client.double import (
    AT,
    Double,
    checkpoint,
    event_frame,
    event_id,
    frame,
    session,
    stream,
)
from torpor.client import (
    AnswerError,
    AsyncClient,
    Client,
    Page,
    Ran,
    Terminal,
    UnavailableError,
)

ID = session()["session_id"]
WHEN = datetime(2026, 5, 4, 8, 5, 42, 120000, tzinfo=UTC)
DONE = Response(status_code=204)

# Method of the client, its arguments; HTTP method, path, query and body of what is sent.
CHANGES: list[Any] = [
    ("destroy_session", ("b",), {}, "DELETE", "sessions/b", {}, None),
    ("pause_session", ("b",), {}, "POST", "sessions/b/pause", {}, None),
    ("pause_session", ("b",), {"durable": True}, "POST", "sessions/b/pause", {"durable": "true"},
     None),
    ("resume_session", ("b",), {}, "POST", "sessions/b/resume", {}, {}),
    ("resume_session", ("b",), {"snapshot": "s"}, "POST", "sessions/b/resume", {},
     {"snapshot_id": "s"}),
    ("delete_checkpoint", ("b", "cp"), {}, "DELETE", "sessions/b/checkpoints/cp", {}, None),
    ("signal_exec", ("b", "e", 9), {}, "POST", "sessions/b/execs/e/signal", {}, {"signal": 9}),
    ("resize_exec", ("b", "e", Terminal(5, 6)), {}, "POST", "sessions/b/execs/e/resize", {},
     {"rows": 5, "columns": 6}),
    ("signal_process", ("b", 412, 15), {}, "POST", "sessions/b/processes/412/signal", {},
     {"signal": 15}),
    ("remove_file", ("b", "/x"), {"recursive": True}, "DELETE", "sessions/b/files",
     {"path": "/x", "recursive": "true"}, None),
    ("move_file", ("b", "/x", "/y"), {"user": "1000"}, "POST", "sessions/b/files/move",
     {"user": "1000"}, {"from": "/x", "to": "/y", "replace": True}),
    ("make_directory", ("b", "/d"), {"mode": 0o700, "parents": True}, "POST",
     "sessions/b/files/directory", {}, {"path": "/d", "mode": "0700", "parents": True}),
    ("make_link", ("b", "/l", "t"), {}, "POST", "sessions/b/files/link", {},
     {"path": "/l", "target": "t"}),
    ("change_file", ("b", "/x"), {"mode": 0o755, "owner": "nobody"}, "PATCH", "sessions/b/files",
     {}, {"path": "/x", "mode": "0755", "owner": "nobody"}),
    ("revoke_token", ("t1",), {}, "DELETE", "tokens/t1", {}, None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "arguments", "options", "method", "path", "query", "body"),
    CHANGES,
    ids=[f"{each[0]}-{len(each[2])}" for each in CHANGES],
)
async def test_a_change_is_asked_for_as_the_api_has_it(
    double: Double,
    client: Client,
    async_client: AsyncClient,
    name: str,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    method: str,
    path: str,
    query: dict[str, str],
    body: Any,
) -> None:
    double.on(method, path, DONE)
    assert getattr(client, name)(*arguments, **options) is None
    assert await getattr(async_client, name)(*arguments, **options) is None
    for asked in double.asked:
        assert (asked.method, asked.path) == (method, f"/v2/agents/{path}")
        assert dict(asked.query) == query
        assert asked.headers["authorization"] == "Bearer torpor_t_s"
        assert (asked.said if asked.body else None) == body
    assert len(double.asked) == 2


def test_a_session_is_created_and_read(double: Double, client: Client) -> None:
    double.on("POST", "sessions", JSONResponse({
        "session": session(
            status="SESSION_STATUS_PROVISIONING",
            env={"LANG": "C.UTF-8"},
            idle_timeout_seconds=900,
            keep_warm=True,
            parent_session_id="p",
            warnings=["it is small"],
        )
    }))  # fmt: skip
    made = client.create_session(
        "build-7",
        image="default",
        size="mars-2vcpu-1gb",
        env={"LANG": "C.UTF-8"},
        labels={"team": "search"},
        metadata={"ticket": 7742},
        idle_timeout=900,
        keep_warm=True,
        wait=True,
        key="k1",
    )
    asked = double.one("POST", "sessions")
    assert asked.query == (("wait", "ready"),)
    assert asked.headers["idempotency-key"] == "k1"
    assert asked.said == {
        "name": "build-7",
        "image": "default",
        "size": "mars-2vcpu-1gb",
        "env": {"LANG": "C.UTF-8"},
        "labels": {"team": "search"},
        "metadata": {"ticket": 7742},
        "idle_timeout": 900,
        "keep_warm": True,
    }
    assert (made.id, made.name, made.status, made.agent) == (ID, "build-7", "PROVISIONING", "none")
    assert (made.created_at, made.generation, made.parent) == (WHEN, 3, "p")
    assert (made.idle_timeout, made.keep_warm, made.env) == (900, True, {"LANG": "C.UTF-8"})
    assert (made.labels, made.metadata) == ({"team": "search"}, {"ticket": 7742})
    assert made.warnings == ("it is small",)


def test_a_manifest_goes_as_it_is(double: Double, client: Client) -> None:
    double.on("POST", "sessions", JSONResponse({"session": session()}))
    client.create_session_from_manifest("name: build-7\n")
    asked = double.one("POST", "sessions")
    assert (asked.headers["content-type"], asked.body) == ("application/yaml", b"name: build-7\n")


def test_a_list_goes_on_where_a_page_ends(double: Double, client: Client) -> None:
    double.on(
        "GET",
        "sessions",
        JSONResponse({"sessions": [session("b")], "next_page_token": "c/2"}),
        JSONResponse({"sessions": [session("a")], "next_page_token": ""}),
    )
    first = client.list_sessions(status="all", search="b", labels={"x": "1", "y": "2"}, limit=1)
    assert first.next == "c/2"
    last = client.list_sessions(after=first.next)
    assert last == Page(last.items, None)
    assert [each.name for each in first.items + last.items] == ["b", "a"]
    assert double.asked[0].query == (
        ("status", "SESSION_STATUS_ALL"),
        ("search", "b"),
        ("page_size", "1"),
        ("label", "x=1"),
        ("label", "y=2"),
    )
    assert double.asked[1].query == (("page_token", "c/2"),)


def test_a_session_that_failed_says_what_it_can_go_on_from(double: Double, client: Client) -> None:
    said = {
        "snapshot_id": "s1", "kind": "pause", "generation": 2, "created_at": AT, "durable": False,
    }  # fmt: skip
    double.on("GET", "sessions/b", JSONResponse({
        "session": session(status="SESSION_STATUS_FAILED", failure="it died", recoverable=[said])
    }))  # fmt: skip
    found = client.get_session("b")
    assert (found.failure, found.recoverable[0].snapshot) == ("it died", "s1")
    assert (found.recoverable[0].durable, found.recoverable[0].checkpoint) == (False, None)


def test_changes_of_a_session_are_those_that_were_given(double: Double, client: Client) -> None:
    double.on("PATCH", "sessions/b", JSONResponse({"session": session("c")}))
    assert client.update_session("b", name="c", idle_timeout=0, labels={}).name == "c"
    said = {"name": "c", "idle_timeout": 0, "labels": {}}
    assert double.one("PATCH", "sessions/b").said == said


def test_names_are_not_taken_for_paths(double: Double, client: Client) -> None:
    double.on("GET", "sessions/a/b?c", JSONResponse({"session": session()}))
    client.get_session("a/b?c")
    for wrong in ("", ".", ".."):
        with pytest.raises(ValueError, match="names nothing"):
            client.destroy_session(wrong)
    assert len(double.asked) == 1


def test_checkpoints(double: Double, client: Client) -> None:
    double.on("POST", "sessions/b/checkpoints", JSONResponse({"checkpoint": checkpoint()}))
    double.on("GET", "sessions/b/checkpoints", JSONResponse({
        "checkpoints": [checkpoint(2), checkpoint(1, status="FAILED", error_message="no space")],
        "next_page_token": "",
    }))  # fmt: skip
    made = client.create_checkpoint("b", label="before", durable=True)
    asked = double.one("POST", "sessions/b/checkpoints")
    assert (asked.query, asked.said) == ((("durable", "true"),), {"label": "before"})
    assert (made.id, made.size_bytes, made.durable) == ("cp_0000000000000001", 31457280, True)
    listed = client.list_checkpoints("b").items
    assert [each.error for each in listed] == [None, "no space"]


def test_a_fork_tells_of_the_children_that_there_are_not(double: Double, client: Client) -> None:
    double.on("POST", "sessions/b/fork", JSONResponse({
        "sessions": [session("c1")],
        "errors": [{"index": 1, "id": "no_room", "message": "There is no room.", "todo": "Wait."}],
        "not_undone": [event_id(7)],
    }))  # fmt: skip
    forked = client.fork_session("b", count=2, checkpoint="cp")
    asked = double.one("POST", "sessions/b/fork")
    assert asked.said == {"count": 2, "from_checkpoint_id": "cp"}
    assert [each.name for each in forked.sessions] == ["c1"]
    assert (forked.failures[0].index, forked.failures[0].error.id) == (1, "no_room")
    assert str(forked.failures[0].error) == "There is no room. Wait."
    assert forked.not_undone == (event_id(7),)


def test_a_rollback_tells_what_it_did_not_undo(double: Double, client: Client) -> None:
    double.on("POST", "sessions/b/checkpoints/cp/rollback", JSONResponse({
        "session": session(generation=9), "not_undone": [event_id(1)],
    }))  # fmt: skip
    done = client.roll_back("b", "cp")
    assert (done.session.generation, done.not_undone) == (9, (event_id(1),))


def test_a_tree(double: Double, client: Client) -> None:
    node = {
        "snapshot_id": "s1", "kind": "checkpoint", "generation": 1, "created_at": AT,
        "status": "READY", "durable": True, "size_bytes": 5, "label": "x", "current": True,
        "checkpoint_id": "cp", "children": ["c"],
    }  # fmt: skip
    double.on("GET", "sessions/b/tree", JSONResponse({
        "session": session(), "snapshots": [node], "children": [session("c")],
    }))  # fmt: skip
    tree = client.get_tree("b")
    assert (tree.nodes[0].parent, tree.nodes[0].stored_bytes) == (None, 5)
    assert (tree.nodes[0].children, tree.children[0].name) == (("c",), "c")


def ran(**changes: Any) -> dict[str, Any]:
    return {
        "exit_code": 0, "stdout": "", "stderr": "", "duration_ms": 41, "exec_id": "e",
        "timed_out": False, **changes,
    }  # fmt: skip


def test_a_command_is_run_and_its_output_is_bytes(double: Double, client: Client) -> None:
    double.on(
        "POST",
        "sessions/b/sandbox/exec",
        JSONResponse(
            ran(exit_code=143, signal=15, timed_out=True, stdout="h\ufffd",
                stdout_base64=base64.b64encode(b"h\xff").decode(), stderr="\u00e9"),
            headers={"X-Exec-Stdout-Truncated": "true"},
        ),
    )  # fmt: skip
    found = client.run(
        "b", ["cat"], stdin=b"\0in", env={"A": "1"}, workdir="/", user="nobody", timeout=5
    )
    assert found == Ran(143, 15, b"h\xff", "\u00e9".encode(), 0.041, True, True, "e")
    assert double.one("POST", "sessions/b/sandbox/exec").said == {
        "argv": ["cat"],
        "stdin": base64.b64encode(b"\0in").decode(),
        "env": {"A": "1"},
        "workdir": "/",
        "user": "nobody",
        "timeout_seconds": 5,
    }


def test_a_line_is_for_the_shell(double: Double, client: Client) -> None:
    double.on("POST", "sessions/b/sandbox/exec", JSONResponse(ran()))
    assert client.run("b", "ls | wc").status == 0
    said = {"shell": "ls | wc", "timeout_seconds": 60}
    assert double.one("POST", "sessions/b/sandbox/exec").said == said


def test_execs(double: Double, client: Client) -> None:
    one = {"exec_id": "e", "argv": ["sh"], "running": True, "output_start": 0, "output_end": 3}
    ended = {**one, "running": False, "exit_code": 139, "signal": 11, "timed_out": False}
    double.on("POST", "sessions/b/execs", JSONResponse({"exec": {**one, "pid": 412}}))
    double.on("GET", "sessions/b/execs", JSONResponse({"execs": [one, ended]}))
    double.on("GET", "sessions/b/execs/e", JSONResponse({"exec": ended}))
    double.on("POST", "sessions/b/execs/e/input", DONE)
    started = client.start_exec(
        "b", ["sh"], stdin=True, terminal=Terminal(40, 100), timeout=1.5, keep_bytes=10, key="k1"
    )
    assert (started.id, started.pid, started.running) == ("e", 412, True)
    assert double.one("POST", "sessions/b/execs").headers["idempotency-key"] == "k1"
    assert double.one("POST", "sessions/b/execs").said == {
        "argv": ["sh"],
        "stdin": True,
        "terminal": {"rows": 40, "columns": 100},
        "limit_seconds": 1.5,
        "keep_bytes": 10,
    }
    assert [each.status for each in client.list_execs("b")] == [None, 139]
    assert (client.get_exec("b", "e").signal, client.get_exec("b", "e").output_end) == (11, 3)
    client.write_exec("b", "e", b"x\n", eof=True)
    asked = double.one("POST", "sessions/b/execs/e/input")
    assert (asked.body, asked.query) == (b"x\n", (("eof", "true"),))


FILE = {
    "type": "file", "mode": "0644", "size": 12, "stored": 4096, "uid": 0, "gid": 0,
    "mtime_ns": 1777881942120000000, "links": 1, "inode": 131, "device": 65024,
}  # fmt: skip


def test_files(double: Double, client: Client) -> None:
    double.on("GET", "sessions/b/files/status", JSONResponse({"file": FILE}))
    double.on("GET", "sessions/b/files/list", JSONResponse({
        "entries": [{"path": "a", "file": FILE, "sha256": "00"}, {"path": "b", "error": "gone"}],
        "next_page_token": "",
    }))  # fmt: skip
    assert client.get_file_status("b", "/a", follow=True).mode == 0o644
    entries = client.list_files("b", "/", recursive=True, sha256=True).items
    assert [(each.path, each.sha256, each.error) for each in entries] == [
        ("a", "00", None),
        ("b", None, "gone"),
    ]
    assert entries[1].status is None
    assert double.one("GET", "sessions/b/files/status").query == (
        ("path", "/a"),
        ("follow", "true"),
    )


def test_a_name_that_is_not_utf_8_comes_and_goes_as_it_is(double: Double, client: Client) -> None:
    double.on("GET", "sessions/b/files/content", Response(b"x"))
    client.read_file("b", "/caf\udce9 %")
    # What the double shows was decoded; the bytes are those that Python cannot decode.
    assert dict(double.asked[0].query)["path"] == "/caf\ufffd %"


async def test_content_goes_both_ways_in_pieces(
    double: Double, client: Client, async_client: AsyncClient
) -> None:
    double.on("PUT", "sessions/b/files/content", JSONResponse({"size": 6}))
    double.on("GET", "sessions/b/files/content", Response(b"def", 206))

    async def pieces() -> Any:
        yield b"abc"
        yield b"def"

    assert client.write_file("b", "/x", iter([b"abc", b"def"]), mode=0o600, atomic=True) == 6
    assert await async_client.write_file("b", "/x", pieces()) == 6
    assert await async_client.write_file("b", "/x", [b"abc", b"def"]) == 6
    assert [each.body for each in double.asked] == [b"abcdef"] * 3
    assert dict(double.asked[0].query) == {"path": "/x", "mode": "0600", "atomic": "true"}
    with pytest.raises(TypeError, match="AsyncClient"):
        client.write_file("b", "/x", pieces())
    assert b"".join(client.read_file_pieces("b", "/x", offset=3)) == b"def"
    assert double.asked[-1].headers["range"] == "bytes=3-"
    assert b"".join([p async for p in async_client.read_file_pieces("b", "/x")]) == b"def"


def test_archives(double: Double, client: Client) -> None:
    double.on("GET", "sessions/b/files/archive", Response(b"tar"))
    double.on("PUT", "sessions/b/files/archive", JSONResponse(
        {"members": 3, "attributes": 1, "skipped": 0}
    ))  # fmt: skip
    assert b"".join(client.read_archive_pieces("b", "/d", name=".")) == b"tar"
    done = client.write_archive("b", "/d", b"tar", owner="1000:1000", parents=True)
    assert (done.members, done.attributes) == (3, 1)
    assert dict(double.asked[1].query) == {"path": "/d", "owner": "1000:1000", "parents": "true"}


def test_a_watch_ends_with_the_error_that_ended_it(double: Double, client: Client) -> None:
    double.on("GET", "sessions/b/files/watch", stream(
        b'event: change\ndata: {"event":"ready"}\n\n',
        b'event: change\ndata: {"event":"modified","path":"main.py"}\n\n',
        frame("error", {"error": {"id": "silent", "message": "No.", "http_code": 503}}),
    ))  # fmt: skip
    changes = client.watch_files("b", "/d")
    assert (next(changes).event, next(changes).path) == ("ready", "main.py")
    with pytest.raises(UnavailableError, match=r"No\."):
        next(changes)


def test_the_server_of_itself(double: Double, client: Client) -> None:
    size = {
        "slug": "mars-2vcpu-1gb", "vcpus": 2, "memory_mb": 1024,
        "price_per_hour_usd": 0.0975, "price_per_month_usd": 71.175,
    }  # fmt: skip
    double.on("GET", "sessions/sandbox/sizes", JSONResponse({"sizes": [size]}))
    double.on("GET", "whoami", JSONResponse(
        {"id": "t", "name": "me", "role": "admin", "permissions": ["read"]}
    ))  # fmt: skip
    double.on("GET", "host", JSONResponse({
        "name": "h", "version": "0.1", "accelerator": "tcg", "why": "no kvm", "qemu": "7.2",
        "jail_missing": [], "memory_bytes": 8, "free_memory_bytes": 4, "promised_free_bytes": -2,
        "free_disk_bytes": 9, "stored_bytes": 1, "sessions": {"READY": 2},
    }))  # fmt: skip
    double.on("GET", "sessions/b/samples", JSONResponse({"samples": [{
        "at": AT, "vcpu_seconds": 1.5, "waited_seconds": 0, "emulator_seconds": 0.25,
        "resident_bytes": 5, "private_bytes": 4, "stored_bytes": 3,
    }]}))  # fmt: skip
    assert client.list_sizes()[0].memory_mib == 1024
    assert (client.who_am_i().role, client.who_am_i().permissions) == ("admin", ("read",))
    assert client.get_host().promised_free_bytes == -2
    east = WHEN.astimezone(timezone(timedelta(hours=2)))
    assert client.list_samples("b", since=east)[0].vcpu == 1.5
    assert double.one("GET", "sessions/b/samples").query == (("since", AT),)
    with pytest.raises(ValueError, match="zone"):
        client.list_samples("b", since=datetime(2026, 5, 4))  # noqa: DTZ001


def test_tokens(double: Double, client: Client) -> None:
    one = {"id": "t1", "name": "ci", "role": "operator", "created_at": AT}
    double.on("POST", "tokens", JSONResponse({"token": one, "bearer": "torpor_t1_x"}))
    double.on("GET", "tokens", JSONResponse({"tokens": [{**one, "revoked_at": AT}]}))
    made = client.create_token("ci", "operator", lifetime_seconds=60)
    assert (made.bearer, made.token.id) == ("torpor_t1_x", "t1")
    said = {"name": "ci", "role": "operator", "lifetime_seconds": 60}
    assert double.one("POST", "tokens").said == said
    assert client.list_tokens()[0].revoked_at == WHEN


def test_history_is_the_newest_events_the_oldest_first(double: Double, client: Client) -> None:
    double.on("GET", "sessions/b/events", stream(
        b'event: stream.state\ndata: {"data":{}}\n\n',
        event_frame(1), event_frame(2), b": has_more=true\n\n",
    ))  # fmt: skip
    found = client.get_history("b", limit=2)
    assert [each.id for each in found.events] == [event_id(1), event_id(2)]
    assert found.more
    client.get_history("b", before=event_id(1), limit=2)
    assert [dict(each.query)["before"] for each in double.asked] == ["7" + "Z" * 25, event_id(1)]


def test_what_needs_no_token_is_where_it_is(double: Double, client: Client) -> None:
    double.answers["GET", "/healthz"] = [JSONResponse({"status": "ok"})]
    double.answers["GET", "/readyz"] = [JSONResponse({"status": "ok"})]
    double.answers["GET", "/metrics"] = [Response("torpor_sessions 2.0\n")]
    assert (client.health(), client.readiness()) == ("ok", "ok")
    assert client.metrics() == "torpor_sessions 2.0\n"


@pytest.mark.parametrize(
    "answer",
    [
        Response(b"<html>", 200),
        JSONResponse(["session"]),
        JSONResponse({}),
        JSONResponse({"session": {"name": "b"}}),
        JSONResponse({"session": session(created_at="yesterday")}),
        JSONResponse({"session": session(created_at="2026-05-04T08:05:42")}),
        JSONResponse({"session": session(generation="many")}),
        JSONResponse({"session": session(labels=[])}),
        Response(status_code=302, headers={"location": "https://elsewhere.test/"}),
    ],
)
def test_an_answer_that_is_none_is_refused(
    double: Double, client: Client, answer: Response
) -> None:
    double.on("GET", "sessions/b", answer)
    with pytest.raises(AnswerError, match="server"):
        client.get_session("b")
    assert len(double.asked) == 1
