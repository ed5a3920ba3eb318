"""How experiments are run, without machines."""

import asyncio
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from torpor.lab.check import Check, Experiment
from torpor.lab.laboratory import Laboratory
from torpor.lab.probes import program_text
from torpor.lab.proof import EXPERIMENTS, Outcome, prove
from torpor.vm import LaunchError

GOOD = Check("good", True, "this", "this")
BAD = Check("bad", False, "this", "that")


class Host:
    """A host with machines and snapshots that are only names."""

    def __init__(self, *, stuck: bool = False) -> None:
        self.machines = {"m1": "m1", "m2": "m2"}
        self.snapshots = ["s1", "s2"]
        self.store = SimpleNamespace(ids=lambda: list(self.snapshots))
        self._stuck = stuck

    async def end(self, machine: str) -> None:
        if self._stuck:
            raise LaunchError("it does not end")
        del self.machines[machine]

    async def remove(self, snapshot: str) -> None:
        self.snapshots.remove(snapshot)


def laboratory(host: Host) -> Laboratory:
    return cast(Laboratory, SimpleNamespace(host=host))


def experiment(name: str, result: Any) -> Experiment:
    async def run(_lab: Laboratory) -> list[Check]:
        if isinstance(result, BaseException):
            raise result
        return cast("list[Check]", result)

    return Experiment(name, f"Tries {name}.", run)


async def outcomes(host: Host, *experiments: Experiment) -> list[Outcome]:
    return [outcome async for outcome in prove(laboratory(host), experiments)]


async def test_the_checks_of_an_experiment_are_its_outcome() -> None:
    found = await outcomes(Host(), experiment("one", [GOOD, BAD]), experiment("two", [GOOD]))
    assert [(each.experiment.name, each.checks) for each in found] == [
        ("one", (GOOD, BAD)),
        ("two", (GOOD,)),
    ]


async def test_an_experiment_that_breaks_off_has_failed_and_the_next_one_runs() -> None:
    broken = experiment("broken", LaunchError("QEMU did not start.", todo="Run the doctor."))
    found = await outcomes(Host(), broken, experiment("next", [GOOD]))
    [check] = found[0].checks
    assert (check.name, check.ok) == ("broken", False)
    assert "QEMU did not start. Run the doctor." in check.seen
    assert found[1].checks == (GOOD,)


async def test_an_error_that_does_not_explain_itself_says_where_it_came_from() -> None:
    found = await outcomes(Host(), experiment("broken", AssertionError()))
    assert "test_proof.py, line" in found[0].checks[0].seen


async def test_an_error_of_one_of_several_tasks_is_told_itself() -> None:
    group = ExceptionGroup("tasks", [LaunchError("QEMU did not start.")])
    found = await outcomes(Host(), experiment("broken", group))
    assert "QEMU did not start." in found[0].checks[0].seen


async def test_an_experiment_that_checks_nothing_has_failed() -> None:
    [outcome] = await outcomes(Host(), experiment("empty", []))
    assert [check.ok for check in outcome.checks] == [False]


@pytest.mark.parametrize("result", [[GOOD], LaunchError("no")])
async def test_nothing_is_left_for_the_next_experiment(result: object) -> None:
    host = Host()
    await outcomes(host, experiment("one", result))
    assert (host.machines, host.snapshots) == ({}, [])


async def test_what_cannot_be_cleared_away_is_a_failed_check() -> None:
    [outcome] = await outcomes(Host(stuck=True), experiment("one", [GOOD]))
    assert [check.ok for check in outcome.checks] == [True, False]
    assert "it does not end" in outcome.checks[1].seen


async def test_an_experiment_that_never_ends_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(_lab: Laboratory) -> list[Check]:
        await asyncio.Event().wait()
        return [GOOD]

    monkeypatch.setattr("torpor.lab.proof.LIMIT", 0.01)
    [outcome] = await outcomes(Host(), Experiment("endless", "Waits.", run))
    assert [check.ok for check in outcome.checks] == [False]
    assert "TimeoutError" in outcome.checks[0].seen


async def test_interrupting_a_proof_is_no_failed_check() -> None:
    with pytest.raises(KeyboardInterrupt):
        await outcomes(Host(), experiment("interrupted", KeyboardInterrupt()))


def test_each_experiment_can_be_named_on_the_command_line() -> None:
    names = [each.name for each in EXPERIMENTS]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in names)


def test_experiments_say_what_they_do_in_one_sentence() -> None:
    for each in EXPERIMENTS:
        assert re.fullmatch(r"[A-Z][^.]+\.", each.story), each.name


def test_what_the_counter_writes_is_read_by_nobody() -> None:
    # All that makes the experiment worth something is that the number is in the variable alone.
    code = [line for line in program_text("counter.sh").splitlines() if not line.startswith("#")]
    assert [line for line in code if '"$1"' in line] == [
        """    echo "$n $(date -u +%H:%M:%S)" >>"$1\""""
    ]
    assert not [line for line in code if re.search(r"\b(cat|read|tail|wc|source)\b|<", line)]
