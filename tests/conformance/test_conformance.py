"""DigitalOcean's own Python client against this server, method by method; the page is what the run
says. ``pytest tests/conformance --write`` writes it anew."""

from pathlib import Path

import pytest

from tests.api.conftest import Api, api
from tests.api.workspaces import workspace
from tests.certificates import Authority
from tests.conformance.cases import CASES, NOT_YET
from tests.conformance.page import PAGE, page
from tests.conformance.running import run
from tests.conformance.servers import InProcess
from tests.conformance.world import open_world

__all__ = ["api", "workspace"]

SQLITE_ALONE = (
    "what the client sees is HTTP's, on which tests/api runs with both; and its libraries read whom"
    " to trust once in a process, so a second world is none to them"
)

# The client and what it stands on warn of theirs: of loops, of streams that nobody closed.
pytestmark = pytest.mark.filterwarnings("ignore")


async def test_the_page_is_what_the_run_says(
    api: Api,
    workspace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    authority = Authority(tmp_path)
    async with open_world(InProcess(api), tmp_path, authority, monkeypatch) as world:
        methods, verdicts = await run(world)
    text = page(methods, {**CASES, **NOT_YET}, verdicts)
    if request.config.getoption("--write", default=False):
        PAGE.write_text(text, "utf-8")
    assert PAGE.read_text("utf-8") == text, "write it anew: pytest tests/conformance --write"
