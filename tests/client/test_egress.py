"""Egress through both clients: what they send, and how decisions are followed over outages."""

import asyncio

import pytest
from starlette.responses import JSONResponse

from tests.cli.test_egress_commands import ONE, decision, egress, flow
from tests.client.double import Double, frame, refusal, session, stream
from torpor.client import AsyncClient, Client, InvalidError


def decided(number: int) -> bytes:
    said = decision(number)
    return frame("egress.decision", said, said["decision_id"])


END = frame("stream.end", {"data": {"reason": "destroyed"}})


def test_policies_are_sent_as_they_are_written(double: Double) -> None:
    double.on("PATCH", "sessions/one/egress", JSONResponse(egress(ONE, "list", connections_cut=3)))
    double.on("POST", "sessions", JSONResponse({"session": session(egress=ONE)}))
    with Client(double.url, "t") as client:
        changed = client.set_egress("one", ["a.test"])
        assert (changed.policy, changed.mode, changed.cut) == (ONE, "list", 3)
        client.set_egress("one", "none")
        client.change_egress("one", add=[{"host": "b.test", "inspect": True}], remove=["a.test"])
        assert client.create_session("one", egress=("a.test",)).egress == ONE
    assert [asked.said for asked in double.asked] == [
        {"policy": ["a.test"]},
        {"policy": "none"},
        {"add": [{"host": "b.test", "inspect": True}], "remove": ["a.test"]},
        {"name": "one", "egress": ["a.test"]},
    ]


def test_an_older_server_says_nothing_of_egress(double: Double) -> None:
    double.on("GET", "sessions/one", JSONResponse({"session": session()}))
    with Client(double.url, "t") as client:
        assert client.get_session("one").egress == "unrestricted"


def test_lists_are_read_with_what_chooses(double: Double) -> None:
    answer = {"decisions": [decision(2), decision(1)], "next_page_token": "x"}
    double.on("GET", "sessions/one/egress/decisions", JSONResponse(answer))
    flows = {"flows": [flow()], "session_id": "x", "denied": 0}
    double.on("GET", "sessions/one/flows", JSONResponse(flows))
    with Client(double.url, "t") as client:
        page = client.list_decisions("one", allowed=False, host="a.test", limit=2, after="y")
        assert (len(page.items), page.next) == (2, "x")
        assert client.list_flows("one")[0].sent_bytes == 2048
    assert dict(double.asked[0].query) == {
        "allowed": "false", "host": "a.test", "page_size": "2", "page_token": "y",
    }  # fmt: skip


def test_decisions_are_followed_over_a_lost_connection_with_none_left_out(double: Double) -> None:
    double.on(
        "GET", "sessions/one/egress/decisions/stream",
        stream(decided(1), decided(2)), stream(decided(2), decided(3), END),
    )  # fmt: skip
    with Client(double.url, "t") as client:
        found = [each.id for each in client.decisions("one", allowed=True)]
    assert found == [decision(number)["decision_id"] for number in (1, 2, 3)]
    queries = [dict(asked.query) for asked in double.asked]
    assert queries == [{"allowed": "true"}, {"allowed": "true", "cursor": found[1]}]


def test_coroutines_follow_them_too(double: Double) -> None:
    double.on("GET", "sessions/one/egress/decisions/stream", stream(decided(1), END))

    async def follow() -> list[str]:
        async with AsyncClient(double.url, "t") as client:
            return [each.host async for each in client.decisions("one", host="a.test")]

    assert asyncio.run(follow()) == ["a.test"]


def test_what_is_refused_is_an_error_of_its_kind(double: Double) -> None:
    double.on("PATCH", "sessions/one/egress", refusal(400, "bad_request", "it has a path"))
    with Client(double.url, "t") as client, pytest.raises(InvalidError, match="path"):
        client.set_egress("one", ["a.test/x"])
