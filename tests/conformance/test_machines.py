"""The same calls of DigitalOcean's client to ``torpor serve`` with real machines, over TLS: the
page is what this run says, too."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Authority
from tests.conformance.cases import CASES, NOT_YET
from tests.conformance.page import PAGE, page
from tests.conformance.running import run
from tests.conformance.servers import OfProcess
from tests.conformance.world import open_world
from tests.machine.conftest import Start, start
from tests.machine.serving import a_server, left_over
from tests.machine.test_templates import registry
from torpor.api.app import RESOURCES
from torpor.lab.server import Server

__all__ = ["registry", "start"]

# The client and what it stands on warn of theirs: of loops, of streams that nobody closed.
pytestmark = [pytest.mark.machine, pytest.mark.filterwarnings("ignore")]

MEMORY_MIB = 4096
"""What machines may take in all: of so much, others that run tests leave enough free."""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def process(start: Start, authority: Authority, registry: Any) -> Iterator[Server]:
    certificate, key = authority.vouch("localhost", "127.0.0.1")
    with a_server(
        start,
        authority=authority.file,
        tls_certificate=str(certificate),
        tls_key=str(key),
        preview_listen="127.0.0.1:0",
        memory_limit_mib=MEMORY_MIB,
        template_insecure_registries=f"127.0.0.1:{registry.server_port}",
    ) as server:
        yield server


def test_with_real_machines_the_page_says_the_same(
    process: Server,
    authority: Authority,
    registry: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    routes = [route for resource in RESOURCES for route in resource.routes.routes]
    source = f"127.0.0.1:{registry.server_port}/team/tools:1"

    async def made() -> str:
        server = await OfProcess(process, authority.file, routes, source).open()
        async with open_world(server, tmp_path, authority, monkeypatch) as world:
            methods, verdicts = await run(world)
            for session in (await world.ask("GET", "/sessions"))["sessions"]:
                await world.ask("DELETE", f"/sessions/{session['session_id']}")
        return page(methods, {**CASES, **NOT_YET}, verdicts)

    assert asyncio.run(made()) == PAGE.read_text("utf-8")
    assert left_over(process) == []
