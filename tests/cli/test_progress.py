"""Progress: silent when there is nothing to do, lines without a terminal, bars with one."""

import io

import pytest
from rich.console import Console

from torpor.cli.progress import Shown, amount_of
from torpor.images import Step


def console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, force_terminal=terminal, width=80, highlight=False), text


@pytest.mark.parametrize("terminal", [False, True])
def test_no_step_says_nothing(terminal: bool) -> None:
    out, text = console(terminal=terminal)
    with Shown(out):
        pass
    assert text.getvalue() == ""


def test_without_a_terminal_each_step_is_one_line() -> None:
    out, text = console(terminal=False)
    with Shown(out) as shown:
        shown.report(Step("downloading packages"))
        for done in range(5):
            shown.report(Step("downloading packages", done, 5, "bytes"))
        shown.report(Step("packing [all] of it"))
    assert text.getvalue().split("\n") == [
        "    downloading packages",
        "    packing [all] of it",
        "",
    ]


def test_on_a_terminal_every_step_stays_to_be_read() -> None:
    out, text = console(terminal=True)
    with Shown(out) as shown:
        shown.report(Step("downloading [packages]", 10_000_000, 20_000_000, "bytes"))
        shown.report(Step("packing"))
    assert "downloading [packages]" in text.getvalue()
    assert "packing" in text.getvalue()


def test_a_failure_leaves_no_bar_running() -> None:
    out, _ = console(terminal=True)

    def fail() -> None:
        with Shown(out) as shown:
            shown.report(Step("packing"))
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    with Shown(out) as shown:  # a second live display would be refused
        shown.report(Step("again"))


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (Step("x"), ""),
        (Step("x", 3, None, "packages"), "3 packages"),
        (Step("x", 3, 9, "files"), "3 of 9 files"),
        (Step("x", 1_500_000, 3_000_000, "bytes"), "1.5 MB of 3.0 MB"),
        (Step("x", 1_500_000, None, "bytes"), "1.5 MB"),
    ],
)
def test_the_amount_has_its_unit(step: Step, said: str) -> None:
    assert amount_of(step) == said
