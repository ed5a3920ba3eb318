"""The performance page and its picture say what was measured, and nothing else."""

import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest

from torpor.lab.bench import FIGURES, SERVICE_FIGURES
from torpor.lab.figures import ELSEWHERE, Results, Row
from torpor.lab.page import (
    PICTURE,
    performance_page,
    performance_picture,
    write_performance,
    write_service,
)
from torpor.lab.plot import Series, plot

RESULTS = Results(
    {"processor": "A | B", "accelerator": "tcg"},
    tuple(Row(figure, (0.25, 0.5)) for figure in FIGURES),
)


def without(*names: str) -> Results:
    rows = tuple(row for row in RESULTS.rows if row.figure.name not in names)
    return Results(RESULTS.host, rows)


def texts(svg: str) -> list[str]:
    # The picture is our own text.
    return [each.text or "" for each in ET.fromstring(svg).iter() if each.text]  # noqa: S314


def test_the_page_names_its_host_and_every_figure() -> None:
    page = performance_page(RESULTS)
    assert "| processor | A \\| B |" in page
    for figure in FIGURES:
        assert f"| `{figure.name}` | " in page
    for other in ELSEWHERE:
        assert f"| {other.figure} | {other.where} |" in page
    assert page.endswith("|\n")


@pytest.mark.parametrize(("load", "told"), [(0.4, False), (1.0, False), (5.0, True)])
def test_the_page_says_that_the_host_was_busy(load: float, told: bool) -> None:
    page = performance_page(Results({"cores": 2, "load_at_start": load}, RESULTS.rows))
    assert ("busy with other work" in page) == told


def test_the_page_leaves_out_what_was_not_measured() -> None:
    page = performance_page(without("exec_roundtrip", "full_save"))
    tables = page[page.index("## What was measured") :]
    assert "exec_roundtrip" not in tables
    assert PICTURE in performance_page(RESULTS)


def test_tables_keep_their_columns() -> None:
    lines = performance_page(RESULTS).splitlines()
    for before, after in pairwise(lines):
        if before.startswith("|") and after.startswith("|"):
            assert before.replace("\\|", "").count("|") == after.replace("\\|", "").count("|")


def test_without_the_figures_there_is_no_picture(tmp_path: Path) -> None:
    few = without(*(row.figure.name for row in RESULTS.rows if "_of_" in row.figure.name))
    assert performance_picture(few) is None
    write_performance(few, tmp_path / "performance.md")
    assert [file.name for file in tmp_path.iterdir()] == ["performance.md"]


def test_page_and_picture_are_written_side_by_side(tmp_path: Path) -> None:
    write_performance(RESULTS, tmp_path / "performance.md")
    assert f"]({PICTURE})" in (tmp_path / "performance.md").read_text()
    labels = texts((tmp_path / PICTURE).read_text())
    assert "memory touched, MiB" in labels
    assert {"128", "256", "512", "768"} <= set(labels)
    assert {"100 ms", "1 s"} <= set(labels)
    assert "freeze, 375 ms" in labels


def test_a_plot_puts_higher_values_higher() -> None:
    series = Series("a", "#000", ((1, (0.02,)), (2, (0.2,))))
    drawn = ET.fromstring(plot("t", "x", (1, 2), [series]))  # noqa: S314
    circles = list(drawn.iter("{http://www.w3.org/2000/svg}circle"))
    (x1, y1), (x2, y2) = ((float(c.attrib["cx"]), float(c.attrib["cy"])) for c in circles)
    assert x1 < x2
    assert y1 > y2


def test_a_plot_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="samples above 0"):
        plot("t", "x", (1,), [Series("a", "#000", ((1, (0.0,)),))])


def test_the_section_of_the_service_stays_when_the_rest_is_written_anew(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    service = Results(
        {"processor": "of the service"}, tuple(Row(f, (0.25, 0.5)) for f in SERVICE_FIGURES)
    )
    write_performance(RESULTS, page)
    for results in (service, Results({"processor": "of today"}, service.rows)):
        write_service(results, page)
    with_service = page.read_text()
    assert "of today" in with_service
    assert "of the service" not in with_service
    for figure in SERVICE_FIGURES:
        assert f"| `{figure.name}` | " in with_service
    write_performance(without("exec_roundtrip"), page)
    assert "exec_roundtrip" not in page.read_text().partition("## The service")[0]
    assert (
        page.read_text().partition("## The service")[2]
        == with_service.partition("## The service")[2]
    )
