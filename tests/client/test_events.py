"""Events: taken apart however they arrive, followed over lost connections."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.double import Double, event_frame, event_id, frame, refusal, stream
from torpor.client import (
    AsyncClient,
    Client,
    NotFoundError,
    UnavailableError,
    UnreachableError,
)
from torpor.client.sse import Frame, Frames

STATE = frame("stream.state", {"data": {"status": "SESSION_STATUS_READY"}})
STREAM = (
    b': hello\n\nid: 1\nevent: a\ndata: {"x":\ndata: 1}\n\n'
    b"data:no space\r\n\r\nevent: b\rdata: \xc3\xa9\r\rid: 9\n\n"
)
FRAMES = [
    Frame("a", "1", '{"x":\n1}'),
    Frame("message", "", "no space"),
    Frame("b", "", "\u00e9"),
    Frame("message", "9", ""),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_frames_are_the_same_in_whatever_pieces_they_arrive(cuts: list[int]) -> None:
    frames = Frames()
    edges = [0, *sorted(cuts), len(STREAM)]
    found = [each for start, end in pairwise(edges) for each in frames.feed(STREAM[start:end])]
    assert found == FRAMES
    assert frames.comments == ["hello"]


def test_a_frame_that_is_not_complete_is_not_told() -> None:
    frames = Frames()
    assert list(frames.feed(b"event: a\ndata: 1\n")) == []
    assert list(frames.end()) == [Frame("a", "", "1")]


def test_events_go_on_after_the_last_one_when_the_connection_is_lost(
    double: Double, client: Client
) -> None:
    double.on(
        "GET",
        "sessions/b/events",
        stream(STATE, event_frame(1), event_frame(2), b"id: half"),
        stream(STATE, event_frame(2), event_frame(3)),  # each at least once, says the server
        stream(STATE, event_frame(4, "session.destroyed")),
    )
    found = list(client.events("b"))
    assert [each.id for each in found] == [event_id(n) for n in (1, 2, 3, 4)]
    asked = [dict(each.query).get("cursor") for each in double.asked]
    assert asked == [None, event_id(2), event_id(3)]


async def test_events_go_on_for_coroutines_over_a_restart(
    double: Double, async_client: AsyncClient
) -> None:
    double.on(
        "GET",
        "events",
        stream(STATE, event_frame(1), hold=60),
        stream(STATE, event_frame(2), hold=60),
    )
    events = async_client.events()
    assert (await anext(events)).id == event_id(1)
    double.stop()
    double.start()
    assert (await anext(events)).id == event_id(2)
    await events.aclose()


def test_events_that_have_been_end_where_they_end(double: Double, client: Client) -> None:
    double.on("GET", "events", stream(STATE, event_frame(5, "session.failed", why="it died")))
    (found,) = client.events(after=event_id(4), follow=False)
    assert (found.type, found.data, found.actor) == (
        "session.failed",
        {"why": "it died"},
        "system",
    )
    assert dict(double.asked[0].query) == {"cursor": event_id(4), "replay_only": "true"}


def test_a_session_that_is_destroyed_is_not_followed_for_ever(
    double: Double, client: Client
) -> None:
    gone = frame("stream.state", {"data": {"status": "SESSION_STATUS_DESTROYED"}})
    double.on("GET", "sessions/b/events", stream(gone))
    assert list(client.events("b", after=event_id(9))) == []
    assert len(double.asked) == 1


def test_a_session_that_is_not_there_is_told_at_once(double: Double, client: Client) -> None:
    double.on("GET", "sessions/b/events", refusal(404, "not_found", "There is no session 'b'."))
    with pytest.raises(NotFoundError):
        next(client.events("b"))


def test_an_error_in_the_stream_is_raised(double: Double, client: Client) -> None:
    error = {"error": {"id": "database_unable", "message": "It is locked.", "http_code": 503}}
    double.on("GET", "events", stream(STATE, frame("error", error)))
    with pytest.raises(UnavailableError, match="locked"):
        next(client.events(patience=0))


def test_patience_ends(double: Double, client: Client) -> None:
    double.on("GET", "events", stream(STATE, event_frame(1)))
    events = client.events(patience=0.5)
    assert next(events).id == event_id(1)
    double.stop()
    begun = time.monotonic()
    with pytest.raises(UnreachableError):
        next(events)
    assert 0.4 < time.monotonic() - begun < 5
    double.start()
