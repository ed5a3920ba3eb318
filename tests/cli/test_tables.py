"""Tables: readable at the width they are given, and whatever a check has seen is shown as it is."""

import io

import pytest
from rich.console import Console

from torpor.cli.findings import Finding
from torpor.cli.tables import print_checks, print_findings, print_verdict
from torpor.lab.check import Check

LONG = "the very same process goes on from where it stood, with everything that it had in mind"


def printed(width: int, *checks: Check) -> str:
    text = io.StringIO()
    out = Console(file=text, width=width, highlight=False)
    print_checks(out, "counter", "Counts.", checks, 1.0)
    return text.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_table_keeps_to_its_width_and_loses_nothing(width: int) -> None:
    said = printed(width, Check("goes-on", True, LONG, LONG))
    assert max(map(len, said.splitlines())) <= width
    words = said.split()
    assert all(words.count(word) >= 2 for word in LONG.split())


def test_a_check_is_not_called_after_its_experiment_twice() -> None:
    said = printed(80, Check("counter-goes-on", True, "a", "b"), Check("other", True, "a", "b"))
    assert "counter-goes-on" not in said
    assert "goes-on" in said
    assert "other" in said


def test_what_was_seen_is_not_taken_for_markup() -> None:
    said = printed(80, Check("x", False, "[bold]", "[/red] :smile:"))
    assert "[bold]" in said
    assert "[/red] :smile:" in said
    assert "FAILED" in said


@pytest.mark.parametrize(
    ("checks", "said"),
    [
        ([Check("a", True, "", ""), Check("b", True, "", "")], "2 checks, all as expected"),
        ([Check("a", True, "", ""), Check("b", False, "", "")], "1 of 2 checks FAILED in 3 s: b"),
        ([], "nothing has been shown"),
    ],
)
def test_the_verdict_counts(checks: list[Check], said: str) -> None:
    text = io.StringIO()
    print_verdict(Console(file=text, width=80), checks, 3.0)
    assert said in text.getvalue()


@pytest.mark.parametrize(
    ("state", "said"),
    [("ok", "Torpor works here"), ("warning", "1 warning"), ("broken", "1 thing is broken")],
)
def test_the_doctor_ends_with_the_sum(
    state: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_findings([Finding("host", "x", state, "seen", "do this")])  # type: ignore[arg-type]
    shown = capsys.readouterr().out
    assert said in shown
    assert "→ do this" in shown
