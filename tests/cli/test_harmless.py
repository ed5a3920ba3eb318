"""Whoever chooses a name, a label or the words of an error does not steer a terminal with it."""

import io
import re
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from torpor.cli import harmless as module
from torpor.cli import screen
from torpor.cli.harmless import complain, harmless
from torpor.cli.screen import Screen
from torpor.cli.tables import print_image
from torpor.cli.terminal import Modes
from torpor.images.config import ImageConfig
from torpor.images.names import Listed, Record

CLI = Path(module.__file__).parent
ATTACK = "\x1b]0;title\x07\x1b[2J\x9b31m\r\b\u202egnp.exe\ud800"
OBEYED = set(ATTACK) - set("]0;title[2J31mgnp.exe")


def test_only_what_a_terminal_obeys_is_shown_otherwise() -> None:
    assert harmless("Ünïcode, 日本語,\ta tab\nand a line") == "Ünïcode, 日本語,\ta tab\nand a line"
    assert harmless("a\x1b[2Jb\x9bc\rd\u202ee\ud800") == r"a\x1b[2Jb\x9bc\rd\u202ee\ud800"


def test_words_of_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    complain(f"There is no image {ATTACK}.")
    assert not OBEYED & set(capsys.readouterr().err)


def test_text_on_a_screen_keeps_its_style_and_nothing_else() -> None:
    out = io.StringIO()
    table = Table(ATTACK)
    table.add_row(Text(ATTACK, "bold red"))
    Screen(file=out, force_terminal=True, width=80, color_system="standard").print(table)
    shown = out.getvalue()
    assert "\x1b[1;31m" in shown
    assert not OBEYED & set(re.sub(r"\x1b\[[\d;]*m", "", shown))


def test_what_a_strangers_image_says_of_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    config = ImageConfig(
        (ATTACK,), (ATTACK,), {ATTACK: ATTACK}, ATTACK, ATTACK, {"[bold]": ATTACK}, (ATTACK,)
    )
    record = Record(1, "x", "d", 1, "now", ATTACK, None, None, (), 1, 1, config, (ATTACK,))
    print_image(Listed(record, 1, 1))
    said = capsys.readouterr().out
    assert "[bold]" in said
    assert not OBEYED & set(said)


def test_all_that_the_command_line_shows_goes_this_way() -> None:
    for file in CLI.glob("*.py"):
        text = file.read_text()
        if file != Path(screen.__file__):
            assert not re.search(r"\bConsole\(", text), file
        for call in re.findall(r"secho\(.*", text):
            assert call.startswith("secho(harmless("), file


def test_a_program_that_changes_modes_without_end_takes_no_memory() -> None:
    modes = Modes()
    for number in range(100_000):
        modes.see(b"\x1b[?%d%dh" % (number, number))
    modes.see(b"\x1b[?1049h\x1b[?25l")
    assert len(modes.undo()) < 200_000
    assert b"1049l" in modes.undo()
    assert b"25h" in modes.undo()
