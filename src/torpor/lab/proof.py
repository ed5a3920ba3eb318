"""All experiments, and how they are run."""

import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from torpor.lab.check import Check, Experiment
from torpor.lab.checks import (
    boot_identity,
    clock,
    counter,
    databases,
    files,
    files_only,
    what_it_runs_on,
    writer,
)
from torpor.lab.laboratory import Laboratory

EXPERIMENTS: tuple[Experiment, ...] = (
    counter.EXPERIMENT,
    boot_identity.EXPERIMENT,
    clock.EXPERIMENT,
    files.EXPERIMENT,
    files_only.EXPERIMENT,
    writer.EXPERIMENT,
    databases.EXPERIMENT,
    what_it_runs_on.EXPERIMENT,
)


@dataclass(frozen=True)
class Outcome:
    """The checks of one experiment and how long it took, in seconds."""

    experiment: Experiment
    checks: tuple[Check, ...]
    seconds: float


async def prove(lab: Laboratory, experiments: Iterable[Experiment]) -> AsyncIterator[Outcome]:
    """Run experiments one after the other; each starts with no machine of another's running."""
    for experiment in experiments:
        began = time.monotonic()
        try:
            checks = await experiment.run(lab)
        except Exception as error:  # whatever goes wrong, the proof has failed and says how
            seen = f"{type(error).__name__}: {error}"
            checks = [Check(experiment.name, False, "the experiment runs to its end", seen)]
        for machine in list(lab.host.machines.values()):
            await lab.host.end(machine)
        yield Outcome(experiment, tuple(checks), time.monotonic() - began)
