"""Commands over HTTP and WebSockets. The machines are agents on this host."""

import asyncio
import base64
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.api.conftest import BASE, Api, served
from tests.api.reading import all_frames, frames
from tests.api.test_events import api_client
from tests.waiting import eventually
from torpor.api import execs
from torpor.sessions.model import SYSTEM

HEAD = struct.Struct(">BQ")


async def start(client: httpx.AsyncClient, line: str | None = None, **body: Any) -> str:
    """Start a command in the session `one`, or a line of shell; return its id."""
    if line is not None:
        body["shell"] = line
    answer = await client.post("/sessions/one/execs", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["exec"]["exec_id"])


@pytest.fixture
async def one(api: Api) -> str:
    """A session called `one`."""
    return await api.ready(name="one")


async def test_a_command_is_run_to_its_end(one: str, client: httpx.AsyncClient) -> None:
    answer = await client.post(
        f"/sessions/{one}/sandbox/exec",
        json={
            "argv": ["sh", "-c", "cat; echo $A >&2; pwd; exit 3"],
            "stdin": base64.b64encode(b"hi\n").decode(),
            "env": {"A": "err"},
            "workdir": "/usr",
        },
    )
    assert answer.status_code == 200, answer.text
    said = answer.json()
    assert (said["exit_code"], said["stdout"], said["stderr"]) == (3, "hi\n/usr\n", "err\n")
    assert said["timed_out"] is False
    assert "stdout_base64" not in said
    assert said["duration_ms"] >= 0
    assert "x-exec-stdout-truncated" not in answer.headers


async def test_output_that_is_not_utf_8_is_there_as_it_was(
    one: str, client: httpx.AsyncClient
) -> None:
    answer = await client.post(
        "/sessions/one/sandbox/exec", json={"shell": r"printf '\377x'; printf 'é' >&2"}
    )
    said = answer.json()
    assert (said["stdout"], said["stderr"]) == ("\ufffdx", "é")
    assert base64.b64decode(said["stdout_base64"]) == b"\xffx"
    assert "stderr_base64" not in said


async def test_too_much_output_is_cut_and_that_is_said(one: str, client: httpx.AsyncClient) -> None:
    line = "yes é | head -c 1500000"
    answer = await client.post("/sessions/one/sandbox/exec", json={"shell": line})
    assert answer.headers["x-exec-stdout-truncated"] == "true"
    assert "x-exec-stderr-truncated" not in answer.headers
    said = answer.json()
    assert len(said["stdout"].encode()) in ((1 << 20) - 1, 1 << 20)
    assert "stdout_base64" not in said


async def test_a_command_that_takes_too_long_is_ended(one: str, client: httpx.AsyncClient) -> None:
    body = {"argv": ["sleep", "60"], "timeout_seconds": 1}
    said = (await client.post("/sessions/one/sandbox/exec", json=body)).json()
    assert (said["timed_out"], said["signal"], said["exit_code"]) == (True, 15, 143)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [({}, 60), (0, 60), (-5, 60), (1, 1), (240, 240), (241, 240), (1 << 40, 240)],
)
async def test_a_time_limit_is_put_between_the_usual_and_the_longest(
    api: Api, one: str, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, said: Any,
    seconds: int,
) -> None:  # fmt: skip
    asked: list[float] = []
    real = api.sessions.execs.run

    async def run(*arguments: Any, **options: Any) -> Any:
        asked.append(options["limit"])
        return await real(*arguments, **options)

    monkeypatch.setattr(api.sessions.execs, "run", run)
    body = {"argv": ["true"], **({"timeout_seconds": said} if isinstance(said, int) else {})}
    answer = await client.post("/sessions/one/sandbox/exec", json=body)
    assert (answer.status_code, asked) == (200, [float(seconds)])


async def test_a_command_starts_in_the_workspace_where_there_is_one(
    one: str, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    workspace = tmp_path / "workspace"
    monkeypatch.setattr(execs, "PREFERRED", str(workspace))

    async def told(**body: Any) -> tuple[int, str]:
        answer = await client.post("/sessions/one/sandbox/exec", json={"argv": ["pwd"], **body})
        return answer.status_code, answer.json().get("stdout", "").strip()

    without = await told()
    assert without[0] == 200
    assert without[1] != str(workspace)
    assert await told(argv=["/no/such/program"]) == (404, "")
    workspace.write_text("no directory")
    assert await told() == without
    workspace.unlink()
    workspace.mkdir()
    assert await told() == (200, str(workspace))
    assert await told(workdir="") == (200, str(workspace))
    assert await told(workdir="/usr") == (200, "/usr")
    assert await told(argv=["/no/such/program"]) == (404, "")
    assert await told(argv=["bin/pwd"]) == (404, "")  # there is one from where the image starts
    workspace.rmdir()
    assert await told(argv=["bin/pwd"]) == without
    workspace.mkdir()
    # A command that is only started is where its image says.
    started = await start(client, argv=["pwd"])
    output = await all_frames(await client.get(f"/sessions/one/execs/{started}/output"))
    assert base64.b64decode(output[0].data["data"]).decode().strip() == without[1]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"argv": []}, 400),
        ({"argv": ["a"], "shell": "b"}, 400),
        ({"argv": ["a\0b"]}, 400),
        ({"argv": ["true"], "stdin": "?"}, 400),
        ({"argv": "true"}, 400),
        ({"argv": ["true"], "cwd": "/"}, 400),
        ({"argv": ["/no/such/program"]}, 404),
        ({"argv": ["true"], "workdir": "/no/such"}, 404),
        ({"argv": ["true"], "user": "nobody-there"}, 400),
    ],
)
async def test_a_command_that_cannot_be_is_refused(
    body: dict[str, Any], status: int, one: str, client: httpx.AsyncClient
) -> None:
    answer = await client.post("/sessions/one/sandbox/exec", json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["message"]


async def test_a_paused_session_is_woken_once_by_a_hundred_commands(api: Api, one: str) -> None:
    await api.sessions.pause(one, SYSTEM)
    async with api.client() as client:

        async def run(number: int) -> str:
            body = {"argv": ["echo", str(number)]}
            answer = await client.post("/sessions/one/sandbox/exec", json=body)
            assert answer.status_code == 200, answer.text
            return str(answer.json()["stdout"])

        said = await asyncio.gather(*(run(number) for number in range(100)))
    assert said == [f"{number}\n" for number in range(100)]
    assert api.host.calls.count("start resume") == 1


async def test_who_goes_away_leaves_the_command_and_nothing_else(api: Api, one: str) -> None:
    async with served(api) as address, api_client(api, address) as client:
        running = asyncio.ensure_future(
            # Where it is told to start it is tried once: what is known of it is the command itself.
            client.post(
                "/sessions/one/sandbox/exec", json={"argv": ["sleep", "30"], "workdir": "/"}
            )
        )

        async def known() -> list[dict[str, Any]]:
            answer = await client.get("/sessions/one/execs")
            return list(answer.json()["execs"])

        await eventually(known, bool)
        await eventually(lambda: in_use(api, one), lambda uses: uses > 0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await eventually(lambda: in_use(api, one), lambda uses: uses == 0)
        assert [each["running"] for each in await known()] == [True]


async def in_use(api: Api, session: str) -> int:
    """Return how many use a session."""
    return api.sessions._lives.of(session).uses


async def test_commands_are_started_listed_shown_and_signalled(
    one: str, client: httpx.AsyncClient
) -> None:
    exec_id = await start(client, argv=["sh", "-c", "echo on; sleep 60"])
    path = f"/sessions/one/execs/{exec_id}"
    shown = (await client.get(path)).json()["exec"]
    assert shown["running"] is True
    assert shown["argv"][0] == "sh"
    assert (await client.post(path + "/signal", json={"signal": 9})).status_code == 204

    async def running() -> bool:
        return bool((await client.get(path)).json()["exec"]["running"])

    await eventually(running, lambda still: not still)
    shown = (await client.get(path)).json()["exec"]
    assert (shown["signal"], shown["exit_code"], shown["output_end"]) == (9, 137, 3)
    listed = (await client.get("/sessions/one/execs")).json()["execs"]
    assert [each["exec_id"] for each in listed] == [exec_id]
    for wrong in ("/sessions/one/execs/nobody", "/sessions/one/execs/nobody/output?follow=false"):
        assert (await client.get(wrong)).status_code == 404
    assert (await client.get("/sessions/one/execs/a.b")).status_code == 400


async def test_output_is_followed_from_any_byte_to_the_end(
    one: str, client: httpx.AsyncClient
) -> None:
    exec_id = await start(client, "printf abc; sleep 0.1; printf def >&2; exit 7")
    path = f"/sessions/one/execs/{exec_id}/output"
    found = await all_frames(await client.get(path))
    assert [each.event for each in found] == ["output", "output", "exit"]
    said = [(each.data["seq"], each.data["source"]) for each in found[:2]]
    assert said == [(0, "stdout"), (3, "stderr")]
    assert base64.b64decode(found[1].data["data"]) == b"def"
    assert found[-1].data == {"code": 7, "signal": None, "timed_out": False}
    again = await all_frames(await client.get(path, params={"seq": found[0].id}))
    assert again == found[1:]
    again = await all_frames(await client.get(path, headers={"last-event-id": found[0].id or ""}))
    assert again == found[1:]


async def test_what_is_there_by_now_is_read_without_waiting(
    one: str, client: httpx.AsyncClient
) -> None:
    exec_id = await start(client, "echo on; sleep 60")
    path = f"/sessions/one/execs/{exec_id}/output"
    async with asyncio.timeout(5):
        while not (found := await all_frames(await client.get(path, params={"follow": "false"}))):
            pass
    assert [each.event for each in found] == ["output"]


async def test_a_stream_of_output_stands_still_over_a_pause_and_wakes_nothing(
    api: Api, one: str
) -> None:
    async with served(api) as address, api_client(api, address) as client:
        exec_id = await start(client, "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.1; done")
        output = b""
        words = []
        async with client.stream("GET", f"/sessions/one/execs/{exec_id}/output") as answer:
            reading = frames(answer)
            await anext(reading)
            assert (await client.post("/sessions/one/pause")).status_code == 204
            async for frame in reading:
                words.append(frame.event)
                if frame.event == "output":
                    output += base64.b64decode(frame.data["data"])
                if frame.event == "paused":
                    await asyncio.sleep(0.3)
                    assert api.host.calls.count("start resume") == 0
                    await client.post("/sessions/one/resume")
    assert output.endswith(b"7\n8\n")
    assert words[-1] == "exit"
    assert [word for word in words if word in ("paused", "resumed")] == ["paused", "resumed"]


async def test_input_is_posted_as_it_comes(one: str, client: httpx.AsyncClient) -> None:
    exec_id = await start(client, argv=["cat"], stdin=True)
    path = f"/sessions/one/execs/{exec_id}"

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(3):
            yield f"{number}\n".encode()

    assert (await client.post(path + "/input", content=pieces())).status_code == 204
    assert (await client.post(path + "/input", params={"eof": "true"})).status_code == 204
    found = await all_frames(await client.get(path + "/output"))
    data = b"".join(base64.b64decode(each.data["data"]) for each in found[:-1])
    assert (data, found[-1].data["code"]) == (b"0\n1\n2\n", 0)
    answer = await client.post(path + "/input", content=b"more")
    assert (answer.status_code, answer.json()["id"]) == (409, "guest_epipe")


@asynccontextmanager
async def following(
    api: Api, address: str, exec_id: str, query: str = ""
) -> AsyncIterator[ClientConnection]:
    """Follow a command of session `one` over a WebSocket."""
    url = f"ws://{address}{BASE}/sessions/one/execs/{exec_id}/stream{query}"
    headers = {"authorization": f"Bearer {api.tokens['operator']}"}
    async with connect(url, additional_headers=headers) as socket:
        yield socket


async def to_the_end(socket: ClientConnection) -> tuple[bytes, bytes, list[dict[str, Any]]]:
    """Read until the other end closes: standard output, standard error, what was said."""
    got = {1: b"", 2: b""}
    said = []
    seq = None
    try:
        while True:
            message = await asyncio.wait_for(socket.recv(), 10)
            if isinstance(message, bytes):
                kind, at = HEAD.unpack_from(message)
                assert seq in (None, at)
                got[kind] += message[HEAD.size :]
                seq = at + len(message) - HEAD.size
            else:
                said.append(json.loads(message))
    except ConnectionClosed:
        return got[1], got[2], said


async def test_a_command_is_spoken_with_over_a_websocket(api: Api, one: str) -> None:
    async with served(api) as address, api_client(api, address) as client:
        exec_id = await start(client, "cat; echo done >&2; exit 4", stdin=True)
        async with following(api, address, exec_id) as socket:
            await socket.send(b"hello\n")
            await socket.send(b"x" * 500_000)
            await socket.send(json.dumps({"type": "eof"}))
            out, err, said = await to_the_end(socket)
            assert (out, err) == (b"hello\n" + b"x" * 500_000, b"done\n")
            assert said == [{"type": "exit", "code": 4, "signal": None, "timed_out": False}]
            assert socket.close_code == 1000
        async with following(api, address, exec_id, "?seq=500006") as socket:
            out, err, said = await to_the_end(socket)
            assert (out, err, said[-1]["type"]) == (b"", b"done\n", "exit")


async def test_a_terminal_is_resized_and_signalled_over_a_websocket(api: Api, one: str) -> None:
    line = "trap 'stty size; exit 0' WINCH; stty size; while true; do sleep 0.05; done"
    async with served(api) as address, api_client(api, address) as client:
        exec_id = await start(client, line, terminal={"rows": 10, "columns": 20})
        async with following(api, address, exec_id) as socket:
            first = await socket.recv()
            assert isinstance(first, bytes)
            assert first.endswith(b"10 20\r\n")
            await socket.send(json.dumps({"type": "resize", "rows": 30, "columns": 40}))
            out, _, said = await to_the_end(socket)
            assert (out, said[-1]["code"]) == (b"30 40\r\n", 0)
        exec_id = await start(client, argv=["sleep", "60"])
        async with following(api, address, exec_id) as socket:
            await socket.send(json.dumps({"type": "signal", "signal": 15}))
            _, _, said = await to_the_end(socket)
            assert said[-1]["signal"] == 15


async def test_input_to_a_paused_session_wakes_it(api: Api, one: str) -> None:
    async with served(api) as address, api_client(api, address) as client:
        exec_id = await start(client, argv=["cat"], stdin=True)
        async with following(api, address, exec_id) as socket:
            await socket.send(b"before\n")
            await socket.recv()
            await client.post("/sessions/one/pause")
            assert json.loads(await socket.recv()) == {"type": "paused"}
            await socket.send(b"after\n")
            await socket.send(json.dumps({"type": "eof"}))
            out, _, said = await to_the_end(socket)
        assert out == b"after\n"
        assert [each["type"] for each in said] == ["resumed", "exit"]


async def test_who_follows_a_session_that_is_paused_is_told_so(api: Api, one: str) -> None:
    async with served(api) as address, api_client(api, address) as client:
        exec_id = await start(client, argv=["cat"], stdin=True)
        await client.post("/sessions/one/pause")
        async with following(api, address, exec_id) as socket:
            assert json.loads(await socket.recv()) == {"type": "paused"}
            assert api.host.calls.count("start resume") == 0
            await socket.send(json.dumps({"type": "eof"}))
            _, _, said = await to_the_end(socket)
            assert said[-1]["type"] == "exit"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", 4400),
        ('{"type": "dance"}', 4400),
        ('{"type": "resize", "rows": 0, "columns": 1}', 4400),
        ('{"type": "eof", "now": true}', 4400),
        ('{"type": "resize", "rows": 5, "columns": 5}', 4400),
    ],
)
async def test_what_is_not_understood_is_told_and_ends_the_websocket(
    message: str, code: int, api: Api, one: str
) -> None:
    async with served(api) as address, api_client(api, address) as client:
        exec_id = await start(client, argv=["cat"], stdin=True)
        async with following(api, address, exec_id) as socket:
            await socket.send(message)
            _, _, said = await to_the_end(socket)
            assert (said[-1]["type"], socket.close_code) == ("error", code)
            assert said[-1]["message"]


async def test_a_websocket_is_judged_before_it_is_opened(api: Api, one: str) -> None:
    async with served(api) as address:
        url = f"ws://{address}{BASE}/sessions/one/execs/nobody/stream"
        for headers, status in (
            ({}, 401),
            ({"authorization": f"Bearer {api.tokens['viewer']}"}, 403),
        ):
            with pytest.raises(InvalidStatus) as refused:
                async with connect(url, additional_headers=headers):
                    pass
            assert refused.value.response.status_code == status
            assert json.loads(refused.value.response.body)["message"]
        headers = {"authorization": f"Bearer {api.tokens['operator']}"}
        for wrong, status in ((url.replace("one", "two"), 404), (url + "?x=1", 400)):
            with pytest.raises(InvalidStatus) as refused:
                async with connect(wrong, additional_headers=headers):
                    pass
            assert refused.value.response.status_code == status
        async with connect(url, additional_headers=headers) as socket:
            _, _, said = await to_the_end(socket)
            assert (said[-1]["id"], socket.close_code) == ("not_found", 4404)


async def test_a_browser_shows_its_token_as_a_subprotocol(api: Api, one: str) -> None:
    async with served(api) as address, api_client(api, address) as client:
        exec_id = await start(client, argv=["true"])
        url = f"ws://{address}{BASE}/sessions/one/execs/{exec_id}/stream"
        bearer = f"bearer.{api.tokens['operator']}"
        async with connect(url, subprotocols=["torpor", bearer]) as socket:
            assert socket.subprotocol == "torpor"
            assert (await to_the_end(socket))[2][-1]["code"] == 0
        with pytest.raises(InvalidStatus):
            async with connect(url, subprotocols=["bearer.torpor_x_y"]):
                pass


async def test_a_client_that_goes_leaves_the_command_running_and_unfollowed(
    api: Api, one: str
) -> None:
    async with served(api) as address, api_client(api, address) as client:
        exec_id = await start(client, "while true; do echo y; done")
        async with following(api, address, exec_id) as socket:
            await socket.recv()
        async with following(api, address, exec_id, "?hold=false") as socket:
            await socket.recv()

        async def output_end() -> int:
            shown = await client.get(f"/sessions/one/execs/{exec_id}")
            return int(shown.json()["exec"]["output_end"])

        before = await output_end()
        await eventually(output_end, lambda end: end > before + (8 << 20))
        await client.post(f"/sessions/one/execs/{exec_id}/signal", json={"signal": 9})
