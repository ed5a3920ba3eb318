"""A very small bench run has the form that it should; how fast it was is not asked here."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from torpor.images import Step, silent
from torpor.lab.bench import SERVICE_GROUPS, bench
from torpor.lab.benches import service_databases
from torpor.lab.figures import Results, results_json
from torpor.lab.laboratory import Laboratory, laboratory
from torpor.settings import Places, default_places

pytestmark = [pytest.mark.machine, pytest.mark.long]

NAMES = (
    "exec_roundtrip",
    "pause_returned",
    "resume_ready",
    "freeze_after_free_200mib",
    "delta_after_free_200mib",
)


@pytest.fixture
async def lab(home: Path) -> AsyncIterator[Laboratory]:
    places = Places(home, default_places().cache)
    async with laboratory(places, silent, raw=home / "raw") as opened:
        yield opened


def values(results: Results) -> dict[str, float]:
    return {row.figure.name: row.p50 for row in results.rows}


async def test_a_small_run_has_rows_of_the_right_form(lab: Laboratory) -> None:
    told: list[Step] = []
    results = await bench(lab, 1, told.append, NAMES)
    found = {row["name"]: row for row in results_json(results)["results"]}
    assert set(NAMES) <= set(found)
    assert "cold_boot" not in found
    for row in found.values():
        assert set(row) == {"name", "unit", "p50", "p95", "runs"}
        assert row["unit"] in ("s", "MiB", "%")
        assert row["runs"] >= 1
        assert 0 < row["p50"] <= row["p95"]
    assert results_json(results)["host"]["accelerator"] in ("kvm", "tcg")
    assert told
    assert all(
        (lab.raw / "bench" / f"{name}.json").exists() for name in NAMES if lab.raw is not None
    )


async def test_figures_of_one_call_are_in_the_order_in_which_things_happen(
    lab: Laboratory,
) -> None:
    results = await bench(lab, 1, silent, ["pause_returned"])
    seen = values(results)
    assert seen["pause_returned"] <= seen["pause_durable"]
    assert seen["resume_ready"] <= seen["resume_returned"] <= seen["resume_first_exec"]
    assert 1 < seen["pause_stored_mib"] < lab.shape.memory_mib


async def test_a_bench_leaves_no_machine_and_no_snapshot(lab: Laboratory) -> None:
    await bench(lab, 1, silent, ["exec_roundtrip"])
    assert lab.host.machines == {}
    assert lab.host.store.ids() == []


async def test_a_figure_that_does_not_exist_is_refused(lab: Laboratory) -> None:
    with pytest.raises(ValueError, match="no figure nix"):
        await bench(lab, 1, silent, ["nix"])


async def test_the_same_is_measured_on_both_databases(
    lab: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_databases, "THERE", 60)
    monkeypatch.setattr(service_databases, "PAGES", 2)
    results = await bench(lab, 1, silent, ["postgresql_page_ratio"], SERVICE_GROUPS)
    rows = {row.figure.name: row for row in results.rows}
    assert set(rows) == {figure.name for figure in service_databases.FIGURES}
    for name in service_databases.MEASURED:
        first, second = rows[f"sqlite_{name}"].samples, rows[f"postgresql_{name}"].samples
        ratios = [there / here for here, there in zip(first, second, strict=True)]
        assert rows[f"postgresql_{name}_ratio"].samples == pytest.approx(ratios)
