"""Egress over HTTP: said, changed, listed, followed; and where data went."""

import asyncio
import contextlib
import json
from typing import Any

import httpx
import pytest

from tests.api.conftest import Api, served
from tests.sessions.decided import allowed, denied, ended, later
from torpor.store.records import Session

YAML = {"content-type": "application/yaml"}
ONE = {"allow": [{"host": "a.test"}]}


async def record(api: Api, session: str) -> Session:
    return await api.sessions.get(session)


async def decide(api: Api, session: str, *decisions: Any) -> None:
    """Have the wall of a session decide something, and wait until it is written."""
    machine = (await record(api, session)).machine or ""
    for decision in decisions:
        api.host.decide(machine, decision)
    await api.sessions.egress_log.flush()


@pytest.mark.parametrize(
    ("said", "shown", "mode"),
    [
        ({}, "unrestricted", "open"),
        ({"egress": "unrestricted"}, "unrestricted", "open"),
        ({"egress": {"unrestricted": True}}, "unrestricted", "open"),
        ({"egress": "none"}, "none", "none"),
        ({"egress": ["A.test"]}, ONE, "list"),
        ({"egress": {"allow": [{"host": "a.test"}]}}, ONE, "list"),
    ],
)
async def test_a_session_shows_what_it_may_reach(
    api: Api, client: httpx.AsyncClient, said: dict[str, Any], shown: Any, mode: str
) -> None:
    session = await api.ready(**said)
    body = (await client.get(f"/sessions/{session}")).json()["session"]
    assert body["egress"] == shown
    listed = (await client.get("/sessions")).json()["sessions"]
    assert listed[0]["egress"] == shown
    egress = (await client.get(f"/sessions/{session}/egress")).json()["egress"]
    assert egress == {"session_id": session, "policy": shown, "mode": mode, "notes": []}
    again = await client.post("/sessions", json={"name": "again", "egress": egress["policy"]})
    assert again.json()["session"]["egress"] == shown


async def test_yaml_and_the_older_format_say_it_too(api: Api, client: httpx.AsyncClient) -> None:
    older = (
        "apiVersion: agents.digitalocean.com/v1alpha1\nkind: Agent\nspec:\n"
        "  runtime: {adapter: none}\n"
    )
    for text in (
        "egress: {allow: [a.test]}\n",
        "egress:\n- a.test\n",
        older + "  sandbox: {egress: {allow: [{host: a.test}]}}\n",
        older + "  x-torpor: {egress: [a.test]}\n",
    ):
        answer = await client.post("/sessions", content=text, headers=YAML)
        assert answer.status_code == 200, answer.text
        assert answer.json()["session"]["egress"] == ONE
    config = await client.post("/configs", json={"name": "web", "manifest_yaml": "egress: none\n"})
    assert config.json()["config"]["manifest"]["spec"]["x-torpor"] == {"egress": "none"}
    made = await client.post("/sessions", json={"name": "w", "config_id": "web"})
    assert made.json()["session"]["egress"] == "none"


@pytest.mark.parametrize(
    ("egress", "said"),
    [
        (None, "it is empty"),
        ([], "the list is empty"),
        ({}, "it says nothing"),
        (["a.test/x"], ": egress.allow[0]: 'a.test/x'"),
        ({"allowed": ["a.test"]}, "there is no such key"),
        ("open", "neither none nor unrestricted"),
        ({"unrestricted": True, "allow": ["a.test"]}, "adds nothing"),
    ],
)
async def test_what_would_not_be_honoured_is_refused_when_it_is_written(
    api: Api, client: httpx.AsyncClient, egress: Any, said: str
) -> None:
    session = await api.ready(egress="none")
    for answer in (
        await client.post("/sessions", json={"egress": egress}),
        await client.patch(f"/sessions/{session}", json={"egress": egress}),
        await client.patch(f"/sessions/{session}/egress", json={"policy": egress}),
    ):
        assert answer.status_code == 400, answer.text
        assert said in answer.json()["message"]
    assert (await record(api, session)).egress == "none"
    answer = await client.post("/sessions", content="egress:\n", headers=YAML)
    assert "line 1" in answer.json()["message"]


async def test_what_may_not_be_meant_is_a_warning(api: Api, client: httpx.AsyncClient) -> None:
    made = (await client.post("/sessions", json={"egress": ["*.github.io"]})).json()["session"]
    assert "anyone can have a name" in made["warnings"][0]
    session = made["session_id"]
    changed = await client.patch(f"/sessions/{session}", json={"egress": ["*.co.uk"]})
    assert "*.co.uk" in changed.json()["session"]["warnings"][0]
    notes = (await client.get(f"/sessions/{session}/egress")).json()["egress"]["notes"]
    assert "*.co.uk" in notes[0]


async def test_a_policy_is_changed_in_three_ways(api: Api, client: httpx.AsyncClient) -> None:
    session = await api.ready()
    where = f"/sessions/{session}/egress"
    answer = await client.patch(f"/sessions/{session}", json={"egress": ["a.test"]})
    assert answer.json()["session"]["egress"] == ONE
    answer = await client.patch(where, json={"add": ["b.test", {"host": "c.test", "inspect": True}],
                                             "remove": ["a.test"]})  # fmt: skip
    egress = answer.json()["egress"]
    assert egress["policy"] == {"allow": [{"host": "b.test"}, {"host": "c.test", "inspect": True}]}
    assert egress["connections_cut"] == 1
    answer = await client.patch(where, json={"policy": "unrestricted"})
    assert answer.json()["egress"]["mode"] == "open"
    machine = (await record(api, session)).machine or ""
    assert api.host.walls[machine].egress is None
    for wrong in (
        {},
        {"policy": "none", "add": ["a.test"]},
        {"add": []},
        {"remove": [7]},
        {"x": 1},
    ):
        assert (await client.patch(where, json=wrong)).status_code == 400, wrong
    answer = await client.patch(where, json={"add": ["a.test"]})
    assert answer.status_code == 400
    assert "adds nothing" in answer.json()["message"]


async def test_only_who_may_use_sessions_may_change_what_they_reach(api: Api) -> None:
    session = await api.ready()
    for role in ("viewer", "approver"):
        async with api.client(role) as client:  # type: ignore[arg-type]
            answer = await client.patch(f"/sessions/{session}/egress", json={"policy": "none"})
            assert answer.status_code == 403
            for path in ("egress", "egress/decisions", "flows"):
                assert (await client.get(f"/sessions/{session}/{path}")).status_code == 200


async def test_a_host_without_a_wall_refuses_and_says_why(
    api: Api, client: httpx.AsyncClient
) -> None:
    api.host.no_wall = "nftables is missing"
    answer = await client.post("/sessions", json={"egress": ["a.test"]})
    assert (answer.status_code, answer.json()["id"]) == (409, "no_wall")
    assert "nftables is missing" in answer.json()["message"]
    made = (await client.post("/sessions?wait=ready", json={})).json()["session"]
    assert "has no network: nftables is missing" in made["warnings"][0]
    events = await api.events(made["session_id"])
    (told,) = [each.data for each in events if each.type == "egress.no_network"]
    assert told == {"reason": "nftables is missing"}
    answer = await client.patch(f"/sessions/{made['session_id']}/egress", json={"policy": "none"})
    assert answer.status_code == 409


async def test_decisions_are_listed_the_newest_first_a_page_at_a_time(
    api: Api, client: httpx.AsyncClient
) -> None:
    session = await api.ready()
    hosts = [f"h{number}.test" for number in range(5)]
    await decide(api, session, *(denied(host, at=later(n)) for n, host in enumerate(hosts)))
    await decide(api, session, ended(at=later(9), secrets=("key",)))
    where = f"/sessions/{session}/egress/decisions"
    found, token = [], ""
    while True:
        page = (await client.get(where, params={"page_size": 2, "page_token": token})).json()
        found += page["decisions"]
        token = page["next_page_token"]
        if not token:
            break
        if len(found) == 2:  # what comes meanwhile shifts nothing
            await decide(api, session, denied("late.test", at=later(20)))
    assert [each["host"] for each in found] == ["a.test", *hosts[::-1]]
    newest, last = found[0], found[-1]
    assert (newest["allowed"], newest["ended"], newest["secrets"]) == (True, True, ["key"])
    assert (newest["sent_bytes"], newest["received_bytes"], newest["seconds"]) == (10, 20, 1.0)
    assert (last["add"], last["allowed"], last["why"]) == (
        "h0.test:443", False, "no rule allows h0.test",
    )  # fmt: skip
    for query, wanted in (
        ({"allowed": "true"}, ["a.test"]),
        ({"host": "H3.test"}, ["h3.test"]),
        ({"allowed": "false", "since": "2026-03-01T12:00:04Z"}, ["late.test", "h4.test"]),
        ({"until": "2026-03-01T12:00:01Z"}, ["h0.test"]),
    ):
        page = (await client.get(where, params=query)).json()
        assert [each["host"] for each in page["decisions"]] == wanted, query
    for wrong in ({"page_token": "x"}, {"allowed": "maybe"}, {"since": "2026-03-01"},
                  {"page_size": 0}, {"cursor": "x"}):  # fmt: skip
        assert (await client.get(where, params=wrong)).status_code == 400, wrong


class Stream:
    """Who follows the decisions of a session."""

    def __init__(self, lines: Any) -> None:
        self._lines = lines

    async def next(self) -> tuple[str, dict[str, Any]]:
        """Return the type and the data of the next frame."""
        kind = ""
        async for line in self._lines:
            name, _, value = line.partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                return kind, json.loads(value)
        return "end", {}


@contextlib.asynccontextmanager
async def following(api: Api, url: str, session: str, **params: Any) -> Any:
    headers = {"authorization": f"Bearer {api.tokens['viewer']}"}
    where = f"http://{url}/v2/agents/sessions/{session}/egress/decisions/stream"
    async with (
        httpx.AsyncClient(timeout=20) as client,
        client.stream("GET", where, headers=headers, params=params) as answer,
    ):
        assert answer.status_code == 200
        yield Stream(answer.aiter_lines())


async def test_a_denial_is_followed_within_a_second_with_what_would_allow_it(api: Api) -> None:
    session = await api.ready()
    machine = (await record(api, session)).machine or ""
    async with served(api) as url, following(api, url, session, allowed="false") as stream:
        assert (await stream.next())[0] == "stream.state"
        for number in range(3):
            api.host.decide(machine, allowed(at=later(number)))
            api.host.decide(machine, denied(at=later(number)))
            async with asyncio.timeout(1):
                kind, data = await stream.next()
            assert kind == "egress.decision"
            assert (data["host"], data["add"]) == ("evil.test", "evil.test:443")
        async with api.client() as client:
            await client.delete(f"/sessions/{session}")
        assert (await stream.next())[0] == "stream.end"
        assert (await stream.next())[0] == "end"


async def test_a_stream_goes_on_where_it_was_and_a_replay_ends(api: Api) -> None:
    session = await api.ready()
    for number in range(3):
        await decide(api, session, denied(f"h{number}.test", at=later(number)))
    async with served(api) as url:
        async with following(api, url, session, replay_only="true") as stream:
            frames = [await stream.next() for _ in range(5)]
        assert [kind for kind, _ in frames] == ["stream.state", *["egress.decision"] * 3, "end"]
        second = frames[2][1]["decision_id"]
        async with following(api, url, session, cursor=second) as stream:
            await stream.next()
            assert (await stream.next())[1]["host"] == "h2.test"
        async with following(api, url, session) as stream:
            await stream.next()
            recent = [(await stream.next())[1]["host"] for _ in range(3)]
        assert recent == ["h0.test", "h1.test", "h2.test"]
    async with api.client() as client:
        answer = await client.get(f"/sessions/{session}/egress/decisions/stream?cursor=x")
        assert answer.status_code == 400


async def test_flows_say_where_data_went_also_of_a_session_that_is_gone(
    api: Api, client: httpx.AsyncClient
) -> None:
    session = await api.ready(name="one")
    machine = (await record(api, session)).machine or ""
    api.host.reach(machine, "small.test", 1, 5, connections=2)
    api.host.reach(machine, "large.test", 1000, 1)
    await decide(api, session, denied(), denied(), ended("large.test", inspected=True))
    answer = (await client.get("/sessions/one/flows")).json()
    assert [(each["name"], each["sent_bytes"]) for each in answer["flows"]] == [
        ("large.test", 1000), ("small.test", 1),
    ]  # fmt: skip
    large, small = answer["flows"]
    assert (large["kind"], large["inspected"], large["connections"]) == ("host", True, 1)
    assert (small["received_bytes"], small["connections"]) == (5, 2)
    assert answer["denied"] == 2
    everything = (await client.get("/sessions/one/flows", params={"all": "true"})).json()["flows"]
    assert {each["name"]: each["denied"] for each in everything}["evil.test"] == 2
    api.host.reach(machine, "small.test", 4, 0)
    await client.delete("/sessions/one")
    gone = (await client.get(f"/sessions/{session}/flows")).json()["flows"]
    assert {each["name"]: each["sent_bytes"] for each in gone} == {
        "large.test": 1000, "small.test": 5,
    }  # fmt: skip


async def test_a_rollback_says_in_events_which_hosts_it_does_not_undo(
    api: Api, client: httpx.AsyncClient
) -> None:
    session = await api.ready()
    made = await client.post(f"/sessions/{session}/checkpoints", json={})
    checkpoint = made.json()["checkpoint"]["checkpoint_id"]
    await decide(api, session, allowed())
    answer = await client.post(f"/sessions/{session}/checkpoints/{checkpoint}/rollback")
    (lasting,) = answer.json()["not_undone"]
    (event,) = [each for each in await api.events(session) if each.id == lasting]
    assert (event.type, event.data) == ("egress.connected", {"hosts": ["a.test"]})
