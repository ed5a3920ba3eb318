"""Each line of the threat model names a test that is there."""

import re
from pathlib import Path

from tests.named_tests import missing_tests

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/security.md").read_text("utf-8")


def lines() -> list[str]:
    """The lines of the tables, without their heads."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    return [row for row in rows if not re.match(r"\| (---|it tries to|they try to) ", row)]


def test_every_line_names_a_test() -> None:
    assert len(lines()) > 25
    bare = [line for line in lines() if "`tests/" not in line.rstrip("| ").split("|")[-1]]
    assert bare == []


def test_every_test_that_is_named_is_there() -> None:
    missing = missing_tests(PAGE)
    assert missing == []
