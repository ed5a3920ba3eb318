"""What a token has under way ends with it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIWebSocketRoute
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.api.conftest import BASE, Api, served
from tests.api.reading import all_frames, frames
from tests.api.test_execs import in_use
from tests.guest.conftest import server
from tests.waiting import eventually
from torpor.api import answering
from torpor.api.bearers import TokenEndedError
from torpor.api.gate import Gate
from torpor.api.streaming import EVENT_STREAM
from torpor.sessions.model import SYSTEM
from torpor.store.errors import DiskFullError
from torpor.store.records import Role

EVENTS = {
    f"{BASE}/events": "/events",
    f"{BASE}/sessions/{{session_id}}/events": "/sessions/one/events",
    f"{BASE}/sessions/{{session_id}}/stream": "/sessions/one/stream",
    f"{BASE}/sessions/{{session_id}}/execs/{{exec_id}}/output": "/sessions/one/execs/EXEC/output",
    f"{BASE}/sessions/{{session_id}}/files/watch": "/sessions/one/files/watch?path=PLACE",
}
SOCKETS = {
    f"{BASE}/sessions/{{session_id}}/execs/{{exec_id}}/stream": "/sessions/one/execs/EXEC/stream",
    f"{BASE}/sessions/{{session_id}}/port-forward/{{port}}": "/sessions/one/port-forward/PORT",
}


class Holder:
    """A token, and clients that show it."""

    def __init__(self, api: Api, address: str, token_id: str, bearer: str) -> None:
        self.api = api
        self.id = token_id
        self.headers = {"authorization": f"Bearer {bearer}"}
        self.address = address
        self.client = httpx.AsyncClient(
            base_url=f"http://{address}{BASE}", headers=self.headers, timeout=10
        )

    async def revoke(self) -> None:
        """Revoke the token."""
        await self.api.bearers.revoke(self.id)


@contextlib.asynccontextmanager
async def holder(api: Api, role: Role = "operator", **more: Any) -> AsyncIterator[Holder]:
    """Serve the application to the holder of a new token."""
    token, bearer = await api.bearers.make("x", role, **more)
    async with served(api) as address:
        made = Holder(api, address, token.id, bearer)
        async with made.client:
            yield made


@pytest.fixture
async def one(api: Api) -> str:
    """A session called `one`."""
    return await api.ready(name="one")


@pytest.fixture
async def exec_id(api: Api, one: str) -> str:
    """A command in it that writes now and then."""
    line = "while :; do echo y; sleep 0.05; done"
    return (await api.sessions.execs.start(one, SYSTEM, ["sh", "-c", line])).id


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Say something, and wait for the other end."""
    writer.write(b"hello")
    await writer.drain()
    await reader.read()
    writer.close()


async def running(api: Api, session: str) -> set[str]:
    """Return the commands that run."""
    known = await api.sessions.execs.list(session, SYSTEM)
    return {each.id for each in known if each.running}


async def to_the_end(socket: ClientConnection) -> tuple[dict[str, Any], int | None]:
    """Read until the other end closes; return the last text, and the code."""
    last: str | bytes = "{}"
    try:
        async with asyncio.timeout(10):
            while True:
                message = await socket.recv()
                last = message if isinstance(message, str) else last
    except ConnectionClosed:
        return json.loads(last), socket.close_code


def test_every_stream_there_is_is_tried_here(api: Api) -> None:
    streams = set()
    for route in api.app.routes:
        responses: dict[Any, Any] = getattr(route, "responses", {})
        of_events = EVENT_STREAM in responses.get(200, {}).get("content", {})
        if of_events or isinstance(route, APIWebSocketRoute):
            streams.add(route.path)  # type: ignore[attr-defined]
    assert streams == {*EVENTS, *SOCKETS}


@pytest.mark.parametrize("path", EVENTS.values())
async def test_a_stream_of_events_ends_with_its_token(
    api: Api, one: str, exec_id: str, tmp_path: Path, path: str
) -> None:
    path = path.replace("EXEC", exec_id).replace("PLACE", str(tmp_path))
    async with holder(api) as held, held.client.stream("GET", path) as answer:
        reading = frames(answer)
        await anext(reading)
        await held.revoke()
        async with asyncio.timeout(10):
            rest = [frame async for frame in reading]
        assert rest[-1].event == "error"
        said = rest[-1].data["error"]
        assert (said["id"], said["http_code"]) == ("unauthorized", 401)
        assert said["request_id"] == answer.headers["x-request-id"]
        await eventually(lambda: in_use(api, one), lambda uses: uses == 0)
        assert not api.sessions.events._followers
        assert await running(api, one) >= {exec_id}, "only the stream ends"


@pytest.mark.parametrize("path", SOCKETS.values())
async def test_a_websocket_ends_with_its_token(api: Api, one: str, exec_id: str, path: str) -> None:
    async with server(greet) as port, holder(api) as held:
        url = f"ws://{held.address}{BASE}{path.replace('EXEC', exec_id).replace('PORT', str(port))}"
        async with connect(url, additional_headers=held.headers) as socket:
            await socket.recv()
            await held.revoke()
            last, code = await to_the_end(socket)
            assert (last["id"], code) == ("unauthorized", 4401)
        await eventually(lambda: in_use(api, one), lambda uses: uses == 0)
        assert await running(api, one) >= {exec_id}, "only the stream ends"


async def test_input_that_is_not_taken_holds_up_no_end(api: Api, one: str) -> None:
    started = await api.sessions.execs.start(one, SYSTEM, ["sleep", "60"], stdin=True)
    async with holder(api) as held:
        url = f"ws://{held.address}{BASE}/sessions/one/execs/{started.id}/stream"
        async with connect(url, additional_headers=held.headers) as socket:
            for _ in range(20):
                await socket.send(b"x" * 100_000)
            await eventually(lambda: in_use(api, one), lambda uses: uses > 0)
            await held.revoke()
            assert (await to_the_end(socket))[1] == 4401
        await eventually(lambda: in_use(api, one), lambda uses: uses == 0)


async def test_a_download_breaks_off_with_its_token(api: Api, one: str, tmp_path: Path) -> None:
    with (tmp_path / "f").open("wb") as file:
        file.truncate(1 << 30)
    params = {"path": str(tmp_path / "f")}
    async with (
        holder(api) as held,
        held.client.stream("GET", "/sessions/one/files/content", params=params) as answer,
    ):
        pieces = answer.aiter_raw()
        await anext(pieces)
        await held.revoke()
        with pytest.raises(httpx.RemoteProtocolError):
            await asyncio.wait_for(drained(pieces), 20)
        await eventually(lambda: in_use(api, one), lambda uses: uses == 0)


async def drained(pieces: AsyncIterator[bytes]) -> None:
    """Read all there is."""
    async for _ in pieces:
        pass


async def test_an_upload_breaks_off_with_its_token(api: Api, one: str, tmp_path: Path) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 10_000
            await asyncio.sleep(0.01)

    params = {"path": str(tmp_path / "f")}
    async with holder(api) as held:
        uploading = asyncio.create_task(
            held.client.put("/sessions/one/files/content", params=params, content=endless())
        )
        await eventually(lambda: in_use(api, one), lambda uses: uses == 1)
        await held.revoke()
        try:
            answer = await asyncio.wait_for(uploading, 20)
        except httpx.TransportError:
            pass  # the connection was closed before the answer was read
        else:
            assert answer.status_code == 401
        await eventually(lambda: in_use(api, one), lambda uses: uses == 0)


async def test_who_waits_for_a_command_is_answered_and_the_command_runs_on(
    api: Api, one: str
) -> None:
    async with holder(api) as held:
        body = {"argv": ["sleep", "60"]}
        waiting = asyncio.create_task(held.client.post("/sessions/one/sandbox/exec", json=body))
        await eventually(lambda: api.events(one), lambda all_: all_[-1].type == "exec.started")
        await held.revoke()
        answer = await asyncio.wait_for(waiting, 10)
        assert (answer.status_code, answer.json()["id"]) == (401, "unauthorized")
        assert "goes on" in answer.json()["state"]
        await eventually(lambda: in_use(api, one), lambda uses: uses == 0)
        assert len(await running(api, one)) == 1
    last = (await api.events(one))[-1]
    assert (last.type, last.data["error"]) == ("request.refused", "unauthorized")


async def test_an_operation_that_was_begun_goes_to_its_end(api: Api, one: str) -> None:
    api.host.step = 0.2
    async with holder(api) as held:
        pausing = asyncio.create_task(held.client.post("/sessions/one/pause"))
        await eventually(lambda: doing(api, one), lambda what: what == "pause")
        await held.revoke()
        assert (await asyncio.wait_for(pausing, 10)).status_code == 401
    assert (await eventually(lambda: api.sessions.get(one), lambda s: s.machine is None)).snapshot


async def doing(api: Api, session: str) -> str | None:
    """Return what is under way on a session."""
    return api.sessions.doing(session)


@pytest.mark.parametrize("seconds", [-1, 0.05])
async def test_what_is_under_way_ends_when_its_token_expires(api: Api, seconds: float) -> None:
    expires = datetime.now(UTC) + timedelta(seconds=seconds)
    token, _ = await api.bearers.make("x", "viewer", expires)

    async def wait() -> None:
        async with api.bearers.while_valid(token.id):
            await asyncio.Event().wait()

    with pytest.raises(TokenEndedError):
        await asyncio.wait_for(wait(), 10)
    assert datetime.now(UTC) >= expires


async def test_time_limits_of_others_are_theirs(api: Api) -> None:
    token, _ = await api.bearers.make("x", "viewer")
    with pytest.raises(TimeoutError, match="mine"):
        async with api.bearers.while_valid(token.id):
            raise TimeoutError("mine")


async def test_other_tokens_keep_what_they_have(api: Api) -> None:
    async with (
        holder(api) as held,
        held.client.stream("GET", "/events") as answer,
    ):
        reading = frames(answer)
        await anext(reading)
        other, _ = await api.bearers.make("other", "admin")
        await api.bearers.revoke(other.id)
        event = await api.sessions.events.add("note", None, SYSTEM)
        async for frame in reading:
            if frame.id == event.id:
                break
    assert not api.bearers._under_way


async def test_who_revokes_the_own_token_is_told_that_it_is_done(api: Api) -> None:
    async with holder(api, "admin") as held, held.client.stream("GET", "/events") as answer:
        assert (await held.client.delete(f"/tokens/{held.id}")).status_code == 204
        async with asyncio.timeout(10):
            assert (await all_frames(answer))[-1].event == "error"
        assert (await held.client.get("/whoami")).status_code == 401


async def test_streams_end_though_the_revocation_cannot_be_written_down(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with holder(api) as held, held.client.stream("GET", "/events") as answer:
        reading = frames(answer)
        await anext(reading)

        def full() -> None:
            raise DiskFullError("The disk is full.")

        with monkeypatch.context() as patch:
            patch.setattr(api.database, "write", full)
            with pytest.raises(DiskFullError):
                await held.revoke()
        async with asyncio.timeout(10):
            rest = [frame async for frame in reading]
        assert rest[-1].event == "error"


async def test_who_reads_nothing_is_not_waited_for(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "LAST_WORDS_SECONDS", 0.05)
    token, bearer = await api.bearers.make("x", "viewer")
    sent: list[Any] = []
    full = asyncio.Event()

    async def receive() -> dict[str, object]:
        await asyncio.Event().wait()
        return {}

    async def send(message: Any) -> None:
        if len(sent) == 3:  # as a socket whose peer reads nothing
            full.set()
            await asyncio.Event().wait()
        sent.append(message)

    scope = {
        "type": "http", "method": "GET", "path": f"{BASE}/events", "query_string": b"",
        "headers": [(b"authorization", b"Bearer " + bearer.encode())],
        "client": None, "root_path": "",
    }  # fmt: skip
    for number in range(3):
        await api.sessions.events.add("note", None, SYSTEM, number=number)
    serving = asyncio.create_task(api.app(scope, receive, send))
    await asyncio.wait_for(full.wait(), 10)
    await api.bearers.revoke(token.id)
    await asyncio.wait_for(serving, 10)
    assert not api.sessions.events._followers


async def test_it_is_the_gate_that_ends_whatever_route_it_is(api: Api) -> None:
    begun = asyncio.Event()

    async def deaf(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await asyncio.Event().wait()

    stack: Any = api.app.build_middleware_stack()
    api.app.middleware_stack = stack
    while not isinstance(stack, Gate):
        stack = getattr(stack, "_app", None) or stack.app
    stack._app = deaf
    token, bearer = await api.bearers.make("x", "viewer")
    async with api.client(None, headers={"authorization": f"Bearer {bearer}"}) as client:
        asked = asyncio.create_task(client.get("/whoami"))
        await asyncio.wait_for(begun.wait(), 10)
        await api.bearers.revoke(token.id)
        assert (await asyncio.wait_for(asked, 10)).status_code == 401
