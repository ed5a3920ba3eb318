"""The page of formats has the versions that the code has."""

import re
from pathlib import Path

from torpor.backup import framing
from torpor.guest import succession, wire
from torpor.images import names
from torpor.store import migrate
from torpor.vm import delta, exported, heads, manifest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/reference.md"
NOW = {
    "channel protocol": wire.VERSION,
    "hand-over between agents": succession.HANDOVER,
    "manifest of a snapshot": manifest.WITH_CARD,
    "head of a disk": heads.VERSION,
    "memory delta": delta.VERSION,
    "exported snapshot": max(exported.VERSIONS),
    "record of a machine": manifest.WITH_CARD,
    "named image": names.VERSION,
    "backup": framing.WITH_DISKS,
    "database": int(migrate.HEAD),
}


def rows() -> list[list[str]]:
    # The list is the first table; others say what one format has.
    first = PAGE.read_text("utf-8").partition("\n| ")[2].partition("\n\n")[0]
    lines = re.findall(r"^\| (.*) \|$", "| " + first, re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines][2:]


def test_versions_are_those_of_the_code() -> None:
    numbered = {name: int(version) for name, _, version, *_ in rows() if version.isdigit()}
    assert numbered == NOW


def test_every_described_section_and_module_is_there() -> None:
    for name, _, _, described, module in rows():
        page, _, anchor = re.search(r"\(([^)]*)\)", described)[1].partition("#")  # type: ignore[index]
        text = (ROOT / "docs" / page).read_text("utf-8")
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}
        assert not anchor or anchor in anchors, name
        if module:
            assert (ROOT / "src/torpor" / module.strip("`")).exists(), name
