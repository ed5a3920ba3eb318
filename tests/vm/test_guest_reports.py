"""What a guest says of itself is taken only in the form that it must have."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torpor.guest import wire
from torpor.vm import GuestError
from torpor.vm import guest_processes as listing
from torpor.vm.guest_commands import KnownCommand, parse_commands
from torpor.vm.guest_processes import list_processes
from torpor.vm.guest_statistics import parse_statistics
from torpor.vm.hooks import HookCall, HookLimits, failed, parse_results, run_stage

HOOK: dict[str, Any] = {
    "stage": "after-thaw",
    "name": "10-reload",
    "exit": 0,
    "signal": None,
    "duration_ms": 1500,
    "timed_out": False,
    "output": "done\n",
    "error": None,
}
PROCESS: dict[str, Any] = {
    "pid": 7,
    "ppid": 1,
    "session": 7,
    "uid": 0,
    "name": "sh",
    "argv": ["sh", "-c"],
    "cut": False,
    "state": "S",
    "started_ns": 2_000_000_000,
    "cpu_ns": 10_000_000,
    "memory": 4096,
    "threads": 1,
    "exec": "x1",
    "user": True,
}
COMMAND: dict[str, Any] = {
    "id": "x1", "argv": ["sh", "-c"], "pid": 7, "running": True, "start": 0, "end": 5,
}  # fmt: skip
STATISTICS: dict[str, Any] = {
    "cpu": dict.fromkeys(
        (
            "count", "user_ns", "system_ns", "idle_ns", "steal_ns", "commands_user_ns",
            "commands_system_ns", "commands_throttled_ns",
        ),
        1,
    ),
    "memory": dict.fromkeys(
        (
            "total", "available", "free", "cached", "commands", "commands_peak",
            "commands_swap", "commands_oom_kills",
        ),
        2,
    ),
    "disk": dict.fromkeys(
        (
            "size", "used", "free", "inodes", "inodes_free", "read_bytes", "reads",
            "written_bytes", "writes",
        ),
        3,
    ),
    "network": [
        {
            "name": "lo",
            "received_bytes": 1,
            "received_packets": 2,
            "sent_bytes": 3,
            "sent_packets": 4,
        }
    ],
    "processes": 5,
    "load": [0.5, 1, 2.25],
    "uptime_ns": 1_000_000_000,
}  # fmt: skip
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


class Agent:
    """Answers requests from a list, as a channel would."""

    def __init__(self, *answers: dict[str, Any] | GuestError) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def request(
        self, op: str, document: dict[str, Any], **_options: Any
    ) -> tuple[dict[str, Any], bytes]:
        self.asked.append((op, document))
        answer = self.answers.pop(0) if self.answers else {"processes": [], "next": None}
        if isinstance(answer, GuestError):
            raise answer
        return wire.parse_document(wire.document(answer))


def listed(*answers: dict[str, Any]) -> list[listing.Process]:
    async def collect() -> list[listing.Process]:
        return [each async for each in list_processes(Agent(*answers))]  # type: ignore[arg-type]

    return asyncio.run(collect())


def test_a_hook_is_taken_as_it_was() -> None:
    [result] = parse_results([HOOK])
    assert (result.ok, result.duration, result.output) == (True, 1.5, "done\n")
    for change, words in (
        ({"exit": 3}, "the hook after-thaw/10-reload exited with 3"),
        ({"exit": None, "signal": 6}, "was ended by signal 6"),
        ({"exit": None, "signal": 9, "timed_out": True}, "was too slow (1.5 s)"),
        ({"exit": None, "error": "no\x1b[2J"}, "failed: no?[2J"),
    ):
        bad = parse_results([HOOK, HOOK | change])
        assert not bad[1].ok
        assert failed(bad) is bad[1]
        assert words in str(bad[1])
    assert failed([result]) is None


def test_hooks_are_asked_for_with_what_they_are_told() -> None:
    agent = Agent({"hooks": [HOOK]})
    call = HookCall({"event": "pause", "machine": "m1"}, HookLimits(each=1.5, total=4))
    [result] = asyncio.run(run_stage(agent, "after-thaw", call))  # type: ignore[arg-type]
    assert result.ok
    wanted = {
        "each_ms": 1500,
        "total_ms": 4000,
        "env": {"TORPOR_EVENT": "pause", "TORPOR_MACHINE": "m1"},
    }
    assert agent.asked == [("hooks.run", {"stage": "after-thaw", "hooks": wanted})]


def test_an_agent_from_before_there_were_hooks_has_none() -> None:
    unknown = GuestError("ENOSYS", "this agent does not know the request 'hooks.run'")
    call = HookCall({})
    assert asyncio.run(run_stage(Agent(unknown), "after-thaw", call)) == ()  # type: ignore[arg-type]
    busy = GuestError("EBUSY", "the hook runs")
    with pytest.raises(GuestError, match="EBUSY"):
        asyncio.run(run_stage(Agent(busy), "after-thaw", call))  # type: ignore[arg-type]


def test_processes_come_page_by_page() -> None:
    more = PROCESS | {"pid": 9, "exec": None, "argv": ["\x1b[31m", "\ud800"]}
    first, second = listed({"processes": [PROCESS], "next": 7}, {"processes": [more], "next": None})
    assert (first.pid, first.exec, first.started, first.cpu) == (7, "x1", 2.0, 0.01)
    assert (second.exec, second.argv) == (None, ("?[31m", "?"))


def test_a_guest_cannot_lead_the_list_on_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GuestError, match="next"):
        listed({"processes": [], "next": 0})
    with pytest.raises(GuestError, match="next"):
        listed({"processes": [], "next": 5}, {"processes": [], "next": 5})
    monkeypatch.setattr(listing, "MOST", 3 * listing.PAGE)
    with pytest.raises(GuestError, match="processes"):
        listed(*({"processes": [PROCESS, PROCESS], "next": n + 1} for n in range(9)))
    with pytest.raises(GuestError, match="processes"):
        listed({"processes": [PROCESS] * (listing.PAGE + 1), "next": None})
    with pytest.raises(GuestError, match="processes"):
        listed(*({"processes": [], "next": n + 1} for n in range(9)))
    with pytest.raises(GuestError, match="argv"):
        listed({"processes": [PROCESS | {"argv": ["x"] * 301}], "next": None})


def test_a_long_list_of_long_lines_is_refused_before_it_takes_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listing, "MOST_TEXT", 100_000)
    wordy = PROCESS | {"argv": ["w" * 1000] * 10}
    pages = [{"processes": [wordy] * 9, "next": n + 1} for n in range(9)]
    with pytest.raises(GuestError, match="argv"):
        listed(*pages)
    assert len(listed(pages[0])) == 9


def test_commands_are_taken_as_they_were_told() -> None:
    odd = COMMAND | {"argv": ["a\tb", "\udcff", "\ud800", 7], "pid": None}
    first, second = parse_commands([COMMAND, odd])
    assert first == KnownCommand("x1", ("sh", "-c"), 7, running=True, start=0, end=5)
    assert second.argv == ("a\tb", "\\xff", "\\ud800", "7")
    assert second.pid is None


@pytest.mark.parametrize(
    "said",
    [
        None, {}, [3], [None], [{}], [COMMAND | {"argv": "sh"}], [COMMAND | {"id": 3}],
        [COMMAND | {"end": -1}], [COMMAND | {"end": 10**300}], [COMMAND | {"start": True}],
        [COMMAND | {"pid": "7"}], [COMMAND | {"argv": [""] * 301}], [COMMAND] * 10_001,
    ],
    ids=range(13),
)  # fmt: skip
def test_commands_that_are_none_are_refused(said: object) -> None:
    with pytest.raises(GuestError, match="EPROTO"):
        parse_commands(said)


def test_statistics_are_taken_as_they_were() -> None:
    said = parse_statistics(STATISTICS)
    assert (said.cpu.count, said.memory.commands_peak, said.disk.writes) == (1, 2, 3)
    assert said.network[0].sent_packets == 4
    assert (said.processes, said.load, said.uptime) == (5, (0.5, 1.0, 2.25), 1.0)
    assert (
        parse_statistics(changed(STATISTICS, ("memory", "commands"), None)).memory.commands is None
    )


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


def paths(value: Any) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = [()]
    pairs: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = list(enumerate(value))
    for name, inner in pairs:
        found += [(name, *rest) for rest in paths(inner)]
    return found


@pytest.mark.parametrize(
    ("whole", "take"),
    [
        ([HOOK], parse_results),
        (STATISTICS, parse_statistics),
        ({"processes": [PROCESS], "next": None}, listed),
    ],
)
@given(data=st.data())
def test_whatever_stands_in_a_place_is_taken_or_refused(
    whole: Any, take: Callable[[Any], object], data: st.DataObject
) -> None:
    path = data.draw(st.sampled_from(paths(whole)))
    lie = changed(whole, path, data.draw(ANYTHING))
    if take is not parse_results and not isinstance(lie, dict):
        return  # the channel takes documents only
    try:
        take(lie)
    except GuestError as error:
        assert error.code == "EPROTO"  # noqa: PT017


@pytest.mark.parametrize("number", [-1, 1 << 63, 1.5, True, "1", None, [], 1 << 70])
def test_a_number_that_is_none_is_refused(number: object) -> None:
    with pytest.raises(GuestError, match="'total'"):
        parse_statistics(changed(STATISTICS, ("memory", "total"), number))
    with pytest.raises(GuestError, match="'pid'"):
        listed({"processes": [PROCESS | {"pid": number}], "next": None})
