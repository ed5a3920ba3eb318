"""The HTTP API of a real server over real machines: what a client of it would notice."""

import asyncio
import base64
import contextlib
import hashlib
import json
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from azure.core.pipeline.policies import HeadersPolicy
from pydo import Client
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.machine.conftest import Start
from tests.machine.serving import a_server

pytestmark = pytest.mark.machine

LIMIT = 120.0
SESSIONS = "/v2/agents/sessions"


@dataclass(frozen=True)
class Server:
    """A server that runs, and its token of an admin."""

    url: str
    token: str
    home: Path

    def client(self, token: str | None = None) -> httpx.AsyncClient:
        """Return a client."""
        shown = {"authorization": f"Bearer {token or self.token}"}
        limits = httpx.Limits(max_connections=200)
        return httpx.AsyncClient(base_url=self.url, headers=shown, timeout=LIMIT, limits=limits)

    def socket(self, path: str) -> connect:
        """Open a WebSocket to something of a session."""
        url = self.url.replace("http", "ws", 1) + SESSIONS + path
        return connect(url, additional_headers={"authorization": f"Bearer {self.token}"})


@pytest.fixture(scope="module")
def server(start: Start) -> Iterator[Server]:
    """A server, one for all tests here."""
    with a_server(start) as served:
        yield Server(served.url, served.token, served.home)


@pytest.fixture
async def client(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with server.client() as opened:
        yield opened


@pytest.fixture
async def one(client: httpx.AsyncClient) -> AsyncIterator[str]:
    """The path of a session that runs; it is destroyed afterwards."""
    answer = await client.post(SESSIONS, params={"wait": "ready"}, json={"idle_timeout": 0})
    assert answer.status_code == 200, answer.text
    path = f"/{answer.json()['session']['session_id']}"
    yield path
    assert (await client.delete(SESSIONS + path)).status_code == 204


async def run(client: httpx.AsyncClient, path: str, *argv: str) -> str:
    """Run a command, and return what it wrote."""
    answer = await client.post(f"{SESSIONS}{path}/sandbox/exec", json={"argv": argv})
    assert answer.status_code == 200, answer.text
    assert answer.json()["exit_code"] == 0, answer.text
    return str(answer.json()["stdout"])


async def test_a_session_of_a_configuration_is_what_that_says(client: httpx.AsyncClient) -> None:
    manifest = "env: {GREETING: hello}\nidle_timeout: 0\n"
    body = {"name": "greeter", "manifest_yaml": manifest}
    config = (await client.post("/v2/agents/configs", json=body)).json()["config"]
    name = "n" * 64
    body = {"name": name, "config_id": config["id"]}
    made = await client.post(SESSIONS, params={"wait": "ready"}, json=body)
    assert made.status_code == 200, made.text
    path = f"/{made.json()['session']['session_id']}"
    assert made.json()["session"]["config_id"] == config["id"]
    assert await run(client, path, "sh", "-c", "echo $GREETING; hostname") == f"hello\n{name}\n"
    workspace = "/workspace"
    await run(client, path, "mkdir", "-p", workspace)
    assert await run(client, path, "pwd") == f"{workspace}\n"
    await client.post(f"{SESSIONS}{path}/pause")
    await run(client, path, "rmdir", workspace)
    assert await run(client, path, "pwd") != f"{workspace}\n"
    refused = await client.delete(f"/v2/agents/configs/{config['id']}")
    assert refused.status_code == 409
    assert (await client.delete(SESSIONS + path)).status_code == 204
    assert (await client.delete(f"/v2/agents/configs/{config['id']}")).status_code == 204


async def pause(client: httpx.AsyncClient, path: str) -> None:
    """Pause a session."""
    answer = await client.post(f"{SESSIONS}{path}/pause")
    assert answer.status_code == 204, answer.text


async def events(client: httpx.AsyncClient, path: str) -> list[dict[str, Any]]:
    """Return the events of a session."""
    answer = await client.get(f"{SESSIONS}{path}/events", params={"replay_only": "true"})
    data = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(each) for each in data[1:]]


async def test_a_body_that_is_still_coming_wakes_the_session_and_arrives_whole(
    client: httpx.AsyncClient, one: str
) -> None:
    content = random.Random(1).randbytes(3_000_000)
    await pause(client, one)

    async def slowly() -> AsyncIterator[bytes]:
        for begin in range(0, len(content), 100_000):
            yield content[begin : begin + 100_000]
            await asyncio.sleep(0.02)

    files = f"{SESSIONS}{one}/files/content"
    answer = await client.put(files, params={"path": "/srv/data"}, content=slowly())
    assert answer.json() == {"size": len(content)}
    said = await run(client, one, "sha256sum", "/srv/data")
    assert said.split()[0] == hashlib.sha256(content).hexdigest()
    await pause(client, one)
    answer = await client.get(
        files, params={"path": "/srv/data"}, headers={"range": "bytes=1000000-1999999"}
    )
    assert (answer.status_code, answer.content == content[1_000_000:2_000_000]) == (206, True)


async def test_a_hundred_requests_at_once_are_one_thaw_and_a_hundred_answers(
    client: httpx.AsyncClient, one: str
) -> None:
    await run(client, one, "true")
    await pause(client, one)
    said = await asyncio.gather(*(run(client, one, "echo", str(n)) for n in range(100)))
    assert said == [f"{n}\n" for n in range(100)]
    assert [each["type"] for each in await events(client, one)].count("session.resumed") == 1


async def test_strangers_wake_nothing_and_learn_nothing(
    server: Server, client: httpx.AsyncClient, one: str
) -> None:
    await pause(client, one)
    answers = set()
    async with server.client("torpor_0000000000000000_" + "0" * 64) as stranger:
        for path in (one, "/nobody"):
            for method, rest in (("POST", "/sandbox/exec"), ("GET", ""), ("POST", "/resume")):
                answer = await stranger.request(
                    method, SESSIONS + path + rest, json={"argv": ["a"]}
                )
                body = answer.json()
                body.pop("request_id")
                answers.add((answer.status_code, str(body)))
    assert len(answers) == 1
    for path in (one, "/nobody"):
        url = f"{server.url.replace('http', 'ws', 1)}{SESSIONS}{path}/port-forward/8080"
        with pytest.raises(InvalidStatus) as refused:
            async with connect(url):
                pass
        assert refused.value.response.status_code == 401
    shown = (await client.get(SESSIONS + one)).json()["session"]
    assert shown["status"] == "SESSION_STATUS_PAUSED"


async def test_an_upgrade_wakes_the_session_and_a_connection_lives_over_pauses(
    server: Server, client: httpx.AsyncClient, one: str
) -> None:
    echo = (
        "import socket; s = socket.create_server(('127.0.0.1', 7000)); print('up', flush=True)\n"
        "while True:\n c, _ = s.accept()\n while d := c.recv(65536): c.sendall(d.upper())"
    )
    started = await client.post(
        f"{SESSIONS}{one}/execs", json={"argv": ["/usr/bin/python3", "-c", echo]}
    )
    exec_id = started.json()["exec"]["exec_id"]
    output = f"{SESSIONS}{one}/execs/{exec_id}/output"
    async with client.stream("GET", output) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                break
    await pause(client, one)
    async with server.socket(f"{one}/port-forward/7000") as socket:
        for _ in range(3):
            await socket.send(b"hello")
            assert await asyncio.wait_for(socket.recv(), 60) == b"HELLO"
            await pause(client, one)
    with pytest.raises(InvalidStatus) as refused:
        async with server.socket(f"{one}/port-forward/7001"):
            pass
    assert refused.value.response.status_code == 502


async def test_a_command_is_followed_over_pauses_without_a_byte_lost(
    client: httpx.AsyncClient, one: str
) -> None:
    line = "i=0; while [ $i -lt 400 ]; do echo $i; i=$((i + 1)); sleep 0.02; done; exit 5"
    started = await client.post(f"{SESSIONS}{one}/execs", json={"shell": line})
    exec_id = started.json()["exec"]["exec_id"]
    words, output = [], b""

    async def disturb() -> None:
        for _ in range(3):
            await asyncio.sleep(0.5)
            await pause(client, one)
            await asyncio.sleep(0.5)
            assert (await client.post(f"{SESSIONS}{one}/resume")).status_code == 204

    disturbing = asyncio.create_task(disturb())
    async with client.stream("GET", f"{SESSIONS}{one}/execs/{exec_id}/output") as answer:
        async for each in answer.aiter_lines():
            if each.startswith("event: "):
                words.append(each[7:])
            elif each.startswith("data: ") and words[-1] == "output":
                output += base64.b64decode(json.loads(each[6:])["data"])
    await disturbing
    assert output == b"".join(b"%d\n" % n for n in range(400))
    assert words[-1] == "exit"
    pauses = [word for word in words if word in ("paused", "resumed")]
    assert pauses == ["paused", "resumed"] * 3
    assert "gap" not in words


async def test_events_are_replayed_from_where_one_was(client: httpx.AsyncClient, one: str) -> None:
    await pause(client, one)
    seen = await events(client, one)
    await client.post(f"{SESSIONS}{one}/resume")
    types = []
    headers = {"last-event-id": seen[-1]["event_id"]}
    async with client.stream("GET", f"{SESSIONS}{one}/events", headers=headers) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                types.append(line[7:])
            if "session.resumed" in types:
                break
    assert types == ["stream.state", "session.resumed"]


async def test_fifty_who_pause_resume_and_run_at_once_are_all_answered(
    client: httpx.AsyncClient, one: str
) -> None:
    async def all_three() -> str:
        for what in ("pause", "resume"):
            answer = await client.post(f"{SESSIONS}{one}/{what}")
            assert answer.status_code == 204, answer.text
        return await run(client, one, "echo", "ok")

    assert await asyncio.gather(*(all_three() for _ in range(50))) == ["ok\n"] * 50


@pytest.mark.filterwarnings("ignore")
async def test_the_official_client_of_digitalocean_works(server: Server) -> None:
    show = HeadersPolicy({"Authorization": f"Bearer {server.token}"})
    api = Client(server.token, agents_endpoint=server.url, authentication_policy=show).agents

    def use() -> None:
        made = api.sessions.create_from_manifest("size: mars-2vcpu-1gb\nenv: {A: b}\n")["session"]
        session = made["session_id"]
        with contextlib.ExitStack() as stack:
            stack.callback(api.sessions.destroy, session)
            ran = api.sessions.exec_in_sandbox(session, argv=["sh", "-c", "echo $A"])
            assert (ran["exit_code"], ran["stdout"]) == (0, "b\n")
            checkpoint = api.sessions.create_checkpoint(session, label="x")["checkpoint"]
            api.sessions.exec_in_sandbox(session, argv=["touch", "/srv/later"])
            api.sessions.rollback_to_checkpoint(session, checkpoint["checkpoint_id"])
            ran = api.sessions.exec_in_sandbox(session, argv=["ls", "/srv"])
            assert "later" not in ran["stdout"]
            (child,) = api.sessions.fork(session)["sessions"]
            stack.callback(api.sessions.destroy, child["session_id"])
            ran = api.sessions.exec_in_sandbox(child["session_id"], argv=["true"])
            assert ran["exit_code"] == 0
            api.sessions.pause(session)
            assert api.sessions.get(session)["session"]["status"] == "SESSION_STATUS_PAUSED"
            with api.sessions.stream(session, replay_only=True) as stream:
                assert "session.rolled_back" in [event["type"] for event in stream]

    await asyncio.to_thread(use)


async def test_the_token_of_the_first_start_is_its_owners_alone(server: Server) -> None:
    assert (server.home / "admin-token").stat().st_mode & 0o777 == 0o600
    async with server.client() as client:
        who = (await client.get("/v2/agents/whoami")).json()
    assert (who["name"], who["role"]) == ("first", "admin")
