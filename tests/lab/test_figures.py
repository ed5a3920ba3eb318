"""Figures are computed right, take the documented form, and stand beside those of others."""

import json
import math

import pytest

from torpor.images import Step, silent
from torpor.lab.bench import FIGURES
from torpor.lab.benches.memory import DIRTY, TOUCHED
from torpor.lab.figures import (
    ELSEWHERE,
    Figure,
    Notebook,
    Results,
    Row,
    percentile,
    results_json,
    shown,
)

SECONDS = Figure("a", "s", "a thing that takes time")

PROMISED_ROWS = {
    "cold_boot",
    "create_returned",
    "create_ready",
    "pause_returned",
    "resume_returned",
    "resume_ready",
    "checkpoint_returned",
    "files_snapshot",
    "files_create_ready",
    "full_save",
    "full_load",
    "copy_64mib",
    "freeze_64mib",
    "quiesce_64mib",
    "commit_64mib",
    "durable_64mib",
    "freeze_after_free_200mib",
    "thaw_ready_64mib",
    "fork_window",
    "fork_2_ready",
    "fork_10_ready",
    "fork_10_first_exec",
    "exec_roundtrip",
    "idle_machine_mib",
    "idle_machine_cpu",
    "channel_out_32mib",
    "channel_in_32mib",
    "file_read_32mib",
    "file_write_32mib",
    "tar_out_32mib",
    "tar_in_32mib",
    "image_unpack",
    "image_import",
}


@pytest.mark.parametrize(
    ("samples", "percent", "expected"),
    [
        ([7], 50, 7),
        ([7], 95, 7),
        ([3, 1, 2], 50, 2),
        ([1, 2, 3, 4], 50, 2.5),
        (range(21), 95, 19),
        (range(101), 95, 95),
        ([0, 10], 95, 9.5),
        ([1, 2, 3], 100, 3),
        ([1, 2, 3], 0, 1),
    ],
)
def test_percentiles_lie_between_the_nearest_samples(
    samples: list[float], percent: float, expected: float
) -> None:
    assert percentile(samples, percent) == pytest.approx(expected)


def test_there_is_no_percentile_of_nothing() -> None:
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 50)


def test_the_json_has_the_documented_form() -> None:
    results = Results({"cores": 2, "processor": "x"}, (Row(SECONDS, (0.1, 0.3, 0.2)),))
    assert json.loads(json.dumps(results_json(results))) == {
        "host": {"cores": 2, "processor": "x"},
        "results": [{"name": "a", "unit": "s", "p50": 0.2, "p95": 0.29, "runs": 3}],
    }


def test_every_promised_row_is_measured() -> None:
    names = [figure.name for figure in FIGURES]
    assert PROMISED_ROWS - set(names) == set()
    assert len(names) == len(set(names))


def test_the_names_say_what_the_machines_of_the_64mib_rows_are() -> None:
    assert (DIRTY, TOUCHED[-1]) == (64, 768)


def test_figures_elsewhere_stand_beside_figures_that_are_measured() -> None:
    assert {other.name for other in ELSEWHERE} - {figure.name for figure in FIGURES} == set()


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0.0123456, "s", "12.3 ms"),
        (0.5, "s", "500 ms"),
        (4.4999, "s", "4.50 s"),
        (0.00004, "s", "0.040 ms"),
        (123.4, "MiB", "123 MiB"),
        (0.314, "%", "0.314 %"),
        (0, "%", "0.00 %"),
    ],
)
def test_values_are_shown_in_three_digits(value: float, unit: str, expected: str) -> None:
    assert shown(value, unit) == expected  # type: ignore[arg-type]


def test_a_notebook_keeps_samples_in_order_and_leaves_out_what_has_none() -> None:
    other = Figure("b", "%", "another")
    book = Notebook("group", (SECONDS, other), silent)
    book.note("a", 2)
    book.note("a", 1)
    assert book.rows() == (Row(SECONDS, (2, 1)),)


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_a_notebook_refuses_what_cannot_have_been_measured(value: float) -> None:
    with pytest.raises(ValueError, match="cannot be a sample of a"):
        Notebook("group", (SECONDS,), silent).note("a", value)


def test_a_notebook_refuses_a_figure_that_is_not_declared() -> None:
    with pytest.raises(KeyError):
        Notebook("group", (SECONDS,), silent).note("b", 1)


def test_a_notebook_tells_how_far_it_is() -> None:
    told: list[Step] = []
    assert list(Notebook("group", (), told.append).runs(2)) == [0, 1]
    assert [(step.done, step.total) for step in told] == [(0, 2), (1, 2), (2, 2)]
