"""What finds faults finds them: calls that are to work, to be refused or to differ, and do not."""

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import (
    HttpResponseError,
    ResourceNotFoundError,
    StreamConsumedError,
)
from azure.core.rest import HttpRequest
from pydo import Client

from tests.conformance.judging import Call, Case, Difference, Verdict, call, judge, pattern
from tests.conformance.recorder import Seen
from tests.conformance.shapes import described, differences, missing
from tests.conformance.ways import Waiting
from tests.conformance.world import World

pytestmark = pytest.mark.filterwarnings("ignore")  # the client warns of what it is made of

SESSION = {"session_id": "x", "status": "SESSION_STATUS_READY", "idle_timeout_seconds": 5}
ERROR = {"id": "not_found", "message": "There is none.", "request_id": "1"}


NOTHING = {**ERROR, "message": "There is nothing here."}


class Pretended(Waiting):
    """A client of a server that answers with its argument, or with the error that this is."""

    async def method(self, name: str, on: str | None, by: str) -> Any:
        def answer(status: int, said: Any) -> Any:
            seen = Seen("GET", "/v2/agents/sessions/x", status, routed=said != NOTHING)
            self._world.seen.append(seen)
            if isinstance(said, Exception):
                raise said
            return said

        return answer


async def judged(**case: Any) -> Verdict:
    world = World(None, Path())  # type: ignore[arg-type]
    world.clients["operator"] = Client("t"), None
    way = Pretended(world)
    return await judge(world, way, Case("harness.get_session", **case))


def answer(said: Any, status: int = 200) -> Call:
    return call(status, said)


GOOD = answer({"session": SESSION})
REFUSED = answer(ERROR, 404)


async def test_what_is_as_described_works() -> None:
    found = await judged(good=GOOD, bad=(404, REFUSED))
    assert (found.works, found.differs, found.faults) == (True, (), ())
    assert found.requests == ("GET /v2/agents/sessions/{session_id}",)
    assert "session.repo_hint" in found.missing
    assert "session.status" not in found.missing


async def test_what_is_said_not_to_work_must_not() -> None:
    assert not (await judged(good=answer(NOTHING, 404), no="so")).faults
    assert not (await judged(good=answer(NOTHING, 404), no="so")).works
    for there in (GOOD, REFUSED, answer(NOTHING, 405)):
        (fault,) = (await judged(good=there, no="so")).faults
        assert fault.startswith("it is said not to work")


@pytest.mark.parametrize(
    ("case", "fault"),
    [
        ({"good": REFUSED}, "the good call: it was refused with 404"),
        ({"good": GOOD, "bad": (404, GOOD)}, "the bad call is to be refused with 404: it was answ"),
        ({"good": GOOD, "bad": (409, REFUSED)}, "the bad call is to be refused with 409: it was"),
        ({"good": GOOD, "bad": (ValueError, REFUSED)}, "the bad call is to be refused with"),
        ({"good": GOOD, "bad": (404, answer({"id": "x"}, 404))}, "an error is returned that has"),
        ({"good": GOOD, "bad": (404, answer(HttpResponseError("x"), 404))}, "404 is HttpResponseE"),
        ({"good": GOOD, "holds": lambda answer: False}, "the answer is not what it has to be"),
        ({"good": GOOD, "holds": lambda answer: answer["x"]}, "the answer is not what it has to"),
        ({"good": GOOD, "differs": (Difference("so", GOOD, 400),)}, "it does not differ as is sa"),
    ],
)
async def test_what_is_not_as_told_is_a_fault(case: dict[str, Any], fault: str) -> None:
    found = await judged(**case)
    assert not found.works
    assert [each[: len(fault)] for each in found.faults] == [fault]


async def test_what_was_to_happen_must_have() -> None:
    async def then(world: World, outcome: Any) -> bool:
        return False

    found = await judged(good=GOOD, then=then)
    assert found.faults == ("what the call was for has not happened",)


async def test_what_differs_is_told() -> None:
    wrong = answer({"session": {**SESSION, "idle_timeout_seconds": "5"}})
    shown = Difference("so it is", REFUSED, 404)
    found = await judged(good=wrong, differs=(shown,))
    assert found.works
    assert found.differs == (
        "`session.idle_timeout_seconds` is a whole number there, here str",
        "so it is",
    )


async def test_an_error_that_is_raised_is_one_too() -> None:
    raised = answer(ResourceNotFoundError("x"), 404)
    assert (await judged(good=GOOD, bad=(404, raised))).works


@pytest.mark.parametrize(
    ("answer", "shape", "wrong"),
    [
        ({"a": 1}, "{'a': 0}", []),
        ({"a": True}, "{'a': 0}", ["a"]),
        ({"a": 1}, "{'a': bool}", ["a"]),
        ({"a": 1}, "{'a': 0.0}", []),
        ({"a": None}, "{'a': 'str'}", ["a"]),
        ({"a": {"x": "y"}}, "{'a': {'str': 'str'}}", []),
        ({"a": {"x": 1}}, "{'a': {'str': 'str'}}", ["a"]),
        ({"a": [{"b": 1, "own": 2}]}, "{'a': [{'b': 'str'}]}", ["a[].b"]),
        ({"a": {}}, "{'a': ['str']}", ["a"]),
        ({"own": 1}, "{'a': 'str'}", ["the answer"]),
        ([], "{'a': 'str'}", ["the answer"]),
        ({"a": [1, {}]}, "{'a': {}}", ["a"]),
    ],
)
def test_types_are_compared(answer: Any, shape: str, wrong: list[str]) -> None:
    found = differences(answer, ast.parse(shape, mode="eval").body)
    assert [each.split("`")[1] for each in found] == wrong


@pytest.mark.parametrize(
    ("answer", "shape", "keys"),
    [
        ({"a": {"b": 1}}, "{'a': {'b': 0, 'c': 0}, 'd': {'e': 0}}", {"a.c", "d"}),
        ({"a": [{"b": 1}, {"c": 1}]}, "{'a': [{'b': 0, 'c': 0, 'd': 0}]}", {"a.d"}),
        ({"a": []}, "{'a': [{'b': 0}]}", {"a[]"}),
        ({"a": {}}, "{'a': {'str': 'str'}}", set()),
    ],
)
def test_keys_that_are_not_there_are_found(answer: Any, shape: str, keys: set[str]) -> None:
    assert missing(answer, ast.parse(shape, mode="eval").body) == keys


def test_a_description_is_read() -> None:
    harness = Client("t").harness
    shape = described(harness.get_session_ingress)
    assert shape is not None
    assert set(ast.literal_eval(shape)["ingress_url"]) == {
        "created_at", "ingress_url_id", "port", "session_id", "state", "url",
    }  # fmt: skip
    assert described(harness.delete_session) is None


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (
            "/v2/agents/sessions/x/checkpoints/y",
            "sessions/{session_id}/checkpoints/{checkpoint_id}",
        ),
        ("/v2/agents/sessions/policy/validate", "sessions/policy/validate"),
        ("/v2/agents/triggers/by-session/x", "triggers/by-session/{session_id}"),
    ],
)
def test_paths_are_shown_without_what_is_of_one_call(path: str, shown: str) -> None:
    assert pattern(path) == f"/v2/agents/{shown}"


class Tripping(Pretended):
    """The same for coroutines."""

    trips_over_nothing = True


async def test_a_client_that_trips_has_done_it_and_does_trip() -> None:
    trip = StreamConsumedError(SimpleNamespace(request=HttpRequest("POST", "/")))  # type: ignore[arg-type]
    done: list[bool] = [True, False]

    async def then(world: World, outcome: Any) -> bool:
        return done.pop(0)

    world = World(None, Path())  # type: ignore[arg-type]
    world.clients["operator"] = Client("t"), None
    way = Tripping(world)
    case = Case("harness.post_session_pause", answer(trip, 204), then=then, trips="it trips")  # type: ignore[arg-type]
    found = await judge(world, way, case)
    assert (found.works, found.differs, found.faults) == (True, ("it trips",), ())
    assert "has not happened" in (await judge(world, way, case)).faults[0]
    found = await judge(world, way, Case("harness.get_session", GOOD, trips="it trips"))
    assert "it does not trip" in found.faults[0]
    assert (await judged(good=GOOD, trips="it trips")).differs == ()
