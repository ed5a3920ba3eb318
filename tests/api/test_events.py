"""Events over HTTP."""

import asyncio

import httpx
import pytest

from tests.api.conftest import BASE, Api, served
from tests.api.reading import all_frames, frames
from tests.waiting import eventually
from torpor.api import streaming
from torpor.sessions.model import SYSTEM


async def add(api: Api, count: int, session: str | None = None) -> list[str]:
    """Add events, and return their ids."""
    return [
        (await api.sessions.events.add("note", session, SYSTEM, number=number)).id
        for number in range(count)
    ]


async def test_a_replay_has_all_that_there_is_and_ends(api: Api, client: httpx.AsyncClient) -> None:
    session = await api.ready(name="one")
    ids = await add(api, 3, session)
    found = await all_frames(
        await client.get("/sessions/one/events", params={"replay_only": "true"})
    )
    assert (found[0].event, found[0].id) == ("stream.state", None)
    assert found[0].data["data"]["status"] == "SESSION_STATUS_READY"
    assert found[0].data["data"]["mode"] == "replay"
    assert [each.event for each in found[1:3]] == ["session.created", "session.progress"]
    assert [each.id for each in found[-3:]] == ids
    last = found[-1].data
    assert (last["event_id"], last["type"], last["session_id"]) == (ids[-1], "note", session)
    assert (last["data"], last["actor"]) == ({"number": 2}, "system")
    assert last["created_at"].endswith("Z")


async def test_a_replay_goes_on_after_an_event(api: Api, client: httpx.AsyncClient) -> None:
    ids = await add(api, 10)

    async def got(**params: str) -> list[str | None]:
        answer = await client.get("/events", params={"replay_only": "true", **params})
        return [each.id for each in await all_frames(answer) if each.id]

    assert await got(replay_from=ids[6]) == ids[7:]
    assert await got(replay_from=ids[6].lower()) == ids[7:]
    assert await got(replay_from=ids[9]) == []
    first = (await api.events())[0].id  # the server's own, of its start
    assert await got(limit="4") == [first, *ids[:3]]


async def test_history_is_paged_backwards(api: Api, client: httpx.AsyncClient) -> None:
    ids = await add(api, 10)
    params = {"before": ids[7], "limit": "5"}
    found = await all_frames(await client.get("/events", params=params))
    assert [each.id for each in found if each.id] == ids[2:7]
    assert found[-1].data == "has_more=true"
    found = await all_frames(await client.get("/events", params={"before": ids[2]}))
    assert [each.id for each in found if each.id][1:] == ids[:2]
    assert found[-1].data == "has_more=false"


@pytest.mark.parametrize(
    "query",
    [
        "cursor=nonsense",
        "limit=5",
        "replay_only=true&limit=0",
        "replay_from=01JT9Q0M7V3WZ2K4N8XG5B6C1D",
        "before=01JT9Q0M7V3WZ2K4N8XG5B6C1D&cursor=01JT9Q0M7V3WZ2K4N8XG5B6C1D",
        "since=yesterday",
    ],
)
async def test_what_cannot_be_meant_is_refused(query: str, client: httpx.AsyncClient) -> None:
    answer = await client.get(f"/events?{query}")
    assert answer.status_code == 400, query


async def test_a_live_stream_begins_with_what_was_and_goes_on_with_what_happens(api: Api) -> None:
    session = await api.ready(name="one")
    async with served(api) as address, api_client(api, address) as client:
        async with client.stream("GET", "/sessions/one/events") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            reading = frames(answer)
            before = [await anext(reading) for _ in range(4)]
            assert [each.event for each in before] == [
                "stream.state", "session.created", "session.progress", "session.ready",
            ]  # fmt: skip
            (mine,) = await add(api, 1, session)
            await add(api, 1)
            (other,) = await add(api, 1, session)
            assert [(await anext(reading)).id for _ in range(2)] == [mine, other]
        headers = {"last-event-id": mine}
        async with client.stream("GET", "/sessions/one/events", headers=headers) as answer:
            reading = frames(answer)
            assert [(await anext(reading)).id for _ in range(2)] == [None, other]
        params = {"cursor": other}
        async with client.stream(
            "GET", "/sessions/one/stream", headers=headers, params=params
        ) as answer:
            reading = frames(answer)
            await anext(reading)
            (newest,) = await add(api, 1, session)
            assert (await anext(reading)).id == newest


async def test_a_stream_of_a_session_ends_when_it_is_destroyed(api: Api) -> None:
    session = await api.ready(name="one")
    async with served(api) as address, api_client(api, address) as client:
        async with client.stream("GET", f"/sessions/{session}/events") as answer:
            reading = asyncio.create_task(all_frames(answer))
            await asyncio.sleep(0.1)
            await client.delete("/sessions/one")
            found = await asyncio.wait_for(reading, 5)
        assert found[-1].event == "session.destroyed"
        again = await all_frames(await client.get(f"/sessions/{session}/events"))
        assert again[-1].event == "session.destroyed"


async def test_who_goes_is_noticed_and_who_waits_hears_that_we_are_there(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "KEEPALIVE_SECONDS", 0.05)

    async def followers() -> int:
        return len(api.sessions.events._followers)

    async with served(api) as address, api_client(api, address) as client:
        async with client.stream("GET", "/events") as answer:
            reading = frames(answer)
            said: list[str] = []
            # On a slow host there may be comments between the first frames, too.
            while "server.reconciled" not in said or said[-2:] != ["keepalive", "keepalive"]:
                found = await anext(reading)
                said.append(found.event or found.data)
            told = [each for each in said if each != "keepalive"]
            assert told == ["stream.state", "server.reconciled"]
            assert await followers() == 1
        await eventually(followers, lambda count: count == 0)


async def test_streams_end_in_good_order_when_the_server_stops(api: Api) -> None:
    async with (
        served(api) as address,
        api_client(api, address) as client,
        client.stream("GET", "/events") as answer,
    ):
        reading = asyncio.create_task(all_frames(answer))
        await asyncio.sleep(0.1)
        api.app.state.parts.closing.set()
        await asyncio.wait_for(reading, 5)


async def test_a_reader_that_stands_still_holds_no_memory(api: Api) -> None:
    blob = "x" * 60_000
    for _ in range(200):
        await api.sessions.events.add("note", None, SYSTEM, blob=blob)
    sent = 0

    async def receive() -> dict[str, object]:
        await asyncio.sleep(3600)
        return {}

    async def send(message: dict[str, object]) -> None:
        nonlocal sent
        sent += 1
        if sent > 5:
            await asyncio.sleep(3600)  # as a socket whose peer reads nothing

    token = api.tokens["viewer"].encode()
    scope = {
        "type": "http", "method": "GET", "path": f"{BASE}/events", "query_string": b"",
        "headers": [(b"authorization", b"Bearer " + token)], "client": None, "root_path": "",
    }  # fmt: skip
    serving = asyncio.ensure_future(api.app(scope, receive, send))

    async def taken() -> int:
        return sent

    assert await eventually(taken, lambda count: count > 5) == 6
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    assert not api.sessions.events._followers


def api_client(api: Api, address: str, role: str = "operator") -> httpx.AsyncClient:
    """Return a client that speaks over a socket."""
    headers = {"authorization": f"Bearer {api.tokens[role]}"}  # type: ignore[index]
    return httpx.AsyncClient(base_url=f"http://{address}{BASE}", headers=headers, timeout=10)


async def test_what_commands_are_told_is_for_those_who_may_use_sessions(api: Api) -> None:
    argv = ["mysql", "-phush"]
    await api.sessions.events.add("exec.started", None, SYSTEM, exec_id="x", argv=argv)
    params: list[dict[str, str]] = [{"replay_only": "true"}, {"before": "7" + "Z" * 25}]
    for role, shown in (("viewer", False), ("approver", False), ("operator", True)):
        async with api.client(role) as client:  # type: ignore[arg-type]
            for each in params:
                answer = await client.get("/events", params=each)
                assert "exec.started" in answer.text
                assert ("hush" in answer.text) is shown


async def test_what_a_machine_said_and_is_no_text_can_be_read_all_the_same(
    api: Api, client: httpx.AsyncClient
) -> None:
    await api.sessions.events.add("operation.failed", None, SYSTEM, error="hook: \udcff")
    (last,) = await add(api, 1)
    found = await all_frames(await client.get("/events", params={"replay_only": "true"}))
    assert found[-2].data["data"] == {"error": "hook: \udcff"}
    assert found[-1].id == last
