"""All experiments, and how they are run."""

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

from torpor.lab.check import Check, Experiment
from torpor.lab.checks import (
    boot_identity,
    clock,
    counter,
    databases,
    files,
    files_only,
    fork,
    fork_randomness,
    fork_storage,
    runtimes,
    streams,
    what_it_runs_on,
    writer,
)
from torpor.lab.laboratory import Laboratory
from torpor.vm import VmError

EXPERIMENTS: tuple[Experiment, ...] = (
    counter.EXPERIMENT,
    boot_identity.EXPERIMENT,
    clock.EXPERIMENT,
    files.EXPERIMENT,
    files_only.EXPERIMENT,
    writer.EXPERIMENT,
    databases.EXPERIMENT,
    fork.EXPERIMENT,
    fork_storage.EXPERIMENT,
    fork_randomness.EXPERIMENT,
    streams.EXPERIMENT,
    runtimes.EXPERIMENT,
    what_it_runs_on.EXPERIMENT,
)

LIMIT = 600.0
"""Seconds after which an experiment is given up and has failed. None takes a third of it on two
emulated cores, even if they are busy with other work, but for what the first one builds."""


@dataclass(frozen=True)
class Outcome:
    """The checks of one experiment and how long it took, in seconds."""

    experiment: Experiment
    checks: tuple[Check, ...]
    seconds: float


async def prove(lab: Laboratory, experiments: Iterable[Experiment]) -> AsyncIterator[Outcome]:
    """Run experiments one after the other; each starts with no machine or snapshot of another's."""
    for experiment in experiments:
        began = time.monotonic()
        checks: list[Check] = []
        try:
            async with asyncio.timeout(LIMIT):
                checks = await experiment.run(lab)
            if not checks:
                checks = [_broken(experiment, "it checked nothing")]
        except Exception as error:  # whatever goes wrong, the proof has failed and says how
            checks = [_broken(experiment, describe(error))]
        try:
            await _clear(lab)
        except Exception as error:
            checks = [*checks, _broken(experiment, f"nothing could be removed: {describe(error)}")]
        yield Outcome(experiment, tuple(checks), time.monotonic() - began)


def describe(error: BaseException) -> str:
    """Return what an experiment that broke off died of, and where if that is not in its words."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    what = f"{type(error).__name__}: {error}"
    if isinstance(error, VmError) or error.__traceback__ is None:
        return what
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{what} ({Path(last.filename).name}, line {last.lineno})"


def _broken(experiment: Experiment, seen: str) -> Check:
    return Check(experiment.name, False, "the experiment runs to its end", seen)


async def _clear(lab: Laboratory) -> None:
    for machine in list(lab.host.machines.values()):
        await lab.host.end(machine)
    for snapshot in lab.host.store.ids():
        await lab.host.remove(snapshot)
