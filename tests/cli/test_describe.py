"""The page of the command line has all commands and options, in their own words."""

from pathlib import Path
from typing import Any

from typer.main import get_command

from torpor.cli.app import app
from torpor.cli.describe import COMMANDS, reference

PAGE = Path(__file__).resolve().parents[2] / "docs/cli.md"
ELSEWHERE = {"doctor", "image", "lab", "snapshot"}


def test_the_page_ends_with_what_the_commands_say() -> None:
    text = PAGE.read_text("utf-8")
    begin = text.index("## Commands\n")
    made = "the page ends with what `python -m torpor.cli.describe` prints"
    assert text[begin:] == reference(), made


def test_no_command_is_forgotten() -> None:
    root: Any = get_command(app)
    assert set(root.commands) == {*COMMANDS, *ELSEWHERE}
