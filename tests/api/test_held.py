"""Sessions whose machine is held by a full disk. The machines are agents on this host."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from tests.api.conftest import Api, served
from tests.api.test_events import api_client
from tests.api.test_execs import HEAD, following, start
from tests.api.test_ports import forward, read, shout
from tests.guest.conftest import server
from tests.waiting import eventually

HERE = {"path": "/tmp/held"}
ASKED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "read": ("GET", "files/content", {"params": {"path": "/etc/passwd"}}),
    "write": ("PUT", "files/content", {"params": HERE, "content": b"x"}),
    "replace": ("PUT", "files/content", {"params": {**HERE, "atomic": True}, "content": b"x"}),
    "status": ("GET", "files/status", {"params": HERE}),
    "list": ("GET", "files/list", {"params": HERE}),
    "watch": ("GET", "files/watch", {"params": HERE}),
    "remove": ("DELETE", "files", {"params": HERE}),
    "remove a tree": ("DELETE", "files", {"params": {**HERE, "recursive": True}}),
    "move": ("POST", "files/move", {"json": {"from": "/tmp/held", "to": "/tmp/held2"}}),
    "directory": ("POST", "files/directory", {"json": HERE}),
    "link": ("POST", "files/link", {"json": {**HERE, "target": "x"}}),
    "change": ("PATCH", "files", {"json": {**HERE, "mode": "600"}}),
    "pack": ("GET", "files/archive", {"params": HERE}),
    "unpack": ("PUT", "files/archive", {"params": HERE, "content": bytes(1024)}),
    "run": ("POST", "sandbox/exec", {"json": {"argv": ["true"]}}),
    "start": ("POST", "execs", {"json": {"argv": ["true"]}}),
    "commands": ("GET", "execs", {}),
    "command": ("GET", "execs/{exec_id}", {}),
    "output so far": ("GET", "execs/{exec_id}/output", {"params": {"follow": False}}),
    "input": ("POST", "execs/{exec_id}/input", {"content": b"x"}),
    "signal": ("POST", "execs/{exec_id}/signal", {}),
    "resize": ("POST", "execs/{exec_id}/resize", {"json": {"rows": 5, "columns": 5}}),
    "processes": ("GET", "processes", {}),
    "signal a process": ("POST", "processes/{pid}/signal", {}),
}
"""All that a machine is asked for over HTTP."""


@pytest.fixture
async def one(api: Api, client: httpx.AsyncClient) -> str:
    """A session called `one`, whose agent has been spoken with."""
    session = await api.ready(name="one")
    assert (await client.get(f"/sessions/{session}/execs")).status_code == 200
    return session


def machine(api: Api) -> str:
    (found,) = api.host.machines()
    return found


async def ask(client: httpx.AsyncClient, name: str, exec_id: str) -> httpx.Response:
    method, path, body = ASKED[name]
    path = path.format(exec_id=exec_id, pid=1)
    return await client.request(method, f"/sessions/one/{path}", **body)


async def refused(asking: Any) -> None:
    async with asyncio.timeout(20):
        answer: httpx.Response = await asking
    assert (answer.status_code, answer.json()["id"]) == (507, "no_space"), answer.text
    assert "disk is full" in answer.json()["message"]
    assert "space" in answer.json()["state"]


def test_all_that_a_machine_is_asked_for_is_looked_at(api: Api) -> None:
    uses = ("/files", "/execs", "/processes", "/sandbox/exec")
    there = set()
    for path, ways in api.app.openapi()["paths"].items():
        rest = path.partition("/sessions/{session_id}")[2]
        if rest.startswith(uses):
            there |= {(way.upper(), rest[1:]) for way in ways}
    assert {(method, path) for method, path, _ in ASKED.values()} == there


@pytest.mark.parametrize("name", ASKED)
async def test_what_is_asked_of_a_held_machine_is_answered_at_once(
    api: Api, one: str, client: httpx.AsyncClient, name: str
) -> None:
    exec_id = await start(client, "sleep 60", stdin=True)
    api.host.hold(machine(api))
    await refused(ask(client, name, exec_id))
    api.host.release(machine(api))
    assert (await client.get("/sessions/one/execs")).status_code == 200


@pytest.mark.parametrize("name", sorted(set(ASKED) - {"run", "start", "input"}))
async def test_what_is_under_way_when_a_machine_is_held_is_answered_at_once(
    api: Api, one: str, client: httpx.AsyncClient, name: str
) -> None:
    exec_id = await start(client, "sleep 60", stdin=True)
    agent = await api.host.agent(machine(api))
    api.host.stop(machine(api))
    asking = asyncio.ensure_future(ask(client, name, exec_id))

    async def awaited() -> bool:
        return bool(agent.channel._replies)

    await eventually(awaited, bool)
    api.host.hold(machine(api))
    await refused(asking)
    api.host.release(machine(api))


async def test_a_command_that_runs_is_waited_for(
    api: Api, one: str, client: httpx.AsyncClient
) -> None:
    body = {"shell": "sleep 0.5; echo done"}
    running = asyncio.ensure_future(client.post("/sessions/one/sandbox/exec", json=body))

    async def commands() -> list[Any]:
        found: list[Any] = (await client.get("/sessions/one/execs")).json()["execs"]
        return found

    await eventually(commands, bool)
    api.host.hold(machine(api))
    await asyncio.sleep(1)
    assert not running.done()
    api.host.release(machine(api))
    assert (await running).json()["stdout"] == "done\n"


@pytest.mark.parametrize("lost", [False, True])
async def test_who_follows_a_command_waits_and_so_does_what_is_written(
    api: Api, one: str, lost: bool
) -> None:
    async with served(api) as address, api_client(api, address) as client:
        exec_id = await start(client, "cat", terminal={"rows": 5, "columns": 50})
        async with following(api, address, exec_id) as socket:
            await socket.send(b"one\n")
            said = b""
            while said.count(b"one") < 2:
                said += await piece(socket)
            api.host.hold(machine(api))
            if lost:  # as by a new program
                api.host.lose_channel(machine(api))
            await socket.send(json.dumps({"type": "resize", "rows": 30, "columns": 40}))
            await socket.send(b"two\n")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await socket.recv()
            api.host.release(machine(api))
            while said.count(b"two") < 2:
                said += await piece(socket)


async def piece(socket: Any) -> bytes:
    message = await asyncio.wait_for(socket.recv(), 20)
    return message[HEAD.size :] if isinstance(message, bytes) else b""


@pytest.mark.parametrize("lost", [False, True])
async def test_a_connection_waits_and_a_new_one_is_refused(api: Api, one: str, lost: bool) -> None:
    async with (
        server(shout) as port,
        served(api) as address,
        forward(api, address, port) as socket,
    ):
        await socket.send(b"one")
        assert await read(socket, 3) == b"ONE"
        api.host.hold(machine(api))
        if lost:
            api.host.lose_channel(machine(api))
        await socket.send(b"two")
        with pytest.raises(InvalidStatus) as caught:
            await forward(api, address, port)
        assert caught.value.response.status_code == 507
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await socket.recv()
        api.host.release(machine(api))
        assert await read(socket, 3) == b"TWO"
