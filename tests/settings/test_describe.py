import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from torpor.settings import Settings, load_settings
from torpor.settings.describe import page

PAGE = Path(__file__).resolve().parents[2] / "docs/settings.md"


def test_the_page_is_that_of_the_code() -> None:
    made = "python -m torpor.settings.describe > docs/settings.md"
    assert PAGE.read_text("utf-8") == page(), f"make it anew: {made}"


def test_the_module_prints_the_page() -> None:
    command = [sys.executable, "-m", "torpor.settings.describe"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == page()


def test_the_example_says_the_same_as_the_defaults(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", page(), re.DOTALL)[1]  # type: ignore[index]
    assert len(tomllib.loads(example)) > 10
    (tmp_path / "torpor.toml").write_text(example)
    assert load_settings({}, {}, tmp_path / "torpor.toml") == Settings()


def test_each_setting_says_what_it_does() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \| (.+) \|$", page(), re.MULTILINE)
    assert [row[0] for row in rows] == list(Settings.model_fields)
    assert all(len(does) > 20 and does.endswith((".", ".)")) for *_, does in rows)


@pytest.mark.parametrize("name", ["Places", "default_places", "extra_authorities"])
def test_what_each_command_needs_imports_no_pydantic(name: str) -> None:
    line = f"from torpor.settings import {name}; import sys; print('pydantic' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", line], check=True, capture_output=True, text=True)
    assert said.stdout == "False\n"
