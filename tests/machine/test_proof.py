"""Every experiment of ``torpor lab proof``, each in a laboratory of its own."""

from pathlib import Path

import pytest

from torpor.images import silent
from torpor.lab.check import Experiment
from torpor.lab.laboratory import laboratory
from torpor.lab.proof import EXPERIMENTS, prove
from torpor.settings import Places, default_places

pytestmark = [pytest.mark.machine, pytest.mark.long]


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda each: each.name)
async def test_what_is_claimed_is_seen(experiment: Experiment, home: Path, tmp_path: Path) -> None:
    places = Places(home=home, cache=default_places().cache)
    async with laboratory(places, silent, raw=tmp_path / "raw") as lab:
        outcomes = [outcome async for outcome in prove(lab, [experiment])]
        left = list(lab.host.machines), lab.host.store.ids()
    failed = [
        f"{check.name}: expected {check.expected}; seen {check.seen}"
        for outcome in outcomes
        for check in outcome.checks
        if not check.ok
    ]
    assert not failed, "\n".join(failed)
    assert left == ([], []), "the experiment left machines or snapshots behind"
    assert list(home.iterdir()) == [], "the laboratory was not removed"
