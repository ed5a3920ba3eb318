"""DigitalOcean's own Python client against this server, method by method; the page is what the run
says. ``pytest tests/conformance --write`` writes it anew."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.api.conftest import Api, api
from tests.api.workspaces import workspace
from tests.conformance.cases import CASES, NOT_YET
from tests.conformance.judging import Verdict, judge
from tests.conformance.page import PAGE, page
from tests.conformance.surface import Method, surface
from tests.conformance.ways import Awaiting, Waiting, Way
from tests.conformance.world import World, open_world

__all__ = ["api", "workspace"]

# The client and what it stands on warn of theirs: of loops, of streams that nobody closed.
pytestmark = pytest.mark.filterwarnings("ignore")

NEVER_REFUSED = {
    "agents.attach", "events.close", "download.read", "download.save", "download.close",
}  # fmt: skip
"""What asks the server for nothing, or for what it has said is there."""


@pytest.fixture
async def world(
    api: Api, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    async with open_world(api, tmp_path, monkeypatch) as opened:
        yield opened


@pytest.fixture
def ways(world: World) -> tuple[Way, Way]:
    return Waiting(world), Awaiting(world)


async def test_the_page_is_what_the_run_says(
    world: World, ways: tuple[Way, Way], request: pytest.FixtureRequest
) -> None:
    methods = surface(*world.clients["operator"])
    assert methods.keys() - CASES.keys() == set(), "the client has methods without a case"
    assert CASES.keys() - methods.keys() == set(), "there are cases of methods that are not there"
    good_alone = {name for name, case in CASES.items() if case.bad is None and case.no is None}
    assert good_alone == NEVER_REFUSED
    assert NOT_YET.keys() & methods.keys() == set(), "the client has these by now"
    verdicts: dict[str, list[Verdict | None]] = {}
    for name, case in {**CASES, **NOT_YET}.items():
        method = methods.get(name, Method(name, waits=True, awaits=True))
        verdicts[name] = [
            await judge(world, way, case) if way.has(method) else None for way in ways
        ]
    faults = [
        f"{name}, {way}: {fault}"
        for name, found in verdicts.items()
        for way, verdict in zip(("sync", "async"), found, strict=True)
        if verdict is not None
        for fault in verdict.faults
    ]
    assert faults == [], "\n".join(faults)
    text = page(methods, {**CASES, **NOT_YET}, verdicts)
    if request.config.getoption("--write", default=False):
        PAGE.write_text(text, "utf-8")
    assert PAGE.read_text("utf-8") == text, "write it anew: pytest tests/conformance --write"
