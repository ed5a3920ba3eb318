"""What is sent again, what is not, and what a user is told."""

import socket
import time

import pytest
from starlette.responses import JSONResponse, Response

from tests.client.double import Double, refusal, session
from tests.client.raw import LOST, answer, raw_server
from torpor.client import (
    ApiError,
    AsyncClient,
    Client,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    Patience,
    RateLimitedError,
    ServerError,
    TimedOutError,
    UnauthorizedError,
    UnavailableError,
    UnreachableError,
)
from torpor.client.tries import LONGEST_PAUSE, Outage, pause_before

DONE = answer(204)


def keys(heads: list[bytes]) -> set[bytes]:
    lines = [line for head in heads for line in head.split(b"\r\n")]
    return {line for line in lines if line.lower().startswith(b"idempotency-key:")}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidError),
        (401, UnauthorizedError),
        (403, ForbiddenError),
        (404, NotFoundError),
        (409, ConflictError),
        (413, InvalidError),
        (415, InvalidError),
        (429, RateLimitedError),
        (500, ServerError),
        (503, UnavailableError),
        (507, ServerError),
        (418, ApiError),
    ],
)
def test_each_refusal_is_an_error_of_its_kind(
    double: Double, status: int, kind: type[ApiError]
) -> None:
    double.on(
        "GET", "sessions/b", refusal(status, "why", "It is so", state="All stays.", todo="Go")
    )
    with Client(double.url, patience=Patience(tries=1)) as client, pytest.raises(ApiError) as told:
        client.get_session("b")
    assert type(told.value) is kind
    assert (told.value.status, told.value.id, told.value.request_id) == (status, "why", "r1")
    assert str(told.value) == "It is so. All stays. Go."


def test_a_page_of_a_proxy_is_told_of_by_its_status(double: Double, client: Client) -> None:
    double.on("GET", "sessions/b", Response("<html>", 502))
    with pytest.raises(ServerError, match="status 502"):
        client.get_session("b")


def test_a_change_whose_answer_was_lost_is_asked_for_again_under_the_same_key() -> None:
    with raw_server([LOST, LOST, DONE]) as server, Client(server.url) as client:
        client.pause_session("b")
    assert len(server.heads) == 3
    assert len(keys(server.heads)) == 1


async def test_coroutines_do_the_same() -> None:
    with raw_server([LOST, DONE]) as server:
        async with AsyncClient(server.url) as client:
            await client.pause_session("b")
    assert len(keys(server.heads)) == 1


def test_two_changes_have_two_keys(double: Double, client: Client) -> None:
    double.on("POST", "sessions/b/pause", Response(status_code=204))
    client.pause_session("b")
    client.pause_session("b")
    assert len({each.headers["idempotency-key"] for each in double.asked}) == 2


def test_a_command_that_may_have_been_run_is_not_run_again() -> None:
    with raw_server([LOST, DONE]) as server, Client(server.url) as client:
        with pytest.raises(UnreachableError, match="may have been done") as told:
            client.run("b", ["true"])
        assert told.value.sent
    assert len(server.heads) == 1


def test_content_that_can_be_read_once_is_sent_once() -> None:
    with (
        raw_server([LOST, DONE]) as server,
        Client(server.url) as client,
        pytest.raises(UnreachableError),
    ):
        client.write_archive("b", "/", iter([b"abc"]))
    assert len(server.heads) == 1


def test_removing_what_an_earlier_try_has_removed_is_done() -> None:
    gone = answer(404, b'{"id":"not_found","message":"No."}')
    with raw_server([LOST, gone]) as server, Client(server.url) as client:
        client.destroy_session("b")
    with (
        raw_server([gone]) as server,
        Client(server.url) as client,
        pytest.raises(NotFoundError),
    ):
        client.destroy_session("b")


def test_what_was_refused_for_its_rate_is_asked_for_again(double: Double, client: Client) -> None:
    refused = refusal(429, "too_many_requests", "Slowly.", retry_after=0)
    ran = {"exit_code": 0, "stdout": "", "stderr": "", "duration_ms": 1, "timed_out": False}
    double.on("POST", "sessions/b/sandbox/exec", refused, refused, JSONResponse(ran))
    assert client.run("b", ["true"]).status == 0
    assert len(double.asked) == 3


def test_a_server_that_wants_to_be_left_alone_for_long_is(double: Double, client: Client) -> None:
    double.on("GET", "sessions/b", refusal(429, "too_many_requests", "Slowly.", retry_after=60))
    begun = time.monotonic()
    with pytest.raises(RateLimitedError) as told:
        client.get_session("b")
    assert told.value.retry_after == 60
    assert time.monotonic() - begun < 2
    assert len(double.asked) == 1


def test_a_machine_that_is_silent_is_asked_again_only_if_twice_is_once(
    double: Double, client: Client
) -> None:
    silent = refusal(503, "machine_silent", "No answer.", retry_after=0)
    double.on("GET", "sessions/b", silent, JSONResponse({"session": session()}))
    started = {"exec_id": "e", "argv": ["true"], "running": True}
    double.on("POST", "sessions/b/execs", silent, JSONResponse({"exec": started}))
    double.on("POST", "sessions/b/sandbox/exec", silent)
    assert client.get_session("b").name == "build-7"
    assert client.start_exec("b", ["true"]).id == "e"
    assert len({each.headers["idempotency-key"] for each in double.asked[2:]}) == 1
    with pytest.raises(UnavailableError):
        client.run("b", ["true"])
    assert len(double.asked) == 5


def test_no_room_is_told_at_once(double: Double, client: Client) -> None:
    double.on("POST", "sessions", refusal(503, "no_room", "There is no room.", retry_after=0))
    with pytest.raises(UnavailableError):
        client.create_session()
    assert len(double.asked) == 1


def test_where_nobody_listens_is_told_soon_and_clearly() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody else gets it, and nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        begun = time.monotonic()
        with Client(url) as client, pytest.raises(UnreachableError, match="refused") as told:
            client.get_session("b")
        assert (told.value.url, told.value.sent) == (url, False)
        assert time.monotonic() - begun < 5


def test_a_server_that_is_started_meanwhile_is_found(double: Double) -> None:
    double.stop()
    double.on("POST", "sessions/b/sandbox/exec", JSONResponse(
        {"exit_code": 7, "stdout": "", "stderr": "", "duration_ms": 1, "timed_out": False}
    ))  # fmt: skip
    import threading

    starting = threading.Timer(0.3, double.start)
    starting.start()
    try:
        with Client(double.url, patience=Patience(tries=20)) as client:
            assert client.run("b", ["true"]).status == 7
    finally:
        starting.join()


def test_an_answer_that_breaks_off_is_not_taken_for_whole() -> None:
    half = answer(200, b"0123456789")[:-4]
    with raw_server([half]) as server, Client(server.url) as client:
        pieces = client.read_file_pieces("b", "/x")
        with pytest.raises(UnreachableError):
            list(pieces)


def test_a_time_that_is_over_is_no_reason_to_ask_again(double: Double, client: Client) -> None:
    import asyncio
    from dataclasses import replace

    from torpor.client.calls.sessions import get_session

    async def slowly(_: object) -> Response:
        await asyncio.sleep(0.6)
        return JSONResponse({"session": session()})

    double.on("GET", "sessions/b", slowly)
    with pytest.raises(TimedOutError):
        client.send(replace(get_session("b"), seconds=0.1))
    assert len(double.asked) == 1


def test_no_proxy_is_asked_for_this_computer(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    double.on("GET", "sessions/b", JSONResponse({"session": session()}))
    with Client(double.url) as client:
        assert client.get_session("b").name == "build-7"


def test_pauses_grow_to_a_limit() -> None:
    for attempt in range(1, 40):
        assert 0 < pause_before(attempt) <= LONGEST_PAUSE
    assert pause_before(1) <= 0.1


def test_an_outage_is_over_when_its_time_is() -> None:
    outage = Outage(10)
    assert outage.wait(100.0) is not None
    assert outage.wait(109.0) is not None
    assert outage.wait(110.0) is None
    outage.found()
    assert outage.wait(200.0) is not None
    assert Outage(0).wait(5.0) is None
    assert Outage(None).wait(1e9) is not None
