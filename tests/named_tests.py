"""The tests that a page names."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def missing_tests(page: str) -> list[str]:
    """Return the tests that ``page`` names and that are not there. One that names none is wrong."""
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)
    assert named
    return [
        f"{file}::{test}"
        for file, test in named
        if not (ROOT / file).exists()
        or (test and not re.search(rf"def {test}\b", (ROOT / file).read_text("utf-8")))
    ]
