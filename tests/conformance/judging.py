"""A call of the client, what became of it, and the verdict on a method."""

import ast
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    StreamConsumedError,
)

from tests.conformance.shapes import described, differences, missing
from tests.conformance.ways import Way
from tests.conformance.world import Need, World

ERRORS = {401: ClientAuthenticationError, 404: ResourceNotFoundError, 409: ResourceExistsError}
"""What the client raises for which status; for others the error that these are of."""


@dataclass(frozen=True)
class Call:
    """Arguments. ``on`` is the session of a handle; ``by`` is an operator, viewer or nobody."""

    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    on: Need | None = None
    by: str = "operator"


@dataclass(frozen=True)
class Difference:
    """What is otherwise than there, and a call that shows it: by what it is refused with, or by
    its answer."""

    text: str
    call: Call
    shown: int | Callable[[Any], bool]
    meanwhile: Callable[[World], AbstractAsyncContextManager[object]] = nullcontext
    """What holds in the world meanwhile."""


@dataclass(frozen=True)
class Case:
    """A method: a call that works, and one that is refused (``bad``) with a status or an error.

    ``of`` is the generated method that describes the answer, ``holds`` what it has to be, and
    ``refused`` the status of an answer that is a refusal there, too. ``no`` says why the method
    does not work: then ``good`` has to be refused with 404, as what the server does not have.
    """

    method: str
    good: Call
    bad: tuple[int | type[Exception], Call] | None = None
    of: str | None = None
    holds: Callable[[Any], bool] = lambda answer: True
    then: Callable[[World, "Outcome"], Awaitable[bool]] | None = None
    refused: int | None = None
    differs: tuple[Difference, ...] = ()
    no: str | None = None
    trips: str | None = None
    """What is to be said of the client for coroutines, which does what was asked for and then trips
    over an answer without a body."""
    note: str = ""
    sent: tuple[str, str] | None = None
    """The request itself, by its method and path, where the client has no method for it yet."""


@dataclass(frozen=True)
class Outcome:
    """What became of a call: an answer, or the status or error that refused it."""

    arguments: tuple[Any, ...]
    answer: Any
    refused: int | Exception | None
    requests: tuple[str, ...]
    unknown: str = ""
    """What of a refusal is not as the client knows it."""
    routed: bool = True
    """The server has such requests as the last one."""


@dataclass(frozen=True)
class Verdict:
    """Of a method, called in one way: what differs, or what is at fault."""

    requests: tuple[str, ...]
    works: bool
    differs: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    missing: frozenset[str] = frozenset()
    """The keys that are described of an answer, and that it did not have."""


async def judge(world: World, way: Way, case: Case) -> Verdict:
    """Make the calls of a case, and say what comes of them."""
    good = await attempt(world, way, case, case.good)
    if case.no is not None:
        absent = good.refused == 404 and not good.routed
        fault = () if absent else (f"it is said not to work, and {_told(good)}",)
        return Verdict(good.requests, False, (), fault)
    differs = []
    if case.trips is not None and way.trips_over_nothing:
        if not isinstance(good.refused, StreamConsumedError):
            return Verdict(good.requests, False, (), (f"it does not trip: {_told(good)}",))
        good = replace(good, refused=None)
        differs.append(case.trips)
    if good.refused != case.refused:
        return Verdict(good.requests, False, (), (f"the good call: {_told(good)}",))
    faults = [good.unknown] if good.unknown else []
    if not _holds(case.holds, good.answer):
        faults.append(f"the answer is not what it has to be: {good.answer!r}")
    if case.then is not None and not await case.then(world, good):
        faults.append("what the call was for has not happened")
    faults += await _bad(world, way, case)
    shape = _shape(way, case)
    if shape is not None:
        differs += differences(good.answer, shape)
    left_out = frozenset() if shape is None or differs else missing(good.answer, shape)
    for each in case.differs:
        async with each.meanwhile(world):
            shown = await attempt(world, way, case, each.call)
        if _shows(shown, each.shown):
            differs.append(each.text)
        else:
            faults.append(f"it does not differ as is said ({each.text}): {_told(shown)}")
    return Verdict(good.requests, not faults, tuple(differs), tuple(faults), frozenset(left_out))


async def _bad(world: World, way: Way, case: Case) -> list[str]:
    if case.bad is None:
        return []
    expected, call = case.bad
    bad = await attempt(world, way, case, call)
    if isinstance(expected, int):
        right = bad.refused == expected
    else:
        right = type(bad.refused) is expected
    if not right:
        return [f"the bad call is to be refused with {expected}: {_told(bad)}"]
    return [bad.unknown] if bad.unknown else []


def _shape(way: Way, case: Case) -> ast.expr | None:
    """Return what is described of the answer of a method."""
    group, _, name = case.method.rpartition(".")
    named = name if group == "harness" else case.of
    if named is None:
        return None
    shape = described(getattr(way.group("harness"), named))
    if shape is None and case.of is not None:
        raise LookupError(f"{named} does not describe its answer.")
    return shape


def _shows(outcome: Outcome, shown: int | Callable[[Any], bool]) -> bool:
    if isinstance(shown, int):
        return outcome.refused == shown
    return outcome.refused is None and _holds(shown, outcome.answer)


def _holds(what: Callable[[Any], bool], answer: Any) -> bool:
    try:
        return what(answer)
    except (AttributeError, LookupError, TypeError):
        return False


def _told(outcome: Outcome) -> str:
    if outcome.refused is None:
        return f"it was answered with {outcome.answer!r}"
    return f"it was refused with {outcome.refused!r} ({outcome.answer!r})"


async def attempt(world: World, way: Way, case: Case, call: Call) -> Outcome:
    """Make a call, and say what became of it."""
    arguments = await world.filled(call.arguments)
    options = await world.filled(dict(call.options))
    on = await call.on(world) if call.on is not None else None
    if case.sent is not None:
        method = way.sending(*case.sent)
    else:
        method = await way.method(case.method, on, call.by)
    world.seen.clear()
    answer, error = None, None
    try:
        answer = await way.run(method, arguments, options)
    except Exception as raised:
        error = raised
    seen = list(world.seen)
    requests = tuple(dict.fromkeys(f"{each.method} {pattern(each.path)}" for each in seen))
    status, routed = (seen[-1].status, seen[-1].routed) if seen else (0, True)
    given = arguments if on is None else (on, *arguments)
    if isinstance(error, HttpResponseError):
        known = type(error) is ERRORS.get(status, HttpResponseError)
        unknown = "" if known else f"{status} is {type(error).__name__} to the client"
        return Outcome(given, str(error), status, requests, unknown, routed)
    if error is not None:
        return Outcome(given, None, error, requests)
    if status >= 400:
        return Outcome(given, answer, status, requests, _of_error(answer), routed)
    return Outcome(given, answer, None, requests)


def _of_error(answer: Any) -> str:
    """Say what of a returned error is not as it is described."""
    if isinstance(answer, bytes):
        answer = json.loads(answer)
    keys = ("id", "message", "request_id")
    right = isinstance(answer, dict) and all(isinstance(answer.get(key), str) for key in keys)
    return "" if right else f"an error is returned that has not {', '.join(keys)}: {answer!r}"


# Where a value stands in a path: after which word.
_PLACES = {
    "auth": "provider", "builds": "build_id", "checkpoints": "checkpoint_id",
    "configs": "config_id", "connections": "connection_id", "executions": "execution_id",
    "hitl": "request_id", "port-forward": "port", "sessions": "session_id",
    "templates": "template_id", "transfers": "transfer_id", "triggers": "trigger_id",
    "workspaces": "workspace_id",
}  # fmt: skip
_WORDS = {"policy", "sandbox", "by-session", "reusable-sessions", "webhook-providers"}


def pattern(path: str) -> str:
    """Return a path with names in place of what is of one call only."""
    parts = path.split("/")
    if "signed" in parts:
        return "a signed URL"
    for index in range(1, len(parts)):
        before = parts[index - 1]
        if before == "by-session":
            parts[index] = "{session_id}"
        elif before in _PLACES and parts[index] not in _WORDS:
            parts[index] = f"{{{_PLACES[before]}}}"
    return re.sub(r"/+", "/", "/".join(parts))


def call(*arguments: Any, on: Need | None = None, by: str = "operator", **options: Any) -> Call:
    """Return a call with these arguments."""
    return Call(arguments, options, on, by)
