"""What a start imports is what it takes: heavy modules that it does not need are left for later."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from urllib.request import urlopen

import pytest
from starlette.responses import JSONResponse

from tests.client.double import Double, session

ROOT = Path(__file__).parents[2]
CLIENTS = ("torpor.client", "httpx", "httpcore")
DRAWING = ("rich", "pygments")
SERVERS = (
    "torpor.api", "torpor.backup", "torpor.sessions", "torpor.store", "torpor.vm", "torpor.images",
    "torpor.settings.model", "torpor.guest", "fastapi", "starlette", "uvicorn", "sqlalchemy",
    "aiosqlite", "alembic", "prometheus_client", "pydantic_settings", "yaml",
)  # fmt: skip
LAB = ("torpor.lab",)


def of(names: Collection[str], modules: Collection[str]) -> list[str]:
    """Return which of these modules and packages are among ``modules``."""
    return [name for name in names if any(f"{each}.".startswith(f"{name}.") for each in modules)]


def modules_of_a_server(home: Path) -> set[str]:
    """Return what a server has imported that has answered."""
    environment = {**os.environ, "TORPOR_HOME": str(home), "TORPOR_CACHE": str(home)}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.cli.served"],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        assert server.stderr is not None
        said = ""
        while not (at := re.search(r"Torpor is at (\S+)\. ", said)):
            line = server.stderr.readline()
            assert line, said
            said += line
        for path in ("healthz", "v2/agents/sessions"):
            assert json.load(urlopen(f"{at[1]}/{path}", timeout=60))  # noqa: S310
        server.send_signal(signal.SIGTERM)
        modules = json.loads(server.stdout.read())
        server.stderr.read()
    assert server.returncode == 0
    return set(modules)


def test_a_server_imports_no_client_nothing_that_draws_and_no_migrations(tmp_path: Path) -> None:
    modules_of_a_server(tmp_path)  # makes its database, which takes migrations
    modules = modules_of_a_server(tmp_path)
    assert of(("torpor.api", "fastapi", "sqlalchemy"), modules)  # these are what is looked at
    unneeded = (
        *CLIENTS,
        *DRAWING,
        *LAB,
        "h2",
        "hpack",
        "alembic",
        "yaml",
        "sqlalchemy.dialects.postgresql",
    )
    assert of(unneeded, modules) == []


@pytest.mark.parametrize(
    "arguments",
    [["list"], ["list", "-o", "json"], ["show", "b"], ["pause", "b"], ["rm", "b"], ["tree", "b"]],
    ids=" ".join,
)
def test_a_command_that_asks_a_server_imports_nothing_of_one(
    double: Double, arguments: list[str]
) -> None:
    one = JSONResponse({"session": session()})
    double.on("GET", "sessions", JSONResponse({"sessions": [session()], "next_page_token": ""}))
    for method, path in (("GET", ""), ("POST", "/pause"), ("DELETE", "")):
        double.on(method, f"sessions/b{path}", one)
    double.on("GET", "sessions/b/tree", JSONResponse({"session": session(), "snapshots": []}))
    program = (
        "import json, sys; from torpor.cli.app import app;"
        "app(sys.argv[1:], standalone_mode=False);"
        "print(json.dumps(sorted(sys.modules)))"
    )
    said = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "TORPOR_URL": double.url, "TORPOR_TOKEN": "torpor_t_s"},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    modules = json.loads(said.stdout.splitlines()[-1])
    assert of(("torpor.client", "httpx"), modules)
    assert of((*SERVERS, *LAB), modules) == []
